/* create.c: ranges. */
#include "cpu.h"

#include "convert.h"

tl_status tl_cpu_range(tl_tensor *out, double first, double step) {
  char *dst = tl_data(out);
  int64_t size = (int64_t)tl_dtype_size(out->dtype);
  double buffer[TL_CHUNK];
  for (int64_t done = 0; done < out->numel; done += TL_CHUNK) {
    int n = out->numel - done < TL_CHUNK ? (int)(out->numel - done) : TL_CHUNK;
    for (int i = 0; i < n; i++) buffer[i] = first + (double)(done + i) * step;
    tl_store_f64(dst + done * size, out->dtype, size, buffer, n);
  }
  return TL_OK;
}
