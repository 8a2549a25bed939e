/* png.c: PNG through libspng. 16-bit samples keep their high byte, palettes become RGB (or RGBA). */
#include <spng.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "data/image.h"

#define PIXELS_PER_BYTE (1032 * 8) /* deflate's best, one bit a pixel */
#define CHUNK_LIMIT (1 << 26)      /* of text, profiles and the like */

static tl_status damaged(const tl_source *s, int code) {
  int kind = code == SPNG_EMEM ? TL_ERR_MEMORY : TL_ERR_FORMAT;
  return TL_FAIL(kind, s->op, "%s: the PNG data is damaged (%s)", s->label, spng_strerror(code));
}

/* How many channels the tensor gets, of how many that are decoded, and how. */
static void choose(spng_ctx *png, const struct spng_ihdr *head, int *channels, int *step, int *format) {
  struct spng_trns unused;
  bool palette_alpha = head->color_type == SPNG_COLOR_TYPE_INDEXED && spng_get_trns(png, &unused) == 0;
  bool alpha = palette_alpha || head->color_type == SPNG_COLOR_TYPE_TRUECOLOR_ALPHA;
  *channels = *step = alpha ? 4 : 3;
  *format = alpha ? SPNG_FMT_RGBA8 : SPNG_FMT_RGB8;
  if (head->color_type == SPNG_COLOR_TYPE_GRAYSCALE) {
    *channels = 1;
    if (head->bit_depth <= 8) *step = 1, *format = SPNG_FMT_G8;
  } else if (head->color_type == SPNG_COLOR_TYPE_GRAYSCALE_ALPHA) {
    *channels = 2;
    *step = 4;
    *format = SPNG_FMT_RGBA8;
  }
}

/* Gray with alpha was decoded as R, G, B, A: keep R and A. */
static void squeeze_gray_alpha(uint8_t *pixels, int64_t n) {
  for (int64_t i = 0; i < n; i++) pixels[i * 4 + 1] = pixels[i * 4 + 3];
}

static tl_status decode(tl_source *s, spng_ctx *png, tl_tensor **out) {
  struct spng_ihdr head;
  int code, channels, step, format;
  if ((code = spng_set_png_file(png, s->handle)) != 0 || (code = spng_get_ihdr(png, &head)) != 0)
    return damaged(s, code);
  TL_TRY(tl_check_image(s, head.width, head.height, PIXELS_PER_BYTE));
  choose(png, &head, &channels, &step, &format);
  int flags = head.color_type == SPNG_COLOR_TYPE_INDEXED && channels == 4 ? SPNG_DECODE_TRNS : 0;
  size_t bytes = 0;
  if ((code = spng_decoded_image_size(png, format, &bytes)) != 0) return damaged(s, code);
  uint8_t *pixels = tl_host_alloc(bytes);
  if (pixels == NULL) return TL_FAIL(TL_ERR_MEMORY, s->op, "no memory for an image of %ux%u", head.width, head.height);
  code = spng_decode_image(png, pixels, bytes, format, flags);
  if (code == 0) code = spng_decode_chunks(png); /* to the end: the last checksum counts too */
  if (channels == 2) squeeze_gray_alpha(pixels, (int64_t)head.width * head.height);
  tl_status st = code == 0 ? tl_image_planes(pixels, step, channels, head.height, head.width, out) : damaged(s, code);
  tl_host_free(pixels);
  return st;
}

tl_status tl_decode_png(tl_source *s, tl_tensor **out) {
  spng_ctx *png = spng_ctx_new(0);
  if (png == NULL) return TL_FAIL(TL_ERR_MEMORY, s->op, "no memory for a PNG decoder");
  spng_set_chunk_limits(png, CHUNK_LIMIT, CHUNK_LIMIT);
  tl_status st = decode(s, png, out);
  spng_ctx_free(png);
  return st;
}
