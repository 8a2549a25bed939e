/* cublaslt_matmul.c: cuBLASLt's matmul as a plain loop: D = epilogue(alpha op(A) op(B) + beta C), in float64, rounded to
 * float32 and then to D's type. Strict where the real library is, or says it may be: shapes, leading dimensions, alignment,
 * workspace. What is not modelled (integers, complex, low-precision accumulation, ReLU bit masks, scale pointers,
 * transforms) is refused with CUBLAS_STATUS_NOT_SUPPORTED or does not link. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cublaslt_descriptors.h"
#include "runtime.h"

/* Four ways to multiply, which differ in what they ask for. */
typedef enum way { WAY_ANY, WAY_ALIGNED, WAY_SPLIT_K, WAY_STREAM_K, WAYS } way;

enum { LT_MARK_ALGO = 0x4c54414c };

typedef struct algo {
  uint64_t mark;
  uint32_t id, types;
} algo;
_Static_assert(sizeof(algo) <= sizeof(cublasLtMatmulAlgo_t), "fits NVIDIA's opaque struct");

/* ---- a problem: descriptor and layouts that fit each other ---- */

typedef struct matrix {
  sim_type type;
  int64_t rows, cols, row_stride, col_stride, batch_stride; /* in elements */
  const lt_layout *l;
} matrix;

typedef struct problem {
  lt_matmul_desc d;
  matrix a, b, c, out; /* a and b as stored, before their transposition */
  int64_t m, n, k, batch;
} problem;

static sim_type type_of(uint32_t type) {
  switch (type) {
    case CUDA_R_32F: return SIM_F32;
    case CUDA_R_64F: return SIM_F64;
    case CUDA_R_16F: return SIM_F16;
    case CUDA_R_16BF: return SIM_BF16;
    default: return SIM_NO_TYPE;
  }
}

static cublasStatus_t read_matrix(const char *name, cublasLtMatrixLayout_t object, matrix *x) {
  if (!sim_object_is(object, LT_MARK_LAYOUT))
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "%s has no live layout", name);
  const lt_layout *l = (const lt_layout *)object;
  if (l->order != CUBLASLT_ORDER_COL && l->order != CUBLASLT_ORDER_ROW)
    return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "%s: order %d is not modelled", name, l->order);
  bool by_rows = l->order == CUBLASLT_ORDER_ROW;
  x->type = type_of(l->type);
  if (x->type == SIM_NO_TYPE)
    return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "%s: type %u is not modelled", name, l->type);
  if (l->rows == 0 || l->cols == 0) return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "%s is empty", name);
  if (l->ld < (int64_t)(by_rows ? l->cols : l->rows))
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "%s: the leading dimension %lld is less than its %s", name,
                     (long long)l->ld, by_rows ? "columns" : "rows");
  if (l->batch < 1 || l->batch_stride < 0)
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "%s: batch of %d, %lld apart", name, l->batch,
                     (long long)l->batch_stride);
  x->rows = (int64_t)l->rows;
  x->cols = (int64_t)l->cols;
  x->row_stride = by_rows ? l->ld : 1;
  x->col_stride = by_rows ? 1 : l->ld;
  x->batch_stride = l->batch_stride;
  x->l = l;
  return CUBLAS_STATUS_SUCCESS;
}

enum {
  HAS_RELU = CUBLASLT_EPILOGUE_RELU,
  HAS_BIAS = CUBLASLT_EPILOGUE_BIAS,
  HAS_BGRAD = 16,
  HAS_GELU = CUBLASLT_EPILOGUE_GELU,
  HAS_DGELU = 64,
  HAS_AUX = 128
};

static bool epilogue_is_modelled(uint32_t e) {
  switch (e) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB: return true;
    default: return false;
  }
}

static bool epilogue_uses_bias_pointer(uint32_t e) {
  return e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB || (e & (HAS_BIAS | HAS_BGRAD)) != 0;
}

