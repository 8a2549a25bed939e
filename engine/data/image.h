/* image.h: decoders of image files. */
#ifndef TL_DATA_IMAGE_H
#define TL_DATA_IMAGE_H

#include "data/source.h"

#define TL_MAX_PIXELS (1 << 28)

/* s is at the file's first byte; its handle is a FILE. Both give uint8 (C, H, W). */
tl_status tl_decode_png(tl_source *s, tl_tensor **out);
tl_status tl_decode_jpeg(tl_source *s, tl_tensor **out);

/* Could a file of this size hold such an image? `per_byte`: the most pixels that one byte can stand for. */
tl_status tl_check_image(const tl_source *s, uint32_t width, uint32_t height, int64_t per_byte);
/* `step` interleaved channels a pixel; the first `channels` of them become planes. */
tl_status tl_image_planes(const uint8_t *pixels, int step, int channels, int64_t height, int64_t width,
                          tl_tensor **out);

#endif
