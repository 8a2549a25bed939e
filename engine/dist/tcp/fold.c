/* fold.c: the reduction of what the ranks sent. By rank, so that every rank's result has the same bits. */
#include "core/tensor.h"
#include "cpu/convert.h"
#include "dist/tcp/tcp.h"

#define BLOCK 512 /* elements in a running result: stays in the first cache */

/* NaN wins, as in the reductions of one process. */
#define ADD(a, b) (a + b)
#define LARGEST(a, b) (a != a || a > b ? a : b)
#define SMALLEST(a, b) (a != a || a < b ? a : b)
#define SAME(x) (x)

#define RUN(wide, load, expression)                                 \
  for (int r = 1; r < count; r++) {                                 \
    const stored *restrict next = (const stored *)parts[r] + begin; \
    for (int i = 0; i < n; i++) {                                   \
      wide b = load(next[i]);                                       \
      sum[i] = (wide)expression(sum[i], b);                         \
    }                                                               \
  }

/* One block: `type` in memory, folded in `wide`. */
#define FOLD(name, type, wide, load, store)                                                        \
  static void name(int op, int64_t begin, int n, int count, const void *const *parts, void *out) { \
    typedef type stored;                                                                           \
    wide sum[BLOCK];                                                                               \
    for (int i = 0; i < n; i++) sum[i] = load(((const stored *)parts[0])[begin + i]);              \
    if (op == TL_MAX) {                                                                            \
      RUN(wide, load, LARGEST)                                                                     \
    } else if (op == TL_MIN) {                                                                     \
      RUN(wide, load, SMALLEST)                                                                    \
    } else {                                                                                       \
      RUN(wide, load, ADD)                                                                         \
    }                                                                                              \
    for (int i = 0; i < n; i++) ((stored *)out)[begin + i] = (stored)store(sum[i]);                \
  }

FOLD(fold_f32, float, float, SAME, SAME)
FOLD(fold_f64, double, double, SAME, SAME)
FOLD(fold_f16, uint16_t, float, tl_half_to_float, tl_float_to_half)
FOLD(fold_bf16, uint16_t, float, tl_bf16_to_float, tl_float_to_bf16)
FOLD(fold_u8, uint8_t, uint8_t, SAME, SAME)

/* Sums of integers wrap around: in C only the unsigned ones do. Differing signs are seen by the signed comparison. */
#define FOLD_INT(name, type, unsigned_type)                                                        \
  static void name(int op, int64_t begin, int n, int count, const void *const *parts, void *out) { \
    type sum[BLOCK];                                                                               \
    for (int i = 0; i < n; i++) sum[i] = ((const type *)parts[0])[begin + i];                      \
    for (int r = 1; r < count; r++)                                                                \
      for (int i = 0; i < n; i++) {                                                                \
        type a = sum[i], b = ((const type *)parts[r])[begin + i];                                  \
        sum[i] = op == TL_MAX   ? (a > b ? a : b)                                                  \
                 : op == TL_MIN ? (a < b ? a : b)                                                  \
                                : (type)((unsigned_type)a + (unsigned_type)b);                     \
      }                                                                                            \
    for (int i = 0; i < n; i++) ((type *)out)[begin + i] = sum[i];                                 \
  }

FOLD_INT(fold_i64, int64_t, uint64_t)
FOLD_INT(fold_i32, int32_t, uint32_t)

/* Sum and max: any; min: all. */
static void fold_bool(int op, int64_t begin, int n, int count, const void *const *parts, void *out) {
  for (int i = 0; i < n; i++) {
    bool any = false, all = true;
    for (int r = 0; r < count; r++) {
      bool one = ((const uint8_t *)parts[r])[begin + i] != 0;
      any = any || one;
      all = all && one;
    }
    ((uint8_t *)out)[begin + i] = op == TL_MIN ? all : any;
  }
}

void tl_fold(int dtype, int op, int64_t n, int count, const void *const *parts, void *out) {
  for (int64_t begin = 0; begin < n; begin += BLOCK) {
    int some = n - begin < BLOCK ? (int)(n - begin) : BLOCK;
    switch (dtype) {
      case TL_FLOAT32: fold_f32(op, begin, some, count, parts, out); break;
      case TL_FLOAT64: fold_f64(op, begin, some, count, parts, out); break;
      case TL_FLOAT16: fold_f16(op, begin, some, count, parts, out); break;
      case TL_BFLOAT16: fold_bf16(op, begin, some, count, parts, out); break;
      case TL_INT64: fold_i64(op, begin, some, count, parts, out); break;
      case TL_INT32: fold_i32(op, begin, some, count, parts, out); break;
      case TL_UINT8: fold_u8(op, begin, some, count, parts, out); break;
      default: fold_bool(op, begin, some, count, parts, out);
    }
  }
}
