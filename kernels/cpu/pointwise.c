/* pointwise.c: every row of ops.def as three inner loops (float, double, int64) over chunks of the operands.
 *
 * An operand that is already contiguous in the compute type is read and written in place; any other is converted through
 * a stack buffer of TL_CHUNK elements, so dtypes and strides multiply neither the code nor the memory. */
#include "cpu.h"

#include "convert.h"
#include "formula.h"

#define IN (TL_MAX_OPERANDS - 1)

typedef void (*loop_f32)(int n, float *restrict out, const float *const *in, double p, double q);
typedef void (*loop_f64)(int n, double *restrict out, const double *const *in, double p, double q);
typedef void (*loop_i64)(int n, int64_t *restrict out, const int64_t *const *in, double p, double q);

/* out may be one of the inputs (in-place), always element for element: the simd pragma is right all the same. */
#define LOOP(name, ...)                                                               \
  static void SUFFIX(name)(int n, T *out, const T *const *in, double p_, double q_) { \
    const T p = (T)p_, q = (T)q_;                                                     \
    (void)p, (void)q;                                                                 \
    __VA_ARGS__                                                                       \
  }
#define UNARY_LOOP(name, f)                                                        \
  LOOP(                                                                            \
      name, const T *i0 = in[0]; _Pragma("omp simd") for (int i = 0; i < n; i++) { \
        const T x = i0[i];                                                         \
        out[i] = (T)(f);                                                           \
      })
#define UNARY_GRAD_LOOP(name, df)                                                                              \
  LOOP(                                                                                                        \
      name##_grad, const T *i0 = in[0]; const T *i1 = in[1]; _Pragma("omp simd") for (int i = 0; i < n; i++) { \
        const T g = i0[i], x = i1[i], y = x;                                                                   \
        (void)g, (void)x, (void)y;                                                                             \
        out[i] = (T)(df);                                                                                      \
      })
#define BINARY_LOOP(name, f)                                                                            \
  LOOP(                                                                                                 \
      name, const T *i0 = in[0]; const T *i1 = in[1]; _Pragma("omp simd") for (int i = 0; i < n; i++) { \
        const T a = i0[i], b = i1[i];                                                                   \
        out[i] = (T)(f);                                                                                \
      })
#define BINARY_GRAD_LOOP(name, df)                                         \
  LOOP(                                                                    \
      name, const T *i0 = in[0]; const T *i1 = in[1]; const T *i2 = in[2]; \
      _Pragma("omp simd") for (int i = 0; i < n; i++) {                    \
        const T g = i0[i], a = i1[i], b = i2[i];                           \
        (void)g, (void)a, (void)b;                                         \
        out[i] = (T)(df);                                                  \
      })
#define TERNARY_LOOP(name, f)                                              \
  LOOP(                                                                    \
      name, const T *i0 = in[0]; const T *i1 = in[1]; const T *i2 = in[2]; \
      _Pragma("omp simd") for (int i = 0; i < n; i++) {                    \
        const T a = i0[i], b = i1[i], c = i2[i];                           \
        out[i] = (T)(f);                                                   \
      })

#define EXTRA_LOOPS                    \
  BINARY_LOOP(add_scaled, a + p * b)   \
  TERNARY_LOOP(addcmul, a + p * b * c) \
  TERNARY_LOOP(addcdiv, a + p * b / c) \
  BINARY_LOOP(lerp, a + p * (b - a))   \
  TERNARY_LOOP(where, a != 0 ? b : c)