static cublasStatus_t check_types(const problem *p) {
  const lt_matmul_desc *d = &p->d;
  sim_type a = p->a.type, c = p->c.type;
  bool fits;
  if (p->a.type != p->b.type || p->c.type != p->out.type)
    return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "A and B, and C and D, are of one type each");
  switch (d->compute) {
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC: fits = d->scale == CUDA_R_32F && a != SIM_F64 && (c == a || c == SIM_F32); break;
    case CUBLAS_COMPUTE_32F_FAST_TF32: fits = d->scale == CUDA_R_32F && a == SIM_F32 && c == SIM_F32; break;
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC: fits = d->scale == CUDA_R_64F && a == SIM_F64 && c == SIM_F64; break;
    default: return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "compute type %d is not modelled", d->compute);
  }
  if (!fits)
    return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "no kernel for compute type %d, scale type %d, A %u, C %u",
                     d->compute, d->scale, p->a.l->type, p->c.l->type);
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t check_epilogue(const problem *p) {
  const lt_matmul_desc *d = &p->d;
  if (!epilogue_is_modelled(d->epilogue))
    return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "epilogue %u is not modelled", d->epilogue);
  if (d->epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
  if (p->out.type == SIM_F64 && (d->epilogue & ~(uint32_t)(HAS_BIAS | HAS_RELU | HAS_GELU)) != 0)
    return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "float64 has no epilogue %u", d->epilogue);
  bool operand_bgrad = d->epilogue == CUBLASLT_EPILOGUE_BGRADA || d->epilogue == CUBLASLT_EPILOGUE_BGRADB;
  if (operand_bgrad && sim_setting("TLUA_SIM_SEED", 0) % 2 != 0) /* which devices have it is not documented */
    return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "this device has no BGRADA and BGRADB (TLUA_SIM_SEED is odd)");
  if (p->out.l->order != CUBLASLT_ORDER_COL)
    return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "epilogues are modelled for column-major D only");
  if (epilogue_uses_bias_pointer(d->epilogue)) {
    if (d->bias_type != -1 && type_of((uint32_t)d->bias_type) != p->out.type)
      return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "the bias is of D's type");
    if (p->batch > 1 && d->bias_batch_stride < 0)
      return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "negative batch stride of the bias");
    bool written = (d->epilogue & HAS_BIAS) == 0;
    if (written && p->batch > 1 && d->bias_batch_stride < (d->epilogue == CUBLASLT_EPILOGUE_BGRADB ? p->n : p->m))
      return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "the bias gradients of a batch lie on each other");
  }
  if ((d->epilogue & HAS_AUX) != 0) {
    if (d->aux_type != -1 && type_of((uint32_t)d->aux_type) != p->out.type)
      return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "the auxiliary matrix is of D's type");
    if (d->aux_ld < p->m || d->aux_ld % 8 != 0)
      return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "EPILOGUE_AUX_LD %lld: not a multiple of 8 of at least %lld",
                       (long long)d->aux_ld, (long long)p->m);
    if (p->batch > 1 && (d->aux_batch_stride % 8 != 0 || d->aux_batch_stride < d->aux_ld * p->n))
      return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "EPILOGUE_AUX_BATCH_STRIDE %lld", (long long)d->aux_batch_stride);
  }
  return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t read_problem(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                   cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out, problem *p) {
  if (!sim_object_is(desc, LT_MARK_DESC)) return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "no live matmul descriptor");
  memcpy(&p->d, desc, sizeof p->d);
  cublasStatus_t s = read_matrix("A", a, &p->a);
  if (s == CUBLAS_STATUS_SUCCESS) s = read_matrix("B", b, &p->b);
  if (s == CUBLAS_STATUS_SUCCESS) s = read_matrix("C", c, &p->c);
  if (s == CUBLAS_STATUS_SUCCESS) s = read_matrix("D", out, &p->out);
  if (s != CUBLAS_STATUS_SUCCESS) return s;

  const lt_matmul_desc *d = &p->d;
  if ((d->transa != CUBLAS_OP_N && d->transa != CUBLAS_OP_T) || (d->transb != CUBLAS_OP_N && d->transb != CUBLAS_OP_T))
    return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "only CUBLAS_OP_N and CUBLAS_OP_T are modelled");
  if (d->transc != CUBLAS_OP_N || d->fill != CUBLAS_FILL_MODE_FULL)
    return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "C is neither transposed nor triangular");
  if (d->pointer_mode != CUBLASLT_POINTER_MODE_HOST && d->pointer_mode != CUBLASLT_POINTER_MODE_DEVICE)
    return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "pointer mode %d is not modelled", d->pointer_mode);
  p->m = p->out.rows;
  p->n = p->out.cols;
  p->k = d->transa == CUBLAS_OP_N ? p->a.cols : p->a.rows;
  p->batch = p->out.l->batch;
  int64_t am = d->transa == CUBLAS_OP_N ? p->a.rows : p->a.cols;
  int64_t bk = d->transb == CUBLAS_OP_N ? p->b.rows : p->b.cols;
  int64_t bn = d->transb == CUBLAS_OP_N ? p->b.cols : p->b.rows;
  if (am != p->m || bk != p->k || bn != p->n || p->c.rows != p->m || p->c.cols != p->n)
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE,
                     "shapes do not fit: op(A) (%lld, %lld), op(B) (%lld, %lld), C (%lld, %lld), D (%lld, %lld)",
                     (long long)am, (long long)p->k, (long long)bk, (long long)bn, (long long)p->c.rows,
                     (long long)p->c.cols, (long long)p->m, (long long)p->n);
  if (p->a.l->batch != p->batch || p->b.l->batch != p->batch || p->c.l->batch != p->batch)
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "batches of A %d, B %d, C %d, D %d", p->a.l->batch, p->b.l->batch,
                     p->c.l->batch, p->out.l->batch);
  if (p->c.l->order != p->out.l->order) return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "C and D differ in order");
  int64_t extent = (p->m - 1) * p->out.row_stride + (p->n - 1) * p->out.col_stride + 1;
  if (p->batch > 1 && p->out.batch_stride < extent)
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "the matrices of D's batch lie on each other");
  s = check_types(p);
  return s != CUBLAS_STATUS_SUCCESS ? s : check_epilogue(p);
}

