/* kernels.h: the table of kernels that every backend fills. Operands come in checked, on the right device, any strides
 * unless a line says contiguous. A NULL entry means "not built for this device": TL_KERNEL turns it into an error. */
#ifndef TL_BACKEND_KERNELS_H
#define TL_BACKEND_KERNELS_H

#include "backend/nn.h"
#include "backend/update.h"
#include "core/iter.h"

/* Pointwise functions: every row of ops.def gives NAME, and its derivatives NAME_grad or NAME_da, NAME_db. */
enum tl_fn {
#define TL_UNARY(name, kind, f, df, saves) TL_FN_##name, TL_FN_##name##_grad,
#define TL_UNARY1(name, kind, f, df, saves) TL_FN_##name, TL_FN_##name##_grad,
#define TL_UNARY2(name, kind, f, df, saves) TL_FN_##name, TL_FN_##name##_grad,
#define TL_BINARY(name, kind, f, da, db, saves) TL_FN_##name, TL_FN_##name##_da, TL_FN_##name##_db,
#include "ops/ops.def"
  TL_FN_add_scaled, /* a + p*b */
  TL_FN_addcmul,    /* a + p*b*c */
  TL_FN_addcdiv,    /* a + p*b/c */
  TL_FN_lerp,       /* a + p*(b-a) */
  TL_FN_where,      /* c ? a : b */
  TL_FNS
};

/* A batch of matrices: element (i, j) of batch item (b0, b1, ..) lies sum(b * batch) + i * row + j * col elements after
 * data. Strides are in elements; 0 where expanded. */
typedef struct tl_matrix {
  void *data;
  int64_t row, col;
  int64_t batch[TL_MAX_DIMS];
} tl_matrix;

/* c = alpha * a b + beta * c + bias for every batch item: a (m, k), b (k, n), c (m, n); bias (n) is added to each row. */
typedef struct tl_gemm {
  const char *op; /* for messages */
  int dtype;      /* of every operand, any but bool */
  bool wide;      /* c is float32, where a and b are float16 or bfloat16: no batch, no bias */
  int64_t m, n, k;
  int batch_ndim;
  int64_t batch[TL_MAX_DIMS];
  tl_matrix a, b, c;
  double alpha, beta;  /* beta = 0: c is not read */
  const void *bias;    /* NULL: none */
  int64_t bias_stride; /* in elements */
} tl_gemm;

/* Sizes, steps, paddings of windows are at most this: then no sum or product of two of them overflows. */
#define TL_WINDOW_MAX INT32_MAX

/* A convolution over 2 spatial dims; 1-d ones come with a height of 1. x (batch, in, H, W), w (out, in/groups, KH, KW),
 * y (batch, out, OH, OW), all contiguous; size[] is x's, result[] is y's. Used backwards, it is a transposed convolution. */
typedef struct tl_convolution {
  const char *op;
  int dtype; /* floating */
  int64_t batch, in, out, groups;
  int64_t size[2], kernel[2], result[2], stride[2], padding[2], dilation[2];
} tl_convolution;

/* Pooling of `planes` planes of size[0] x size[1] to result[0] x result[1], all contiguous. An adaptive one divides the
 * plane: window i of o over n elements is floor(i n / o) .. ceil((i+1) n / o); kernel, stride, padding mean nothing then. */
typedef struct tl_pooling {
  const char *op;
  int dtype; /* floating */
  int64_t planes, size[2], result[2], kernel[2], stride[2], padding[2], dilation[2];
  bool adaptive, count_include_pad; /* averages only */
  int where_dtype;                  /* max only: TL_UINT8 while the kernel has at most 254 positions, else TL_INT32 */
} tl_pooling;

/* A float32 matrix in compressed rows: row r has value[i] in column[i] for i from first[r] to first[r + 1] - 1. */
typedef struct tl_sparse {
  int64_t rows, columns, nonzeros;
  const int32_t *first, *column;
  const float *value, *bias; /* bias (rows) may be NULL */
} tl_sparse;

