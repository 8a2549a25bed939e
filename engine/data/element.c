/* element.c: stored elements become tensor elements: byte order, and types that tensors do not have. */
#include <string.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "data/source.h"

static const struct {
  uint8_t dtype, bytes;
  const char *name;
} elements[TL_ELEMENTS] = {
    [TL_ELEMENT_F32] = {TL_FLOAT32, 4, "float32"},    [TL_ELEMENT_F16] = {TL_FLOAT16, 2, "float16"},
    [TL_ELEMENT_BF16] = {TL_BFLOAT16, 2, "bfloat16"}, [TL_ELEMENT_F64] = {TL_FLOAT64, 8, "float64"},
    [TL_ELEMENT_I64] = {TL_INT64, 8, "int64"},        [TL_ELEMENT_I32] = {TL_INT32, 4, "int32"},
    [TL_ELEMENT_U8] = {TL_UINT8, 1, "uint8"},         [TL_ELEMENT_BOOL] = {TL_BOOL, 1, "bool"},
    [TL_ELEMENT_I8] = {TL_INT32, 1, "int8"},          [TL_ELEMENT_I16] = {TL_INT32, 2, "int16"},
    [TL_ELEMENT_U16] = {TL_INT32, 2, "uint16"},       [TL_ELEMENT_U32] = {TL_INT64, 4, "uint32"},
};

tl_status tl_element_total(const tl_source *s, tl_element e, int ndim, const int64_t *shape, int64_t *bytes) {
  int64_t numel = 0;
  if (tl_check_shape(s->op, ndim, shape, elements[e].dtype, &numel) != TL_OK)
    return TL_FAIL(TL_ERR_FORMAT, s->op, "%s: %s", s->label, tl_last_error()->message);
  *bytes = numel * elements[e].bytes;
  return TL_OK;
}

static void swap_bytes(void *data, int64_t n, size_t size) {
  unsigned char *p = data;
  for (int64_t i = 0; i < n; i++, p += size)
    for (size_t a = 0, b = size - 1; a < b; a++, b--) {
      unsigned char t = p[a];
      p[a] = p[b];
      p[b] = t;
    }
}

#define WIDEN(from, to)                                              \
  for (int64_t i = 0; i < n; i++) {                                  \
    from v;                                                          \
    memcpy(&v, (const char *)src + i * (int64_t)sizeof v, sizeof v); \
    ((to *)dst)[i] = v;                                              \
  }

/* n native stored elements at src -> tensor elements at dst */
static void widen(tl_element e, void *dst, const void *src, int64_t n) {
  switch (e) {
    case TL_ELEMENT_I8: WIDEN(int8_t, int32_t) break;
    case TL_ELEMENT_I16: WIDEN(int16_t, int32_t) break;
    case TL_ELEMENT_U16: WIDEN(uint16_t, int32_t) break;
    case TL_ELEMENT_U32: WIDEN(uint32_t, int64_t) break;
    default: break;
  }
}

static bool host_is_big_endian(void) { return __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__; }

static tl_status read_widened(tl_source *s, tl_element e, bool swap, char *dst, int64_t n) {
  char buffer[8192];
  size_t stored = elements[e].bytes, size = tl_dtype_size(elements[e].dtype);
  int64_t step = (int64_t)(sizeof buffer / stored);
  for (int64_t done = 0; done < n; done += step) {
    int64_t count = n - done < step ? n - done : step;
    TL_TRY(tl_source_read(s, buffer, count * (int64_t)stored, "the data"));
    if (swap) swap_bytes(buffer, count, stored);
    widen(e, dst + done * (int64_t)size, buffer, count);
  }
  return TL_OK;
}

static tl_status fill(tl_source *s, tl_element e, bool big_endian, tl_tensor *t) {
  bool swap = big_endian != host_is_big_endian() && elements[e].bytes > 1;
  if (e >= TL_ELEMENT_I8) return read_widened(s, e, swap, tl_data(t), t->numel);
  TL_TRY(tl_source_read(s, tl_data(t), t->numel * elements[e].bytes, "the data"));
  if (swap) swap_bytes(tl_data(t), t->numel, elements[e].bytes);
  if (e == TL_ELEMENT_BOOL) {
    uint8_t *p = tl_data(t);
    for (int64_t i = 0; i < t->numel; i++) p[i] = p[i] != 0;
  }
  return TL_OK;
}

tl_status tl_source_tensor(tl_source *s, tl_element e, bool big_endian, int ndim, const int64_t *shape,
                           tl_tensor **out) {
  int64_t bytes;
  TL_TRY(tl_element_total(s, e, ndim, shape, &bytes));
  TL_TRY(tl_source_promise(s, bytes, "the data"));
  tl_tensor *t;
  TL_TRY(tl_empty(ndim, shape, elements[e].dtype, TL_CPU, &t));
  return tl_give(fill(s, e, big_endian, t), t, out);
}