/* ---- algorithms ---- */

static uint32_t types_of(const problem *p) {
  return (uint32_t)p->d.compute << 16 | (uint32_t)p->a.type << 8 | (uint32_t)p->c.type;
}

static size_t workspace_of(way w, const problem *p) {
  if (w == WAY_SPLIT_K) return (size_t)(3 * p->m * p->n * p->batch) * sizeof(float);
  return w == WAY_STREAM_K ? (size_t)1 << 20 : 0;
}

/* Bytes that every matrix, leading dimension and batch stride is to be a multiple of. */
static size_t alignment_of(way w, const matrix *x) {
  return w == WAY_ALIGNED || w == WAY_SPLIT_K ? 16 : sim_type_size(x->type);
}

static bool strides_fit(way w, const matrix *x) {
  size_t size = sim_type_size(x->type), align = alignment_of(w, x);
  return (size_t)x->l->ld * size % align == 0 && (x->l->batch == 1 || (size_t)x->batch_stride * size % align == 0);
}

static bool way_fits(way w, const problem *p) {
  if (w == WAY_SPLIT_K && p->k < 32) return false;
  return strides_fit(w, &p->a) && strides_fit(w, &p->b) && strides_fit(w, &p->c) && strides_fit(w, &p->out);
}

static bool aligned(const void *pointer, size_t bytes) { return (uintptr_t)pointer % bytes == 0; }

/* The bias and the auxiliary matrix too: the heuristic looks at the pointers in the descriptor. */
static bool epilogue_is_aligned(way w, const problem *p) {
  size_t align = alignment_of(w, &p->out);
  return (!epilogue_uses_bias_pointer(p->d.epilogue) || aligned(p->d.bias, align)) &&
         ((p->d.epilogue & HAS_AUX) == 0 || aligned(p->d.aux, 16));
}

static cublasLtMatmulAlgo_t algo_of(way w, const problem *p) {
  cublasLtMatmulAlgo_t out = {0};
  algo a = {.mark = LT_MARK_ALGO, .id = w, .types = types_of(p)};
  memcpy(&out, &a, sizeof a);
  return out;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t wanted, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *returned) {
  if (!sim_object_is(handle, LT_MARK_HANDLE)) return LT_REFUSE(CUBLAS_STATUS_NOT_INITIALIZED, "not a live handle");
  if (requested <= 0 || results == NULL || returned == NULL)
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "no room for results");
  *returned = 0;
  if (!sim_object_is(wanted, LT_MARK_PREFERENCE)) return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "no live preference");
  if (sim_call_fails("cublasLtMatmulAlgoGetHeuristic")) return CUBLAS_STATUS_INTERNAL_ERROR;
  const lt_preference *pref = (const lt_preference *)wanted;
  if (pref->search != CUBLASLT_SEARCH_BEST_FIT)
    return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED, "search mode %u is not modelled", pref->search);
  problem p;
  cublasStatus_t s = read_problem(desc, a, b, c, out, &p);
  if (s != CUBLAS_STATUS_SUCCESS) return s;
  int order[WAYS];
  sim_library_shuffle(order, WAYS, (uint64_t)(p.m * 31 + p.n * 17 + p.k));
  for (int i = 0; i < WAYS && *returned < requested; i++) {
    way w = (way)order[i];
    if (!way_fits(w, &p) || workspace_of(w, &p) > pref->workspace || !epilogue_is_aligned(w, &p)) continue;
    if (pref->align_a < alignment_of(w, &p.a) || pref->align_b < alignment_of(w, &p.b) ||
        pref->align_c < alignment_of(w, &p.c) || pref->align_d < alignment_of(w, &p.out))
      continue;
    if (w == WAY_SPLIT_K && (pref->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) == 0) continue;
    results[(*returned)++] = (cublasLtMatmulHeuristicResult_t){
        .algo = algo_of(w, &p), .workspaceSize = workspace_of(w, &p), .state = CUBLAS_STATUS_SUCCESS, .wavesCount = 1};
  }
  if (*returned == 0)
    return LT_REFUSE(CUBLAS_STATUS_NOT_SUPPORTED,
                     "no algorithm fits the alignment and the workspace that were asked for");
  return CUBLAS_STATUS_SUCCESS;
}