/* kinds that integers do not compute in */
#define ROW_FLOAT(x) x
#define ROW_ANY(x) x
#define ROW_BOOL(x) x
#define SUFFIX(name) TL_PASTE(name, f32)
#define T float
#define TL_C(c) ((float)(c))
#define TL_UNARY(name, kind, f, df, saves) UNARY_LOOP(name, f) UNARY_GRAD_LOOP(name, df)
#define TL_UNARY1 TL_UNARY
#define TL_UNARY2 TL_UNARY
#define TL_BINARY(name, kind, f, da, db, saves) \
  BINARY_LOOP(name, f) BINARY_GRAD_LOOP(name##_da, da) BINARY_GRAD_LOOP(name##_db, db)
#include "ops/ops.def"
EXTRA_LOOPS
#undef SUFFIX
#undef T
#undef TL_C

#define SUFFIX(name) TL_PASTE(name, f64)
#define T double
#define TL_C(c) (c)
#define TL_UNARY(name, kind, f, df, saves) UNARY_LOOP(name, f) UNARY_GRAD_LOOP(name, df)
#define TL_UNARY1 TL_UNARY
#define TL_UNARY2 TL_UNARY
#define TL_BINARY(name, kind, f, da, db, saves) \
  BINARY_LOOP(name, f) BINARY_GRAD_LOOP(name##_da, da) BINARY_GRAD_LOOP(name##_db, db)
#include "ops/ops.def"
EXTRA_LOOPS
#undef SUFFIX
#undef T
#undef TL_C

/* Integers: FLOAT rows never get here, and integers have no gradients. */
#define SUFFIX(name) TL_PASTE(name, i64)
#define T int64_t
#define INT_FLOAT(x)
#define INT_ANY(x) x
#define INT_BOOL(x) x
#define TL_UNARY(name, kind, f, df, saves) INT_##kind(UNARY_LOOP(name, f))
#define TL_UNARY1 TL_UNARY
/* clamp's bounds stay doubles: +-inf are no integers */
#define TL_UNARY2(name, kind, f, df, saves)                                                    \
  INT_##kind(static void SUFFIX(name)(int n, T *out, const T *const *in, double p, double q) { \
    for (int i = 0; i < n; i++) {                                                              \
      const T x = in[0][i];                                                                    \
      out[i] = (T)(f);                                                                         \
    }                                                                                          \
  })
#define TL_BINARY(name, kind, f, da, db, saves) INT_##kind(BINARY_LOOP(name, f))
#include "ops/ops.def"
BINARY_LOOP(add_scaled, a + p * b)
TERNARY_LOOP(addcmul, a + p * b * c)
TERNARY_LOOP(where, a != 0 ? b : c)
#undef SUFFIX
#undef T

