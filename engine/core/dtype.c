/* dtype.c: names, sizes and promotion of dtypes (PyTorch's rules). */
#include <string.h>

#include "core/tensor.h"

static const struct {
  const char *name;
  size_t bytes;
} dtypes[TL_DTYPES] = {
    [TL_FLOAT32] = {"float32", 4}, [TL_FLOAT16] = {"float16", 2}, [TL_BFLOAT16] = {"bfloat16", 2},
    [TL_FLOAT64] = {"float64", 8}, [TL_INT64] = {"int64", 8},     [TL_INT32] = {"int32", 4},
    [TL_UINT8] = {"uint8", 1},     [TL_BOOL] = {"bool", 1},
};

const char *tl_dtype_name(int dtype) { return dtype >= 0 && dtype < TL_DTYPES ? dtypes[dtype].name : NULL; }

size_t(tl_dtype_size)(int dtype) { return dtype >= 0 && dtype < TL_DTYPES ? dtypes[dtype].bytes : 0; }

tl_status tl_dtype_parse(const char *name, int *dtype) {
  static const struct {
    const char *name;
    int dtype;
  } aliases[] = {
      {"float", TL_FLOAT32}, {"half", TL_FLOAT16}, {"double", TL_FLOAT64}, {"long", TL_INT64}, {"int", TL_INT32}};
  for (int i = 0; i < TL_DTYPES; i++)
    if (strcmp(name, dtypes[i].name) == 0) return *dtype = i, TL_OK;
  for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
    if (strcmp(name, aliases[i].name) == 0) return *dtype = aliases[i].dtype, TL_OK;
  return TL_FAIL(TL_ERR_DTYPE, "dtype",
                 "there is no dtype '%s' (float32, float16, bfloat16, float64, int64, int32, uint8, bool)", name);
}

/* 0 bool, 1 integer, 2 floating */
static int category(int dtype) { return dtype == TL_BOOL ? 0 : tl_is_floating(dtype) ? 2 : 1; }

int tl_promote(int a, int b) {
  if (a == b) return a;
  int ca = category(a), cb = category(b);
  if (ca != cb) return ca > cb ? a : b;
  if (ca == 2) { /* float16 with bfloat16 meets in float32 */
    if (a == TL_FLOAT64 || b == TL_FLOAT64) return TL_FLOAT64;
    return TL_FLOAT32;
  }
  if (a == TL_INT64 || b == TL_INT64) return TL_INT64;
  return TL_INT32; /* int32 with uint8 */
}

int tl_result_type(const tl_tensor *a, const tl_tensor *b) {
  if (a->dtype == b->dtype) return a->dtype;
  if ((a->ndim == 0) != (b->ndim == 0)) {
    const tl_tensor *scalar = a->ndim == 0 ? a : b, *other = a->ndim == 0 ? b : a;
    if (category(scalar->dtype) <= category(other->dtype)) return other->dtype;
    return scalar->dtype;
  }
  return tl_promote(a->dtype, b->dtype);
}

bool tl_is_whole(double s) { return s >= -9007199254740992.0 && s <= 9007199254740992.0 && s == (double)(int64_t)s; }

int tl_result_type_scalar(const tl_tensor *t, double s) {
  if (tl_is_floating(t->dtype)) return t->dtype;
  if (!tl_is_whole(s)) return TL_FLOAT32;
  return t->dtype == TL_BOOL ? TL_INT64 : t->dtype;
}
