/* test_image.c: PNG of every colour type and JPEG, and damage in both. */
#include "check_file.h"

#include <jpeglib.h> /* after stdio.h */

/* ---- a PNG writer for tests ---- */

static size_t put_chunk(unsigned char *to, const char *type, const void *data, size_t n) {
  unsigned char *p = to;
  for (int i = 3; i >= 0; i--) *p++ = (unsigned char)(n >> 8 * i);
  memcpy(p, type, 4);
  memcpy(p + 4, data, n);
  unsigned long crc = crc32(0, p, (unsigned)(n + 4));
  p += n + 4;
  for (int i = 3; i >= 0; i--) *p++ = (unsigned char)(crc >> 8 * i);
  return (size_t)(p - to);
}

/* rows: raw scanlines, each with its filter byte. Returns the file's size. */
static size_t make_png(unsigned char *to, uint32_t width, uint32_t height, int depth, int color, const void *rows,
                       size_t bytes, const void *palette, size_t palette_bytes, const void *trns, size_t trns_bytes) {
  unsigned char head[13] = {0, 0, 0, 0, 0, 0, 0, 0, (unsigned char)depth, (unsigned char)color, 0, 0, 0}, packed[4096];
  for (int i = 0; i < 4; i++)
    head[i] = (unsigned char)(width >> (24 - 8 * i)), head[4 + i] = (unsigned char)(height >> (24 - 8 * i));
  uLongf n = sizeof packed;
  ck_assert_int_eq(compress(packed, &n, rows, bytes), Z_OK);
  size_t at = 8;
  memcpy(to, "\x89PNG\r\n\x1a\n", 8);
  at += put_chunk(to + at, "IHDR", head, 13);
  if (palette_bytes > 0) at += put_chunk(to + at, "PLTE", palette, palette_bytes);
  if (trns_bytes > 0) at += put_chunk(to + at, "tRNS", trns, trns_bytes);
  at += put_chunk(to + at, "IDAT", packed, n);
  return at + put_chunk(to + at, "IEND", "", 0);
}

static tl_tensor *read_png(uint32_t width, uint32_t height, int depth, int color, const void *rows, size_t bytes,
                           const void *palette, size_t palette_bytes, const void *trns, size_t trns_bytes) {
  unsigned char file[8192];
  tl_tensor *t;
  size_t n = make_png(file, width, height, depth, color, rows, bytes, palette, palette_bytes, trns, trns_bytes);
  ck_ok(tl_read_image(write_file("i.png", file, n), &t));
  ck_assert(tl_dtype_of(t) == TL_UINT8 && tl_ndim(t) == 3 && tl_size(t, 1) == height && tl_size(t, 2) == width);
  return t;
}

START_TEST(reads_every_png_color_type) {
  tl_tensor *t = read_png(2, 2, 8, 0, "\0\1\2\0\3\4", 6, NULL, 0, NULL, 0); /* gray */
  ck_tensor(t, 0, 1, 2, 3, 4);
  tl_tensor_free(t);
  t = read_png(3, 1, 1, 0, "\0\xa0", 2, NULL, 0, NULL, 0); /* one bit */
  ck_tensor(t, 0, 255, 0, 255);
  tl_tensor_free(t);
  t = read_png(1, 1, 16, 0, "\0\x12\x34", 3, NULL, 0, NULL, 0); /* 16 bits keep the high byte */
  ck_tensor(t, 0, 0x12);
  tl_tensor_free(t);
  t = read_png(2, 1, 8, 2, "\0\1\2\3\4\5\6", 7, NULL, 0, NULL, 0); /* RGB: planes */
  ck_tensor(t, 0, 1, 4, 2, 5, 3, 6);
  tl_tensor_free(t);
  t = read_png(2, 1, 8, 4, "\0\1\2\3\4", 5, NULL, 0, NULL, 0); /* gray + alpha */
  ck_tensor(t, 0, 1, 3, 2, 4);
  tl_tensor_free(t);
  t = read_png(1, 1, 8, 6, "\0\1\2\3\4", 5, NULL, 0, NULL, 0); /* RGBA */
  ck_tensor(t, 0, 1, 2, 3, 4);
  tl_tensor_free(t);
  t = read_png(2, 1, 8, 3, "\0\1\0", 3, "\1\2\3\4\5\6", 6, NULL, 0); /* palette */
  ck_tensor(t, 0, 4, 1, 5, 2, 6, 3);
  tl_tensor_free(t);
  t = read_png(2, 1, 8, 3, "\0\1\0", 3, "\1\2\3\4\5\6", 6, "\x80", 1); /* palette with alpha */
  ck_tensor(t, 0, 4, 1, 5, 2, 6, 3, 255, 128);
  tl_tensor_free(t);
  clear_scratch();
}
END_TEST

