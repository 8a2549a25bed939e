/* seeds.c: seeds DIR: small well-formed files for the fuzz targets to start from, as DIR/TARGET-NAME. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <zip.h>
#include <zlib.h>

#include "tlua.h"

static const char *root;

static const char *path_of(const char *name) {
  static char path[512];
  snprintf(path, sizeof path, "%s/%s", root, name);
  return path;
}

static void must(bool fine, const char *what) {
  if (fine) return;
  fprintf(stderr, "seeds: %s failed: %s\n", what, tl_last_error()->message);
  exit(1);
}

static void write_seed(const char *name, const void *data, size_t bytes) {
  FILE *f = fopen(path_of(name), "wb");
  must(f != NULL && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0, name);
}

#define SEED(name, text) write_seed(name, text, sizeof text - 1)

static void write_gzip(const char *name, const void *data, size_t bytes) {
  gzFile f = gzopen(path_of(name), "wb");
  must(f != NULL && gzwrite(f, data, (unsigned)bytes) == (int)bytes && gzclose(f) == Z_OK, name);
}

static size_t read_seed(const char *name, char *to, size_t room) {
  FILE *f = fopen(path_of(name), "rb");
  must(f != NULL, name);
  size_t n = fread(to, 1, room, f);
  fclose(f);
  return n;
}

static void make_arrays(void) {
  tl_tensor *t;
  int64_t shape[2] = {2, 3};
  char file[1024];
  must(tl_full(2, shape, 1, TL_FLOAT32, TL_CPU, &t) == TL_OK, "full");
  must(tl_write_npy(path_of("npy-f4"), t) == TL_OK, "npy");
  size_t n = read_seed("npy-f4", file, sizeof file);
  write_gzip("npy-f4.gz", file, n);
  memcpy(strstr(file + 10, "False, "), "True,  ", 7);
  file[22] = '>';
  write_seed("npy-fortran", file, n);
  const char *names[] = {"a", "b"}, *keys[] = {"format"}, *values[] = {"text"};
  tl_tensor *tensors[] = {t, t};
  must(tl_write_safetensors(path_of("safetensors-two"), 2, names, tensors, 1, keys, values) == TL_OK, "safetensors");
  tl_tensor_free(t);
  for (int deflate = 0; deflate < 2; deflate++) {
    zip_t *zip = zip_open(path_of(deflate ? "npz-deflated" : "npz-stored"), ZIP_CREATE | ZIP_TRUNCATE, NULL);
    must(zip != NULL, "zip");
    zip_int64_t at = zip_file_add(zip, "x.npy", zip_source_buffer(zip, file, n, 0), 0);
    zip_set_file_compression(zip, (zip_uint64_t)at, deflate ? ZIP_CM_DEFLATE : ZIP_CM_STORE, 0);
    must(zip_close(zip) == 0, "zip");
  }
}

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

static void make_png(const char *name, int depth, int color, const void *row, size_t bytes) {
  unsigned char file[1024], packed[256],
      head[13] = {0, 0, 0, 2, 0, 0, 0, 1, (unsigned char)depth, (unsigned char)color, 0, 0, 0};
  uLongf n = sizeof packed;
  must(compress(packed, &n, row, bytes) == Z_OK, "compress");
  size_t at = 8;
  memcpy(file, "\x89PNG\r\n\x1a\n", 8);
  at += put_chunk(file + at, "IHDR", head, 13);
  if (color == 3) at += put_chunk(file + at, "PLTE", "\1\2\3\4\5\6", 6), at += put_chunk(file + at, "tRNS", "\x80", 1);
  at += put_chunk(file + at, "IDAT", packed, n);
  at += put_chunk(file + at, "IEND", "", 0);
  write_seed(name, file, at);
}

static void make_jpeg(const char *name, bool progressive) {
  struct jpeg_compress_struct c;
  struct jpeg_error_mgr errors;
  unsigned char *file = NULL, row[48] = {100, 50};
  unsigned long n = 0;
  c.err = jpeg_std_error(&errors);
  jpeg_create_compress(&c);
  jpeg_mem_dest(&c, &file, &n);
  c.image_width = c.image_height = 16;
  c.input_components = 3;
  c.in_color_space = JCS_RGB;
  jpeg_set_defaults(&c);
  if (progressive) jpeg_simple_progression(&c);
  jpeg_start_compress(&c, TRUE);
  JSAMPROW rows = row;
  for (int y = 0; y < 16; y++) jpeg_write_scanlines(&c, &rows, 1);
  jpeg_finish_compress(&c);
  jpeg_destroy_compress(&c);
  write_seed(name, file, n);
  free(file);
}

#define BYTE_LEVEL "{\"type\":\"ByteLevel\"}"
#define SPECIAL "\"special\":true,\"normalized\":false"

static void make_tokenizers(void) {
  SEED("bpe-small", "{\"added_tokens\":[{\"id\":3,\"content\":\"<e>\"," SPECIAL "}],\"pre_tokenizer\":" BYTE_LEVEL
                    ",\"decoder\":" BYTE_LEVEL ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\xc4\xa0\":1,"
                    "\"\xc4\xa0"
                    "a\":2},\"merges\":[\"\xc4\xa0 a\"]}}");
  SEED(
      "bpe-parts",
      "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
      "\"pattern\":{\"Regex\":\"\\\\p{L}+|\\\\s+(?!\\\\S)\"},\"behavior\":\"Isolated\"},{\"type\":\"Digits\"}," BYTE_LEVEL
      "]},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"s\"}}],"
      "\"special_tokens\":{\"s\":{\"ids\":[0]}}},\"decoder\":" BYTE_LEVEL
      ",\"model\":{\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\"]]}}");
  SEED("bpe_gpt2-small", "{\"a\":0,\"b\":1,\"ab\":2,\"<|endoftext|>\":3}\0#version: 0.2\na b\n");
  SEED("bpe_text-words", "don't  <e>\xc3\xa9 \xff 12\n\n");
  SEED("bpe_text-emoji", "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb e\xcc\x81");
  SEED("tokens-raw", "\1\0\2\0\3\0");
  tl_tensor *ids;
  must(tl_arange(0, 5, 1, TL_INT32, TL_CPU, &ids) == TL_OK, "arange");
  must(tl_write_npy(path_of("tokens-npy"), ids) == TL_OK, "npy");
  tl_tensor_free(ids);
}

int main(int argc, char **argv) {
  if (argc != 2) return fprintf(stderr, "usage: seeds DIR\n"), 2;
  root = argv[1];
  static const char bytes[] = "\0\0\10\2\0\0\0\2\0\0\0\3abcdef", floats[] = "\0\0\15\1\0\0\0\1\77\200\0\0";
  write_seed("idx-bytes", bytes, sizeof bytes - 1);
  write_seed("idx-floats", floats, sizeof floats - 1);
  write_gzip("idx-bytes.gz", bytes, sizeof bytes - 1);
  SEED("csv-plain", "\1a,b\n1,2.5\n-3,4e1\n");
  SEED("csv-quoted", "\30a;\"b \"\"c\"\"\"\r\n1;\"2\"\r\n;4\r\n");
  SEED("csv-columns", "\21a,b\n1,2\n");
  SEED("text-plain", "some text\n");
  write_gzip("text-packed.gz", "some text\n", 10);
  make_arrays();
  make_tokenizers();
  make_png("image-gray.png", 8, 0, "\0\1\2", 3);
  make_png("image-rgb.png", 8, 2, "\0\1\2\3\4\5\6", 7);
  make_png("image-palette.png", 8, 3, "\0\1\0", 3);
  make_png("image-deep.png", 16, 6, "\0\1\2\3\4\5\6\7\10\1\2\3\4\5\6\7\10", 17);
  make_jpeg("image-base.jpg", false);
  make_jpeg("image-progressive.jpg", true);
  return 0;
}