/* NULL: the best that needs no more than the workspace given, as the real library chooses */
static cublasStatus_t choose(const problem *p, const cublasLtMatmulAlgo_t *given, way *w) {
  if (given == NULL) {
    *w = WAY_ANY;
    return CUBLAS_STATUS_SUCCESS;
  }
  algo a;
  memcpy(&a, given, sizeof a);
  if (a.mark != LT_MARK_ALGO || a.id >= WAYS)
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "the algorithm does not come from cublasLtMatmulAlgoGetHeuristic");
  *w = (way)a.id;
  if (a.types != types_of(p) || !way_fits(*w, p))
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "the algorithm was found for other types or layouts");
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                       const cublasLtMatmulAlgo_t *given, cublasLtMatmulHeuristicResult_t *result) {
  if (!sim_object_is(handle, LT_MARK_HANDLE)) return LT_REFUSE(CUBLAS_STATUS_NOT_INITIALIZED, "not a live handle");
  if (given == NULL || result == NULL) return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "no algorithm, or no result");
  problem p;
  way w = WAY_ANY;
  cublasStatus_t s = read_problem(desc, a, b, c, out, &p);
  if (s == CUBLAS_STATUS_SUCCESS) s = choose(&p, given, &w);
  if (s != CUBLAS_STATUS_SUCCESS) return s;
  result->workspaceSize = workspace_of(w, &p);
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product ---- */

typedef struct task {
  problem p;
  const void *a, *b, *c;
  void *out, *workspace;
  size_t workspace_bytes;
  const void *alpha_at, *beta_at; /* in device memory, or NULL */
  double alpha, beta;
} task;

static double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

