/* copy.c: copies with conversion between any dtypes and strides. */
#include "cpu.h"

#include "convert.h"

/* The type a conversion goes through: wide enough that nothing is lost which the target could hold. */
static int route(int to, int from) {
  bool integers = !tl_is_floating(to) && !tl_is_floating(from);
  if (integers) return TL_INT64;
  if (to == TL_FLOAT64 || from == TL_FLOAT64 || from == TL_INT64 || to == TL_INT64) return TL_FLOAT64;
  return TL_FLOAT32;
}

static void convert_row(char *dst, const tl_operand *to, int64_t to_stride, const char *src, const tl_operand *from,
                        int64_t from_stride, int64_t length) {
  union {
    float f32[TL_CHUNK];
    double f64[TL_CHUNK];
    int64_t i64[TL_CHUNK];
  } buffer;
  int through = route(to->dtype, from->dtype);
  for (int64_t done = 0; done < length; done += TL_CHUNK) {
    int n = length - done < TL_CHUNK ? (int)(length - done) : TL_CHUNK;
    if (through == TL_FLOAT32) {
      if (src == NULL)
        for (int i = 0; i < n; i++) buffer.f32[i] = (float)from->constant;
      else tl_load_f32(buffer.f32, from->dtype, src + done * from_stride, from_stride, n);
      tl_store_f32(dst + done * to_stride, to->dtype, to_stride, buffer.f32, n);
    } else if (through == TL_FLOAT64) {
      if (src == NULL)
        for (int i = 0; i < n; i++) buffer.f64[i] = from->constant;
      else tl_load_f64(buffer.f64, from->dtype, src + done * from_stride, from_stride, n);
      tl_store_f64(dst + done * to_stride, to->dtype, to_stride, buffer.f64, n);
    } else {
      tl_load_i64(buffer.i64, from->dtype, src + done * from_stride, from_stride, n);
      tl_store_i64(dst + done * to_stride, to->dtype, to_stride, buffer.i64, n);
    }
  }
}

/* The same dtype on both sides: only bytes move. */
static void move_row(char *dst, int64_t to_stride, const char *src, int64_t from_stride, int64_t length, size_t size) {
  if (to_stride == (int64_t)size && from_stride == (int64_t)size) {
    memmove(dst, src, (size_t)length * size);
    return;
  }
#define MOVE(S)                                  \
  for (int64_t i = 0; i < length; i++) {         \
    S v;                                         \
    memcpy(&v, src + i * from_stride, sizeof v); \
    memcpy(dst + i * to_stride, &v, sizeof v);   \
  }
  switch (size) {
    case 1: MOVE(uint8_t) break;
    case 2: MOVE(uint16_t) break;
    case 4: MOVE(uint32_t) break;
    default: MOVE(uint64_t) break;
  }
}

static void copy_range(const tl_iter *it, int64_t first, int64_t end) {
  int inner = it->ndim - 1;
  const tl_operand *to = &it->op[0], *from = &it->op[1];
  int64_t width = it->shape[inner], a = to->stride[inner], b = from->stride[inner];
  size_t size = tl_dtype_size(to->dtype);
  bool moves = to->dtype == from->dtype && from->data != NULL;
  while (first < end) {
    int64_t rest = first / width, column = first % width;
    char *dst = to->data + column * a;
    const char *src = from->data == NULL ? NULL : from->data + column * b;
    for (int d = inner - 1; d >= 0; d--) {
      int64_t i = rest % it->shape[d];
      rest /= it->shape[d];
      dst += i * to->stride[d];
      if (src != NULL) src += i * from->stride[d];
    }
    int64_t length = width - column < end - first ? width - column : end - first;
    if (moves) move_row(dst, a, src, b, length, size);
    else convert_row(dst, to, a, src, from, b, length);
    first += length;
  }
}

tl_status tl_cpu_copy(const tl_iter *it) {
  if (it->numel == 0) return TL_OK;
  if (it->numel < TL_PARALLEL_MIN) {
    copy_range(it, 0, it->numel);
    return TL_OK;
  }
  int64_t block = 16384, blocks = (it->numel + block - 1) / block;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < blocks; i++)
    copy_range(it, i * block, (i + 1) * block < it->numel ? (i + 1) * block : it->numel);
  return TL_OK;
}