START_TEST(refuses_damaged_png) {
  unsigned char file[8192];
  size_t n = make_png(file, 2, 2, 8, 2, "\0\1\2\3\4\5\6\0\1\2\3\4\5\6", 14, NULL, 0, NULL, 0);
  int64_t before = live_tensors();
  tl_tensor *t = NULL;
  for (size_t cut = 8; cut + 4 < n; cut++) { /* the checksum of the empty end chunk is not asked for */
    tl_status st = tl_read_image(write_file("i.png", file, cut), &t);
    ck_assert_msg(st == TL_ERR_FORMAT, "cut at %zu of %zu", cut, n);
  }
  file[20] ^= 1; /* the width: its checksum is wrong */
  ck_fails(tl_read_image(write_file("i.png", file, n), &t), TL_ERR_FORMAT, "i.png: the PNG data is damaged");
  n = make_png(file, 60000, 60000, 8, 2, "\0", 1, NULL, 0, NULL, 0);
  ck_fails(tl_read_image(write_file("i.png", file, n), &t), TL_ERR_UNSUPPORTED, "60000x60000");
  n = make_png(file, 16000, 16000, 8, 2, "\0", 1, NULL, 0, NULL, 0);
  ck_fails(tl_read_image(write_file("i.png", file, n), &t), TL_ERR_FORMAT, "claims 16000x16000 pixels in ");
  ck_fails(tl_read_image(write_file("i.png", "GIF89a..", 8), &t), TL_ERR_FORMAT, "neither PNG nor JPEG");
  ck_fails(tl_read_image(write_file("i.png", "x", 1), &t), TL_ERR_FORMAT, "ends at byte 1");
  ck_assert_ptr_null(t);
  ck_assert_int_eq(live_tensors(), before);
  clear_scratch();
}
END_TEST

/* ---- JPEG ---- */

static size_t make_jpeg(unsigned char **to, int width, int height, int channels, J_COLOR_SPACE space,
                        const unsigned char *pixels, bool progressive) {
  struct jpeg_compress_struct c;
  struct jpeg_error_mgr errors;
  unsigned long n = 0;
  *to = NULL;
  c.err = jpeg_std_error(&errors);
  jpeg_create_compress(&c);
  jpeg_mem_dest(&c, to, &n);
  c.image_width = (JDIMENSION)width;
  c.image_height = (JDIMENSION)height;
  c.input_components = channels;
  c.in_color_space = space;
  jpeg_set_defaults(&c);
  jpeg_set_quality(&c, 100, TRUE);
  if (progressive) jpeg_simple_progression(&c);
  jpeg_start_compress(&c, TRUE);
  for (int y = 0; y < height; y++) {
    JSAMPROW row = (JSAMPROW)(pixels + (size_t)y * (size_t)width * (size_t)channels);
    jpeg_write_scanlines(&c, &row, 1);
  }
  jpeg_finish_compress(&c);
  jpeg_destroy_compress(&c);
  return n;
}

