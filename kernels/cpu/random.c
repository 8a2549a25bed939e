/* random.c: filling tensors with the numbers of a Philox stream. Element i gets number offset + i, so that neither
 * threads nor strides change what comes out. */
#include "cpu.h"

#include "backend/random.h"
#include "convert.h"
#include "philox.h"

/* Numbers first..first+n-1 of the stream as raw words; n <= TL_CHUNK. */
static void words(uint32_t *out, uint64_t seed, uint64_t first, int n) {
  for (int i = 0; i < n;) {
    tl_philox b = tl_philox_block(seed, (first + (uint64_t)i) / 4);
    for (unsigned w = (unsigned)((first + (uint64_t)i) % 4); w < 4 && i < n; w++) out[i++] = b.word[w];
  }
}

static double normal(uint64_t seed, uint64_t at) {
  tl_philox b = tl_philox_block(seed, at / 4);
  unsigned w = (unsigned)(at % 4), pair = w & ~1u;
  float radius = sqrtf(-2.0f * f32_log(tl_open_f32(b.word[pair])));
  float angle = 6.2831853071795865f * tl_unit_f32(b.word[pair + 1]);
  return radius * (w & 1 ? sinf(angle) : cosf(angle));
}

static void chunk(double *out, int kind, uint64_t seed, uint64_t first, int n, double p, double q) {
  if (kind == TL_RANDOM_NORMAL) {
    for (int i = 0; i < n; i++) out[i] = p + q * normal(seed, first + (uint64_t)i);
    return;
  }
  uint32_t w[TL_CHUNK];
  words(w, seed, first, n);
  switch (kind) {
    case TL_RANDOM_UNIFORM:
      for (int i = 0; i < n; i++) out[i] = p + (q - p) * tl_unit_f32(w[i]);
      break;
    case TL_RANDOM_INTEGER: /* p + floor(u * (q-p)), without floating-point bias for ranges below 2^32 */
      for (int i = 0; i < n; i++) {
        uint64_t range = (uint64_t)(q - p);
        out[i] = p + (range >> 32 == 0 ? (double)((uint64_t)w[i] * range >> 32)
                                       : floor((q - p) * ((double)w[i] * 0x1p-32)));
      }
      break;
    case TL_RANDOM_BERNOULLI:
      for (int i = 0; i < n; i++) out[i] = tl_unit_f32(w[i]) < (float)p ? 1 : 0;
      break;
  }
}

static void range(int kind, const tl_iter *it, uint64_t seed, uint64_t offset, double p, double q, int64_t first, int64_t end) {
  const tl_operand *o = &it->op[0];
  int inner = it->ndim - 1;
  int64_t width = it->shape[inner];
  double buffer[TL_CHUNK];
  while (first < end) {
    int64_t rest = first / width, column = first % width;
    char *dst = o->data + column * o->stride[inner];
    for (int d = inner - 1; d >= 0; d--) {
      dst += rest % it->shape[d] * o->stride[d];
      rest /= it->shape[d];
    }
    int64_t n = width - column;
    if (n > end - first) n = end - first;
    if (n > TL_CHUNK) n = TL_CHUNK;
    chunk(buffer, kind, seed, offset + (uint64_t)first, (int)n, p, q);
    tl_store_f64(dst, o->dtype, o->stride[inner], buffer, (int)n);
    first += n;
  }
}

tl_status tl_cpu_random(int kind, const tl_iter *it, uint64_t seed, uint64_t offset, double p, double q) {
  int64_t block = 16384, blocks = (it->numel + block - 1) / block;
#pragma omp parallel for schedule(static) if (it->numel >= TL_PARALLEL_MIN / 4)
  for (int64_t b = 0; b < blocks; b++)
    range(kind, it, seed, offset, p, q, b * block, (b + 1) * block < it->numel ? (b + 1) * block : it->numel);
  return TL_OK;
}