typedef struct tl_kernels {
  /* ---- pointwise.c ---- it->op[0] = fn(it->op[1..]); computes in `compute` (TL_FLOAT32, TL_FLOAT64 or TL_INT64) */
  tl_status (*pointwise)(int fn, int compute, const tl_iter *it, double p, double q);
  tl_status (*copy)(const tl_iter *it); /* op[0] = op[1] with conversion; op[1] may be a constant */
  /* ---- random.c ---- element i of the row-major order takes number offset + i of the stream `seed` */
  tl_status (*random)(int kind, const tl_iter *it, uint64_t seed, uint64_t offset, double p, double q);
  /* ---- create.c ---- contiguous out[i] = first + i * step */
  tl_status (*range)(tl_tensor *out, double first, double step);
  /* ---- reduce.c ---- op[0] = reduction of op[1] over the last `reduced` dims of it (see reduce.h); p: the norm's p */
  tl_status (*reduce)(int kind, const tl_iter *it, int reduced, double p);
  /* ---- gemm.c ---- any strides of a and b; c has col 1 and does not overlap itself. Any size may be 0 (k = 0: c gets
   * beta * c + bias). float16 and bfloat16 accumulate in float32, integers in int64. */
  tl_status (*gemm)(const tl_gemm *g);
  /* gemm, and sums (m, of its dtype) = the sums of a's rows: floating, no batch, no size is 0. NULL where one call has
   * nothing over gemm and reduce; not an error. */
  tl_status (*gemm_sums)(const tl_gemm *g, void *sums);
  /* c = gelu_tanh of what gemm gives, which goes to `pre` (m, n, contiguous; NULL: not wanted): no batch, no size is 0.
   * *done = false: nothing was done, the library has no such call for this problem. NULL as above. */
  tl_status (*gemm_gelu)(const tl_gemm *g, void *pre, bool *done);
  /* ---- optimizer.c ---- one optimizer step over a list of parameters (update.h) */
  tl_status (*update)(int n, const tl_update *list);
  /* ---- step.cu; NULL on the CPU ---- an optimizer's and a gradient scaler's own numbers, where those stay on the device */
  tl_status (*plan)(const tl_plan *p);
  tl_status (*scale_update)(const tl_scale_update *s);
  /* span.cu; NULL on the CPU: *norm = the p-norm of a list of spans, in the device's memory, and then
   * x *= min(1, max / (*norm + 1e-6)) */
  tl_status (*span_clip)(int n, const tl_span *list, double p, double max, double *norm);
  /* ---- pool.c ---- max: nan wins; `where` gets the position in the window (row-major) that won, all ones where the window
   * holds no element (its y is -inf); NULL: not wanted */
  tl_status (*max_pool)(const tl_pooling *p, const void *x, void *y, void *where);
  tl_status (*max_pool_backward)(const tl_pooling *p, const void *dy, const void *where, void *dx);
  tl_status (*avg_pool)(const tl_pooling *p, const void *x, void *y);
  tl_status (*avg_pool_backward)(const tl_pooling *p, const void *dy, void *dx);
  /* ---- span.c ---- over a list of spans: the sum of |x|^p, or for p = inf the largest |x| (nan wins); x *= factor;
   * x into [-limit, limit] */
  tl_status (*span_norm)(int n, const tl_span *list, double p, double *result);
  tl_status (*span_scale)(int n, const tl_span *list, double factor);
  tl_status (*span_clamp)(int n, const tl_span *list, double limit);
  /* x *= *inverse; *found becomes 1 if a result is not finite and is left alone otherwise. Both lie in the device's
   * memory, so that a step needs no answer from it. */
  tl_status (*span_unscale)(int n, const tl_span *list, const float *inverse, float *found);
  /* ---- conv.c ---- no size is 0. bias (out) may be NULL */
  tl_status (*conv_forward)(const tl_convolution *c, const void *x, const void *w, const void *bias, void *y);
  /* gradients from dy; each of dx, dw, dbias may be NULL: not wanted */
  tl_status (*conv_backward)(const tl_convolution *c, const void *x, const void *w, const void *dy, void *dx, void *dw,
                             void *dbias);
  /* ---- softmax.c, loss.c, class_loss.c, norm.c, row_norm.c, embedding.c, rope.c, attention.c ---- see nn.h */
  tl_status (*softmax)(const tl_softmax_args *a);
  tl_status (*softmax_grad)(const tl_softmax_grad_args *a);
  tl_status (*loss)(const tl_loss_args *a);
  tl_status (*loss_grad)(const tl_loss_grad_args *a);
  tl_status (*class_loss)(const tl_class_loss_args *a);
  tl_status (*class_loss_grad)(const tl_class_loss_grad_args *a);
  tl_status (*batch_norm)(const tl_batch_norm_args *a);
  tl_status (*batch_norm_grad)(const tl_batch_norm_grad_args *a);
  tl_status (*row_norm)(const tl_row_norm_args *a);
  tl_status (*row_norm_grad)(const tl_row_norm_grad_args *a);
  tl_status (*embedding)(const tl_embedding_args *a);
  tl_status (*embedding_grad)(const tl_embedding_grad_args *a);
  tl_status (*rope)(const tl_rope_args *a);
  tl_status (*attention)(const tl_attention_args *a);
  tl_status (*attention_grad)(const tl_attention_grad_args *a);
  /* ---- along.c ---- one dim of a contiguous x (outer, n, inner), n > 0: ids (outer, inner) of the first extreme; nan wins */
  tl_status (*arg_extreme)(bool largest, int dtype, const void *x, int64_t outer, int64_t n, int64_t inner,
                           int64_t *ids);
  /* running sums from the front or the back, dtype `from` to dtype `to` */
  tl_status (*cumsum)(int from, const void *x, int to, void *y, int64_t outer, int64_t n, int64_t inner, bool reverse);
  /* ---- index.c ---- contiguous unless said otherwise; elements are `size` bytes where only moved. ids were checked, but
   * a device that cannot wait for the answer reports bad ids later: there *at is always -1, and the kernels below must
   * not leave their operands when an id is outside 0..n-1 */
  tl_status (*find_bad_id)(const int64_t *ids, int64_t n, int64_t limit,
                           int64_t *at); /* first id outside 0..limit-1, or -1 */
  /* y (outer, m, inner) = rows ids (m) of x (outer, n, inner) */
  tl_status (*index_select)(size_t size, const void *x, int64_t outer, int64_t n, int64_t inner, int64_t m,
                            const int64_t *ids, void *y);
  /* rows ids (m) of y (outer, n, inner) += alpha * x (outer, m, inner), in the order of ids; not for bool */
  tl_status (*index_add)(int dtype, const void *x, int64_t outer, int64_t n, int64_t inner, int64_t m,
                         const int64_t *ids, double alpha, void *y);
  /* op[0] = op[2] at op[1] (int64 ids) steps of `stride` bytes; op[2] does not move along the indexed dim itself */
  tl_status (*gather)(const tl_iter *it, int64_t stride, int64_t n);
  /* op[0] at op[1] (int64 ids) steps of `stride` bytes += op[2], of one dtype, in the iterator's order; not for bool */
  tl_status (*scatter_add)(const tl_iter *it, int64_t stride, int64_t n);
  /* the places of the set flags: out (as many as there are, ndim) */
  tl_status (*nonzero)(const uint8_t *flags, int ndim, const int64_t *shape, int64_t *out);
  /* y = x (batch, rows, columns), 0 below (upper) or above the diagonal */
  tl_status (*triangle)(size_t size, const void *x, int64_t batch, int64_t rows, int64_t columns, int64_t diagonal,
                        bool upper, void *y);
  /* ---- sort.c ---- ids and values (outer, k, inner) of the first k in order of x (outer, n, inner); stable, nan counts
   * as the largest */
  tl_status (*sort)(int dtype, const void *x, int64_t outer, int64_t n, int64_t inner, bool descending, int64_t k,
                    void *values, int64_t *ids);
  /* ---- random.c ---- y = x / (1-p) where number offset + i of the stream is >= p, else 0; contiguous, floating */
  tl_status (*dropout)(int dtype, const void *x, void *y, int64_t n, uint64_t seed, uint64_t offset, double p);
  /* a permutation of 0..n-1 from 2n numbers, and draws (rows, n) from weights (rows, c) from 2n (2c without replacement)
   * numbers a row; host memory on every device */
  tl_status (*permutation)(int64_t n, uint64_t seed, uint64_t offset, int64_t *out);
  tl_status (*multinomial)(const double *weights, int64_t rows, int64_t c, int64_t n, bool replacement, uint64_t seed,
                           uint64_t offset, int64_t *out);
  /* ---- sparse.c; NULL on other devices ---- y (batch, rows) = x (batch, columns) w^T + bias, contiguous, no size is 0;
   * TL_ERR_VALUE for a column that w does not have, of which nothing is read */
  tl_status (*sparse_linear)(const tl_sparse *w, const float *x, int64_t batch, float *y);
} tl_kernels;

#define TL_KERNEL(t, entry, opname)                                                                \
  do {                                                                                             \
    if (tl_kernels_of(t)->entry == NULL)                                                           \
      return TL_FAIL(TL_ERR_UNSUPPORTED, opname, "there is no %s kernel for this device", #entry); \
  } while (0)

#endif
