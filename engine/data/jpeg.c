/* jpeg.c: JPEG through libjpeg-turbo. Its errors come by longjmp, which never leaves this file. */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "data/image.h"

#define PIXELS_PER_BYTE 512 /* one bit for a block of 8x8 */
#define MAX_SCANS 1000      /* a progressive file of many empty scans costs time, not bytes */

typedef struct decoder {
  struct jpeg_decompress_struct jpeg;
  struct jpeg_error_mgr errors;
  struct jpeg_progress_mgr progress;
  jmp_buf failed;
  char message[JMSG_LENGTH_MAX];
  uint8_t *pixels;
} decoder;

static void fail(j_common_ptr info) {
  decoder *d = info->client_data;
  info->err->format_message(info, d->message);
  longjmp(d->failed, 1);
}

/* Damage that libjpeg would paint over is an error here; stray bytes between markers are harmless. */
static void warn(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code != JWRN_EXTRANEOUS_DATA) fail(info);
}

static void watch(j_common_ptr info) {
  decoder *d = info->client_data;
  if (d->jpeg.input_scan_number <= MAX_SCANS) return;
  snprintf(d->message, sizeof d->message, "more than %d scans", MAX_SCANS);
  longjmp(d->failed, 1);
}

static void read_rows(decoder *d) {
  size_t row = (size_t)d->jpeg.output_width * (size_t)d->jpeg.output_components;
  while (d->jpeg.output_scanline < d->jpeg.output_height) {
    JSAMPROW to = d->pixels + row * d->jpeg.output_scanline;
    jpeg_read_scanlines(&d->jpeg, &to, 1);
  }
  jpeg_finish_decompress(&d->jpeg);
}

static tl_status decode(tl_source *s, decoder *d, tl_tensor **out) {
  struct jpeg_decompress_struct *jpeg = &d->jpeg;
  if (setjmp(d->failed) != 0)
    return TL_FAIL(TL_ERR_FORMAT, s->op, "%s: the JPEG data is damaged (%s)", s->label,
                   tl_printable(d->message, strlen(d->message)));
  jpeg_create_decompress(jpeg);
  jpeg->client_data = d;
  d->progress.progress_monitor = watch;
  jpeg->progress = &d->progress;
  jpeg_stdio_src(jpeg, s->handle);
  jpeg_read_header(jpeg, TRUE);
  TL_TRY(tl_check_image(s, jpeg->image_width, jpeg->image_height, PIXELS_PER_BYTE));
  if (jpeg->num_components != 1 && jpeg->num_components != 3)
    return TL_FAIL(TL_ERR_UNSUPPORTED, s->op, "%s: a JPEG of %d components (CMYK), convert it to RGB", s->label,
                   jpeg->num_components);
  jpeg->out_color_space = jpeg->num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_start_decompress(jpeg);
  d->pixels = tl_host_alloc((size_t)jpeg->output_width * jpeg->output_height * (size_t)jpeg->output_components);
  if (d->pixels == NULL)
    return TL_FAIL(TL_ERR_MEMORY, s->op, "no memory for an image of %ux%u", jpeg->output_width, jpeg->output_height);
  read_rows(d);
  return tl_image_planes(d->pixels, jpeg->output_components, jpeg->output_components, jpeg->output_height,
                         jpeg->output_width, out);
}

tl_status tl_decode_jpeg(tl_source *s, tl_tensor **out) {
  decoder *d = tl_host_calloc(1, sizeof *d);
  if (d == NULL) return TL_FAIL(TL_ERR_MEMORY, s->op, "no memory for a JPEG decoder");
  d->jpeg.err = jpeg_std_error(&d->errors);
  d->jpeg.client_data = d;
  d->errors.error_exit = fail;
  d->errors.emit_message = warn;
  tl_status st = decode(s, d, out);
  jpeg_destroy_decompress(&d->jpeg);
  tl_host_free(d->pixels);
  tl_host_free(d);
  return st;
}