START_TEST(reads_jpeg) {
  unsigned char gray[64], color[192], *file;
  memset(gray, 77, sizeof gray);
  for (int i = 0; i < 64; i++) color[i * 3] = 200, color[i * 3 + 1] = 100, color[i * 3 + 2] = 50;
  for (int progressive = 0; progressive < 2; progressive++) {
    tl_tensor *t;
    double v;
    size_t n = make_jpeg(&file, 16, 4, 1, JCS_GRAYSCALE, gray, progressive);
    ck_ok(tl_read_image(write_file("g.jpg", file, n), &t));
    ck_assert(tl_size(t, 0) == 1 && tl_size(t, 1) == 4 && tl_size(t, 2) == 16);
    ck_ok(tl_get(t, 3, (int64_t[]){0, 3, 15}, &v));
    ck_assert(fabs(v - 77) <= 1);
    tl_tensor_free(t);
    free(file);
    n = make_jpeg(&file, 8, 8, 3, JCS_RGB, color, progressive);
    ck_ok(tl_read_image(write_file("c.jpg", file, n), &t));
    ck_assert(tl_size(t, 0) == 3);
    for (int c = 0; c < 3; c++) {
      ck_ok(tl_get(t, 3, (int64_t[]){c, 7, 7}, &v));
      ck_assert(fabs(v - color[c]) <= 2);
    }
    tl_tensor_free(t);
    free(file);
  }
  clear_scratch();
}
END_TEST

START_TEST(refuses_damaged_jpeg) {
  unsigned char pixels[32 * 32 * 4], *file;
  for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (unsigned char)(i * 37);
  int64_t before = live_tensors();
  tl_tensor *t = NULL;
  size_t n = make_jpeg(&file, 32, 32, 3, JCS_RGB, pixels, false);
  for (size_t cut = 8; cut + 2 < n; cut += 7)
    ck_fails(tl_read_image(write_file("cut.jpg", file, cut), &t), TL_ERR_FORMAT, "cut.jpg: the JPEG data is damaged");
  free(file);
  n = make_jpeg(&file, 32, 32, 4, JCS_CMYK, pixels, false);
  ck_fails(tl_read_image(write_file("cmyk.jpg", file, n), &t), TL_ERR_UNSUPPORTED, "4 components (CMYK)");
  free(file);
  n = make_jpeg(&file, 8, 8, 1, JCS_GRAYSCALE, pixels, false);
  for (size_t i = 0; i + 9 < n; i++) /* the frame header claims 16000 x 16000 */
    if (file[i] == 0xff && file[i + 1] == 0xc0)
      file[i + 5] = file[i + 7] = 16000 >> 8, file[i + 6] = file[i + 8] = 16000 & 255;
  ck_fails(tl_read_image(write_file("big.jpg", file, n), &t), TL_ERR_FORMAT, "claims 16000x16000 pixels");
  free(file);
  ck_assert_ptr_null(t);
  ck_assert_int_eq(live_tensors(), before);
  clear_scratch();
}
END_TEST

START_TEST(survives_failing_allocations) {
  unsigned char png[1024], pixels[64] = {0}, *jpeg;
  write_file("a.png", png, make_png(png, 2, 1, 8, 2, "\0\1\2\3\4\5\6", 7, NULL, 0, NULL, 0));
  size_t n = make_jpeg(&jpeg, 8, 8, 1, JCS_GRAYSCALE, pixels, false);
  write_file("a.jpg", jpeg, n);
  free(jpeg);
  int64_t before = live_tensors();
  const char *names[] = {"a.png", "a.jpg"};
  for (int i = 0; i < 2; i++)
    for (int k = 1;; k++) {
      tl_tensor *t = NULL;
      tl_fail_allocation(k);
      tl_status st = tl_read_image(scratch(names[i]), &t);
      tl_fail_allocation(0);
      tl_tensor_free(t);
      ck_assert_int_eq(live_tensors(), before);
      if (st == TL_OK) break;
      ck_assert_int_eq(st, TL_ERR_MEMORY);
    }
  clear_scratch();
}
END_TEST

TEST_MAIN("image", reads_every_png_color_type, refuses_damaged_png, reads_jpeg, refuses_damaged_jpeg,
          survives_failing_allocations)