static const struct {
  loop_f32 f32;
  loop_f64 f64;
  loop_i64 i64;
  int inputs;
} loops[TL_FNS] = {
#define I64_FLOAT(name) NULL
#define I64_ANY(name) name##_i64
#define I64_BOOL(name) name##_i64
#define TL_UNARY(name, kind, f, df, saves)                        \
  [TL_FN_##name] = {name##_f32, name##_f64, I64_##kind(name), 1}, \
  [TL_FN_##name##_grad] = {name##_grad_f32, name##_grad_f64, NULL, 2},
#define TL_UNARY1 TL_UNARY
#define TL_UNARY2 TL_UNARY
#define TL_BINARY(name, kind, f, da, db, saves)                   \
  [TL_FN_##name] = {name##_f32, name##_f64, I64_##kind(name), 2}, \
  [TL_FN_##name##_da] = {name##_da_f32, name##_da_f64, NULL, 3},  \
  [TL_FN_##name##_db] = {name##_db_f32, name##_db_f64, NULL, 3},
#include "ops/ops.def"
    [TL_FN_add_scaled] = {add_scaled_f32, add_scaled_f64, add_scaled_i64, 2},
    [TL_FN_addcmul] = {addcmul_f32, addcmul_f64, addcmul_i64, 3},
    [TL_FN_addcdiv] = {addcdiv_f32, addcdiv_f64, NULL, 3},
    [TL_FN_lerp] = {lerp_f32, lerp_f64, NULL, 2},
    [TL_FN_where] = {where_f32, where_f64, where_i64, 3},
};

/* ---- driving a loop over the iterator ---- */

/* One innermost row: `length` elements from the given operand addresses. Generated for each compute type. */
#define ROW(SUF, CT, DT)                                                                                         \
  static void row_##SUF(void (*loop)(int, CT *, const CT *const *, double, double), const tl_iter *it,           \
                        char *const *at, int64_t length, double p, double q) {                                   \
    int inputs = it->n - 1, inner = it->ndim - 1;                                                                \
    CT buffer[IN + 1][TL_CHUNK] __attribute__((aligned(64)));                                                    \
    const CT *in[IN];                                                                                            \
    bool direct[IN + 1];                                                                                         \
    for (int i = 0; i <= inputs; i++) {                                                                          \
      const tl_operand *o = &it->op[i];                                                                          \
      direct[i] = o->data != NULL && o->dtype == DT && (o->stride[inner] == (int64_t)sizeof(CT) || length == 1); \
      int first = length < TL_CHUNK ? (int)length : TL_CHUNK;                                                    \
      if (i > 0 && !direct[i] && o->stride[inner] == 0) { /* one value for the whole row */                      \
        CT v = 0;                                                                                                \
        if (o->data == NULL) v = (CT)o->constant;                                                                \
        else tl_load_##SUF(&v, o->dtype, at[i], 0, 1);                                                           \
        for (int k = 0; k < first; k++) buffer[i][k] = v;                                                        \
      }                                                                                                          \
    }                                                                                                            \
    for (int64_t done = 0; done < length; done += TL_CHUNK) {                                                    \
      int n = length - done < TL_CHUNK ? (int)(length - done) : TL_CHUNK;                                        \
      for (int i = 1; i <= inputs; i++) {                                                                        \
        const tl_operand *o = &it->op[i];                                                                        \
        const char *src = o->data == NULL ? NULL : at[i] + done * o->stride[inner];                              \
        if (direct[i]) in[i - 1] = (const CT *)src;                                                              \
        else {                                                                                                   \
          if (o->stride[inner] != 0) tl_load_##SUF(buffer[i], o->dtype, src, o->stride[inner], n);               \
          in[i - 1] = buffer[i];                                                                                 \
        }                                                                                                        \
      }                                                                                                          \
      char *dst = at[0] + done * it->op[0].stride[inner];                                                        \
      if (direct[0]) loop(n, (CT *)dst, in, p, q);                                                               \
      else {                                                                                                     \
        loop(n, buffer[0], in, p, q);                                                                            \
        tl_store_##SUF(dst, it->op[0].dtype, it->op[0].stride[inner], buffer[0], n);                             \
      }                                                                                                          \
    }                                                                                                            \
  }
ROW(f32, float, TL_FLOAT32)
ROW(f64, double, TL_FLOAT64)
ROW(i64, int64_t, TL_INT64)

static void run_row(int fn, int compute, const tl_iter *it, char *const *at, int64_t length, double p, double q) {
  if (compute == TL_FLOAT32) row_f32(loops[fn].f32, it, at, length, p, q);
  else if (compute == TL_FLOAT64) row_f64(loops[fn].f64, it, at, length, p, q);
  else row_i64(loops[fn].i64, it, at, length, p, q);
}

/* Elements first..end-1 of the row-major order of the iterator. */
static void run_range(int fn, int compute, const tl_iter *it, int64_t first, int64_t end, double p, double q) {
  int inner = it->ndim - 1;
  int64_t width = it->shape[inner], index[TL_MAX_DIMS];
  while (first < end) {
    int64_t rest = first / width, column = first % width;
    char *at[TL_MAX_OPERANDS];
    for (int d = inner - 1; d >= 0; d--) {
      index[d] = rest % it->shape[d];
      rest /= it->shape[d];
    }
    for (int i = 0; i < it->n; i++) {
      at[i] = it->op[i].data;
      if (at[i] == NULL) continue;
      at[i] += column * it->op[i].stride[inner];
      for (int d = 0; d < inner; d++) at[i] += index[d] * it->op[i].stride[d];
    }
    int64_t length = width - column < end - first ? width - column : end - first;
    run_row(fn, compute, it, at, length, p, q);
    first += length;
  }
}

tl_status tl_cpu_pointwise(int fn, int compute, const tl_iter *it, double p, double q) {
  if (it->numel == 0) return TL_OK;
  bool exists = compute == TL_FLOAT32   ? loops[fn].f32 != NULL
                : compute == TL_FLOAT64 ? loops[fn].f64 != NULL
                                        : loops[fn].i64 != NULL;
  if (!exists || loops[fn].inputs != it->n - 1)
    return TL_FAIL(TL_ERR_UNSUPPORTED, "pointwise", "function %d does not compute in %s", fn, tl_dtype_name(compute));
  if (it->numel < TL_PARALLEL_MIN) {
    if (it->ndim == 1) {
      char *at[TL_MAX_OPERANDS];
      for (int i = 0; i < it->n; i++) at[i] = it->op[i].data;
      run_row(fn, compute, it, at, it->numel, p, q);
    } else {
      run_range(fn, compute, it, 0, it->numel, p, q);
    }
    return TL_OK;
  }
  int64_t block = 16384, blocks = (it->numel + block - 1) / block;
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < blocks; b++)
    run_range(fn, compute, it, b * block, (b + 1) * block < it->numel ? (b + 1) * block : it->numel, p, q);
  return TL_OK;
}