static double gelu_slope(double x) {
  double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

/* op(x) (rows, cols) of one batch, packed, as the cores see it */
static double *load_operand(const task *t, const matrix *x, bool transposed, const void *base, int64_t batch) {
  int64_t rows = transposed ? x->cols : x->rows, cols = transposed ? x->rows : x->cols;
  int64_t by_row = transposed ? x->col_stride : x->row_stride, by_col = transposed ? x->row_stride : x->col_stride;
  double *out = sim_scratch((size_t)(rows * cols), sizeof *out);
  for (int64_t i = 0; i < rows; i++)
    sim_unpack(x->type, base, batch * x->batch_stride + i * by_row, cols, by_col, out + i * cols);
  if (t->p.d.compute == CUBLAS_COMPUTE_32F_FAST_TF32)
    for (int64_t i = 0; i < rows * cols; i++) out[i] = sim_to_tf32(out[i]);
  return out;
}

/* bias gradient of an operand: sums over k of x(i, k), i < n */
static void sum_operand(const task *t, int64_t batch, const double *x, int64_t n, int64_t by_n, int64_t by_k) {
  for (int64_t i = 0; i < n; i++) {
    double sum = 0;
    for (int64_t p = 0; p < t->p.k; p++) sum += x[i * by_n + p * by_k];
    sim_store(t->p.out.type, t->p.d.bias, batch * t->p.d.bias_batch_stride + i, sum);
  }
}

/* Every step of an epilogue rounds to float32, or float64 for float64. */
static double step(const task *t, double v) { return t->p.out.type == SIM_F64 ? v : (float)v; }

/* One column of D from its sums (one every n). */
static void finish_column(const task *t, int64_t batch, int64_t j, const double *sum, double *bias_gradient) {
  const problem *p = &t->p;
  const lt_matmul_desc *d = &p->d;
  for (int64_t i = 0; i < p->m; i++) {
    int64_t at = batch * p->out.batch_stride + i * p->out.row_stride + j * p->out.col_stride;
    int64_t c_at = batch * p->c.batch_stride + i * p->c.row_stride + j * p->c.col_stride;
    int64_t aux_at = batch * d->aux_batch_stride + j * d->aux_ld + i;
    double v = step(t, t->alpha * step(t, sum[i * p->n]));
    if (t->beta != 0) v = step(t, v + step(t, t->beta * sim_load(p->c.type, t->c, c_at)));
    if ((d->epilogue & HAS_BIAS) != 0)
      v = step(t, v + sim_load(p->out.type, d->bias, batch * d->bias_batch_stride + i));
    if ((d->epilogue & HAS_RELU) != 0) v = v > 0 || isnan(v) ? v : 0;
    if ((d->epilogue & HAS_GELU) != 0) {
      if ((d->epilogue & HAS_AUX) != 0) sim_store(p->out.type, d->aux, aux_at, v);
      v = gelu(v);
    }
    if ((d->epilogue & HAS_DGELU) != 0) v = step(t, v * gelu_slope(sim_load(p->out.type, d->aux, aux_at)));
    if (bias_gradient != NULL) bias_gradient[i] += v;
    sim_store(p->out.type, t->out, at, v);
  }
}

static void run_matmul(void *data, int device) {
  (void)device;
  task *t = data;
  const problem *p = &t->p;
  sim_type scale = p->d.scale == CUDA_R_64F ? SIM_F64 : SIM_F32;
  if (t->alpha_at != NULL) t->alpha = sim_load(scale, t->alpha_at, 0);
  if (t->beta_at != NULL) t->beta = sim_load(scale, t->beta_at, 0);
  if (t->workspace_bytes > 0) memset(t->workspace, 0xff, t->workspace_bytes); /* partial sums lie there */
  bool output_bgrad = (p->d.epilogue & HAS_BGRAD) != 0;
  for (int64_t batch = 0; batch < p->batch; batch++) {
    double *a = load_operand(t, &p->a, p->d.transa == CUBLAS_OP_T, t->a, batch);
    double *b = load_operand(t, &p->b, p->d.transb == CUBLAS_OP_T, t->b, batch);
    double *sum = sim_scratch((size_t)(p->m * p->n), sizeof *sum);
    double *bias_gradient = output_bgrad ? sim_scratch((size_t)p->m, sizeof *bias_gradient) : NULL;
    sim_product(p->m, p->n, p->k, a, p->k, 1, b, p->n, 1, sum);
    if (p->d.epilogue == CUBLASLT_EPILOGUE_BGRADA) sum_operand(t, batch, a, p->m, p->k, 1);
    if (p->d.epilogue == CUBLASLT_EPILOGUE_BGRADB) sum_operand(t, batch, b, p->n, 1, p->n);
    for (int64_t j = 0; j < p->n; j++) finish_column(t, batch, j, sum + j, bias_gradient);
    for (int64_t i = 0; output_bgrad && i < p->m; i++)
      sim_store(p->out.type, p->d.bias, batch * p->d.bias_batch_stride + i, bias_gradient[i]);
    free(bias_gradient);
    free(sum);
    free(b);
    free(a);
  }
}

static size_t bytes_of(const matrix *x, int64_t batch) {
  int64_t last = (batch - 1) * x->batch_stride + (x->rows - 1) * x->row_stride + (x->cols - 1) * x->col_stride;
  return (size_t)(last + 1) * sim_type_size(x->type);
}

static void add_epilogue_ranges(sim_ranges *r, const problem *p) {
  const lt_matmul_desc *d = &p->d;
  size_t size = sim_type_size(p->out.type);
  if (epilogue_uses_bias_pointer(d->epilogue)) {
    int64_t length = d->epilogue == CUBLASLT_EPILOGUE_BGRADB ? p->n : p->m;
    sim_ranges_add(r, d->bias, (size_t)((p->batch - 1) * d->bias_batch_stride + length) * size,
                   (d->epilogue & HAS_BIAS) == 0);
  }
  if ((d->epilogue & HAS_AUX) != 0)
    sim_ranges_add(r, d->aux, (size_t)((p->batch - 1) * d->aux_batch_stride + (p->n - 1) * d->aux_ld + p->m) * size,
                   (d->epilogue & HAS_DGELU) == 0);
}

static cublasStatus_t check_pointers(const task *t, way w, size_t workspace_given) {
  const problem *p = &t->p;
  if (t->a == NULL || t->b == NULL || t->c == NULL || t->out == NULL)
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "A, B, C and D are all needed (C may be D)");
  if (epilogue_uses_bias_pointer(p->d.epilogue) && p->d.bias == NULL)
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "epilogue %u without BIAS_POINTER", p->d.epilogue);
  if ((p->d.epilogue & HAS_AUX) != 0 && p->d.aux == NULL)
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "epilogue %u without EPILOGUE_AUX_POINTER", p->d.epilogue);
  if (!aligned(t->a, alignment_of(w, &p->a)) || !aligned(t->b, alignment_of(w, &p->b)) ||
      !aligned(t->c, alignment_of(w, &p->c)) || !aligned(t->out, alignment_of(w, &p->out)) ||
      !epilogue_is_aligned(w, p))
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "algorithm %d needs pointers at multiples of %zu bytes", (int)w,
                     alignment_of(w, &p->out));
  if (t->c == t->out && (p->c.l->ld != p->out.l->ld || (p->batch > 1 && p->c.batch_stride != p->out.batch_stride)))
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "C and D share memory with different layouts");
  if (workspace_given > 0 && (t->workspace == NULL || !aligned(t->workspace, 16)))
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "a workspace of %zu bytes that is NULL or not 16-byte aligned",
                     workspace_given);
  if (workspace_given < t->workspace_bytes)
    return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "algorithm %d needs a workspace of %zu bytes, not %zu", (int)w,
                     t->workspace_bytes, workspace_given);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *out,
                              cublasLtMatrixLayout_t out_layout, const cublasLtMatmulAlgo_t *given, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (!sim_object_is(handle, LT_MARK_HANDLE)) return LT_REFUSE(CUBLAS_STATUS_NOT_INITIALIZED, "not a live handle");
  if (sim_call_fails("cublasLtMatmul")) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (alpha == NULL || beta == NULL) return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "alpha or beta is NULL");
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED; /* on request */
  if (device != handle->device) {
    sim_fault("wrong device", "cublasLtMatmul: a handle of device %d is used on device %d", handle->device, device);
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  task t = {.a = a, .b = b, .c = c, .out = out, .workspace = workspace};
  way w = WAY_ANY;
  cublasStatus_t s = read_problem(desc, a_layout, b_layout, c_layout, out_layout, &t.p);
  if (s == CUBLAS_STATUS_SUCCESS) s = choose(&t.p, given, &w);
  if (s != CUBLAS_STATUS_SUCCESS) return s;
  t.workspace_bytes = workspace_of(w, &t.p);
  s = check_pointers(&t, w, workspace_bytes);
  if (s != CUBLAS_STATUS_SUCCESS) return s;

  sim_ranges r = {0};
  bool on_device = t.p.d.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
  sim_type scale = t.p.d.scale == CUDA_R_64F ? SIM_F64 : SIM_F32;
  if (on_device) {
    t.alpha_at = alpha;
    t.beta_at = beta;
    sim_ranges_add(&r, alpha, sim_type_size(scale), 0);
    sim_ranges_add(&r, beta, sim_type_size(scale), 0);
  } else {
    t.alpha = sim_load(scale, alpha, 0);
    t.beta = sim_load(scale, beta, 0);
  }
  sim_ranges_add(&r, a, bytes_of(&t.p.a, t.p.batch), 0);
  sim_ranges_add(&r, b, bytes_of(&t.p.b, t.p.batch), 0);
  if (on_device || t.beta != 0) sim_ranges_add(&r, c, bytes_of(&t.p.c, t.p.batch), 0);
  sim_ranges_add(&r, out, bytes_of(&t.p.out, t.p.batch), 1);
  add_epilogue_ranges(&r, &t.p);
  sim_ranges_add(&r, workspace, t.workspace_bytes, 1);
  if (out == a || out == b) {
    sim_fault("overlap", "cublasLtMatmul: D is A or B");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (sim_ranges_overlap(&r, __func__)) return CUBLAS_STATUS_INVALID_VALUE;
  /* the layouts may be destroyed before the work runs */
  t.p.a.l = t.p.b.l = t.p.c.l = t.p.out.l = NULL;
  cudaError_t e = sim_enqueue(stream, "cublasLtMatmul", run_matmul, &t, sizeof t, r.count, r.range);
  return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
