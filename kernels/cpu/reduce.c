/* reduce.c: reductions over the trailing dims of an iterator. */
#include "cpu.h"

#include "backend/reduce.h"
#include "convert.h"

/* Sum of the reduced block at `src`, in double, chunk by chunk. */
static double sum_block(const tl_iter *it, int lead, const char *src, int kind) {
  const tl_operand *in = &it->op[1];
  int inner = it->ndim - 1;
  bool none = lead == it->ndim; /* nothing is reduced: one element */
  int64_t rows = 1, width = none ? 1 : it->shape[inner];
  for (int d = lead; d < inner; d++) rows *= it->shape[d];
  double total = 0, buffer[TL_CHUNK];
  for (int64_t r = 0; r < rows; r++) {
    const char *at = src;
    int64_t rest = r;
    for (int d = inner - 1; d >= lead; d--) {
      at += rest % it->shape[d] * in->stride[d];
      rest /= it->shape[d];
    }
    for (int64_t done = 0; done < width; done += TL_CHUNK) {
      int n = width - done < TL_CHUNK ? (int)(width - done) : TL_CHUNK;
      tl_load_f64(buffer, in->dtype, at + done * (none ? 0 : in->stride[inner]), none ? 0 : in->stride[inner], n);
      for (int i = 0; i < n; i++) total += kind == TL_REDUCE_KIND_ANY ? buffer[i] != 0 : buffer[i];
    }
  }
  return total;
}

tl_status tl_cpu_reduce(int kind, const tl_iter *it, int reduced, double p) {
  (void)p;
  int lead = it->ndim - reduced;
  int64_t outs = 1;
  for (int d = 0; d < lead; d++) outs *= it->shape[d];
  const tl_operand *out = &it->op[0], *in = &it->op[1];
  for (int64_t o = 0; o < outs; o++) {
    char *dst = out->data;
    const char *src = in->data;
    int64_t rest = o;
    for (int d = lead - 1; d >= 0; d--) {
      dst += rest % it->shape[d] * out->stride[d];
      src += rest % it->shape[d] * in->stride[d];
      rest /= it->shape[d];
    }
    double y = sum_block(it, lead, src, kind);
    tl_store_f64(dst, out->dtype, 0, &y, 1);
  }
  return TL_OK;
}
