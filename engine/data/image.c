/* image.c: which decoder an image file needs, and what decoders share. */
#include "data/image.h"

#include <stdio.h>
#include <string.h>

#include "core/tensor.h"

#define SLACK_BYTES 4096

tl_status tl_check_image(const tl_source *s, uint32_t width, uint32_t height, int64_t per_byte) {
  int64_t pixels = (int64_t)width * height;
  if (width == 0 || height == 0)
    return TL_FAIL(TL_ERR_FORMAT, s->op, "%s: an image of %ux%u pixels", s->label, width, height);
  if (pixels > TL_MAX_PIXELS)
    return TL_FAIL(TL_ERR_UNSUPPORTED, s->op, "%s: an image of %ux%u pixels, the most is %d in all", s->label, width,
                   height, TL_MAX_PIXELS);
  if (pixels / per_byte > s->size + SLACK_BYTES)
    return TL_FAIL(TL_ERR_FORMAT, s->op, "%s: claims %ux%u pixels in %lld bytes", s->label, width, height,
                   (long long)s->size);
  return TL_OK;
}

tl_status tl_image_planes(const uint8_t *pixels, int step, int channels, int64_t height, int64_t width,
                          tl_tensor **out) {
  int64_t shape[3] = {channels, height, width}, n = height * width;
  tl_tensor *t;
  TL_TRY(tl_empty(3, shape, TL_UINT8, TL_CPU, &t));
  uint8_t *to = tl_data(t);
  for (int c = 0; c < channels; c++)
    for (int64_t i = 0; i < n; i++) to[c * n + i] = pixels[i * step + c];
  *out = t;
  return TL_OK;
}

static tl_status decode(tl_source *s, tl_tensor **out) {
  unsigned char magic[8] = {0};
  TL_TRY(tl_source_read(s, magic, 8, "the image's signature"));
  rewind(s->handle);
  if (memcmp(magic, "\x89PNG\r\n\x1a\n", 8) == 0) return tl_decode_png(s, out);
  if (memcmp(magic, "\xff\xd8\xff", 3) == 0) return tl_decode_jpeg(s, out);
  return TL_FAIL(TL_ERR_FORMAT, s->op, "%s: neither PNG nor JPEG", s->label);
}

tl_status tl_read_image(const char *path, tl_tensor **out) {
  tl_source s;
  tl_status st = tl_source_open(&s, "image", path, false);
  if (st == TL_OK) st = decode(&s, out);
  tl_source_close(&s);
  return st;
}
