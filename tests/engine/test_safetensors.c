/* test_safetensors.c: round trips, the exact format, and everything that must be refused. */
#include "check_file.h"

static const char *write_raw(const char *name, const char *header, const void *data, size_t bytes) {
  char buffer[4096];
  size_t length = strlen(header);
  for (int i = 0; i < 8; i++) buffer[i] = (char)((uint64_t)length >> 8 * i);
  memcpy(buffer + 8, header, length);
  memcpy(buffer + 8 + length, data, bytes);
  return write_file(name, buffer, 8 + length + bytes);
}

static tl_tensor *named(const tl_archive *a, const char *name) {
  for (int i = 0; i < tl_archive_count(a); i++)
    if (strcmp(tl_archive_name(a, i), name) == 0) {
      tl_tensor *t;
      ck_ok(tl_archive_tensor(a, i, &t));
      return t;
    }
  ck_abort_msg("no tensor '%s'", name);
  return NULL;
}

START_TEST(every_dtype_survives) {
  int64_t before = live_tensors();
  const char *names[TL_DTYPES];
  tl_tensor *tensors[TL_DTYPES];
  for (int d = 0; d < TL_DTYPES; d++) {
    names[d] = tl_dtype_name(d);
    tensors[d] = TENSOR(d, SHAPE(3, 1), 0, 1, 1);
  }
  ck_ok(tl_write_safetensors(scratch("all"), TL_DTYPES, names, tensors, 0, NULL, NULL));
  tl_archive *a;
  ck_ok(tl_read_safetensors(scratch("all"), &a));
  ck_assert_int_eq(tl_archive_count(a), TL_DTYPES);
  for (int d = 0; d < TL_DTYPES; d++) {
    tl_tensor *t = named(a, names[d]);
    ck_assert_int_eq(tl_dtype_of(t), d);
    ck_assert(tl_ndim(t) == 2 && tl_size(t, 0) == 3);
    ck_tensor(t, 0, 0, 1, 1);
    tl_tensor_free(t);
    tl_tensor_free(tensors[d]);
  }
  tl_archive_free(a);
  ck_assert_int_eq(live_tensors(), before);
  clear_scratch();
}
END_TEST

START_TEST(scalars_empty_views_and_notes_survive) {
  double one = 2.5;
  tl_tensor *scalar = make_tensor(TL_FLOAT64, 0, NULL, &one), *none = make_tensor(TL_FLOAT32, SHAPE(0, 4), NULL);
  tl_tensor *view = layout_tensor(TRANSPOSED, 3, 2, TL_FLOAT32, 0, 1, 1),
            *row = layout_tensor(EXPANDED, 3, 2, TL_INT32, 0, 9, 1);
  const char *names[] = {"scalar", "none", "view \"q\" \xc3\xa9", "row"};
  tl_tensor *tensors[] = {scalar, none, view, row};
  const char *keys[] = {"format", "empty"}, *values[] = {"tl\n\"x\"", ""};
  ck_ok(tl_write_safetensors(scratch("v"), 4, names, tensors, 2, keys, values));
  tl_archive *a;
  ck_ok(tl_read_safetensors(scratch("v"), &a));
  ck_assert_int_eq(tl_archive_notes(a), 2);
  for (int i = 0; i < 2; i++)
    ck_assert_str_eq(tl_archive_note(a, strcmp(tl_archive_note_key(a, i), "format") != 0), values[i]);
  for (int i = 0; i < 4; i++) {
    tl_tensor *t = named(a, names[i]);
    double v[8];
    ck_assert_int_eq(tl_ndim(t), tl_ndim(tensors[i]));
    for (int d = 0; d < tl_ndim(t); d++) ck_assert(tl_size(t, d) == tl_size(tensors[i], d));
    ck_ok(tl_to_doubles(tensors[i], (int64_t)tl_numel(tensors[i]), v));
    ck_values(t, (int64_t)tl_numel(tensors[i]), v, 0);
    tl_tensor_free(t);
    tl_tensor_free(tensors[i]);
  }
  tl_archive_free(a);
  clear_scratch();
}
END_TEST

/* Byte for byte what the format says: length, JSON padded with spaces to 8, data; wide elements first. */
START_TEST(writes_the_exact_format) {
  tl_tensor *bytes = TENSOR(TL_UINT8, SHAPE(3), 1, 2, 3), *wide = TENSOR(TL_INT64, SHAPE(1), 5);
  const char *names[] = {"a", "b"};
  tl_tensor *tensors[] = {bytes, wide};
  ck_ok(tl_write_safetensors(scratch("x"), 2, names, tensors, 0, NULL, NULL));
  const char *json = "{\"b\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
                     "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}";
  unsigned char file[512];
  size_t n = read_file(scratch("x"), file, sizeof file), length = strlen(json), padded = (length + 7) / 8 * 8;
  ck_assert_uint_eq(n, 8 + padded + 11);
  ck_assert_uint_eq(file[0], padded);
  ck_assert(memcmp(file + 8, json, length) == 0);
  for (size_t i = length; i < padded; i++) ck_assert_int_eq(file[8 + i], ' ');
  ck_assert(memcmp(file + 8 + padded, "\5\0\0\0\0\0\0\0\1\2\3", 11) == 0);
  tl_tensor_free(bytes);
  tl_tensor_free(wide);
  clear_scratch();
}
END_TEST

START_TEST(widens_foreign_types) {
  tl_archive *a;
  ck_ok(tl_read_safetensors(write_raw("f",
                                      "{\"a\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                                      "\"b\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[2,4]},"
                                      "\"c\":{\"dtype\":\"U32\",\"shape\":[1],\"data_offsets\":[4,8]},"
                                      "\"d\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[8,10]}}",
                                      "\xff\1\xff\xff\xff\xff\xff\xff\7\0", 10),
                            &a));
  tl_tensor *t = named(a, "a");
  ck_tensor(t, 0, -1, 1);
  tl_tensor_free(t);
  t = named(a, "b");
  ck_tensor(t, 0, 65535);
  tl_tensor_free(t);
  t = named(a, "c");
  ck_tensor(t, 0, 4294967295.0);
  tl_tensor_free(t);
  t = named(a, "d");
  ck_assert_int_eq(*(unsigned char *)tl_data(t), 1); /* any true byte becomes 1 */
  tl_tensor_free(t);
  tl_archive_free(a);
  clear_scratch();
}
END_TEST

#define U8(name, shape, first, end) \
  "\"" name "\":{\"dtype\":\"U8\",\"shape\":" shape ",\"data_offsets\":[" first "," end "]}"

START_TEST(refuses_bad_headers) {
  static const struct {
    const char *header;
    size_t bytes;
    tl_status code;
    const char *text;
  } files[] = {
      {"{" U8("a", "[4]", "0", "4") "," U8("b", "[4]", "2", "6") "}", 6, TL_ERR_FORMAT, "'b' starts at 2 and overlaps"},
      {"{" U8("a", "[2]", "0", "2") "," U8("b", "[2]", "4", "6") "}", 6, TL_ERR_FORMAT, "2 bytes before tensor 'b'"},
      {"{" U8("a", "[2]", "1", "3") "}", 3, TL_ERR_FORMAT, "1 bytes before tensor 'a'"},
      {"{" U8("a", "[2]", "0", "2") "}", 3, TL_ERR_FORMAT, "the tensors end at 2"},
      {"{" U8("a", "[4]", "0", "4") "}", 3, TL_ERR_FORMAT, "'a' ends at 4"},
      {"{" U8("a", "[3]", "0", "4") "}", 4, TL_ERR_FORMAT, "'a' of shape (3) needs 3 bytes"},
      {"{" U8("a", "[4]", "4", "0") "}", 4, TL_ERR_FORMAT, "'a' of shape (4)"},
      {"{" U8("a", "[4]", "-4", "0") "}", 4, TL_ERR_FORMAT, "'a' of shape (4)"},
      {"{" U8("a", "[-4]", "0", "4") "}", 4, TL_ERR_FORMAT, "'a' is not a list of sizes"},
      {"{" U8("a", "[4.0]", "0", "4") "}", 4, TL_ERR_FORMAT, "'a' is not a list of sizes"},
      {"{" U8("a", "[4611686018427387904,4]", "0", "0") "}", 0, TL_ERR_FORMAT, "too big to address"},
      {"{" U8("a", "[1,1,1,1,1,1,1,1,1]", "0", "1") "}", 1, TL_ERR_UNSUPPORTED, "'a' has 9 dims"},
      {"{" U8("a", "[1]", "0", "1") "," U8("a", "[1]", "1", "2") "}", 2, TL_ERR_FORMAT,
       "duplicate object key near '\"a\"'"},
      {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, TL_ERR_UNSUPPORTED, "'F8_E4M3'"},
      {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, TL_ERR_FORMAT, "'a' has no dtype"},
      {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, TL_ERR_FORMAT, "'a' has no shape"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, TL_ERR_FORMAT, "'a' has no data_offsets"},
      {"{\"a\":[1]}", 0, TL_ERR_FORMAT, "'a' is not an object"},
      {"{\"__metadata__\":{\"k\":1}}", 0, TL_ERR_FORMAT, "'k' is not a string"},
      {"{\"__metadata__\":[]}", 0, TL_ERR_FORMAT, "__metadata__ is not an object"},
      {" {}", 0, TL_ERR_FORMAT, "does not start with '{'"},
      {"{} x", 0, TL_ERR_FORMAT, "not JSON"},
      {"{\"a\":", 0, TL_ERR_FORMAT, "not JSON"},
  };
  int64_t before = live_tensors();
  tl_archive *a = NULL;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    ck_fails(tl_read_safetensors(write_raw("bad", files[i].header, "12345678", files[i].bytes), &a), files[i].code,
             files[i].text);
  ck_fails(tl_read_safetensors(write_file("nul", "\4\0\0\0\0\0\0\0{}\0\0", 12), &a), TL_ERR_FORMAT, "NUL");
  ck_fails(tl_read_safetensors(write_file("huge", "\1\0\0\0\1\0\0\0{}", 10), &a), TL_ERR_FORMAT,
           "a header of 4294967297 bytes");
  ck_fails(tl_read_safetensors(write_file("long", "\x40\0\0\0\0\0\0\0{}", 10), &a), TL_ERR_FORMAT, "needs 64 bytes");
  ck_fails(tl_read_safetensors(write_file("short", "\2\0\0", 3), &a), TL_ERR_FORMAT, "ends at byte 3");
  ck_assert_int_eq(live_tensors(), before);
  clear_scratch();
}
END_TEST

/* 35615 = 0x8b1f: a header whose length looks like gzip's magic is still plain. */
START_TEST(reads_a_header_that_looks_like_gzip) {
  static char file[8 + 35615];
  memset(file, ' ', sizeof file);
  memcpy(file, "\x1f\x8b\0\0\0\0\0\0{}", 10);
  tl_archive *a;
  ck_ok(tl_read_safetensors(write_file("g", file, sizeof file), &a));
  ck_assert_int_eq(tl_archive_count(a), 0);
  tl_archive_free(a);
  clear_scratch();
}
END_TEST

START_TEST(writing_is_atomic) {
  tl_tensor *t = VECTOR(1, 2);
  const char *name = "t", *twice[] = {"t", "t"}, *bad = "\xff", *meta = "__metadata__";
  tl_tensor *two[] = {t, t};
  write_file("keep", "old", 3);
  ck_fails(tl_write_safetensors(scratch("keep"), 2, twice, two, 0, NULL, NULL), TL_ERR_VALUE, "'t' is used twice");
  ck_fails(tl_write_safetensors(scratch("keep"), 1, &bad, &t, 0, NULL, NULL), TL_ERR_VALUE, "UTF-8");
  ck_fails(tl_write_safetensors(scratch("keep"), 1, &name, &t, 1, &name, &bad), TL_ERR_VALUE, "UTF-8");
  ck_fails(tl_write_safetensors(scratch("keep"), 1, &meta, &t, 0, NULL, NULL), TL_ERR_VALUE, "__metadata__");
  ck_fails(tl_write_safetensors(scratch("no/such/folder"), 1, &name, &t, 0, NULL, NULL), TL_ERR_IO, "No such file");
  ck_fails(tl_write_safetensors("/dev/null", 1, &name, &t, 0, NULL, NULL), TL_ERR_IO, "not a regular file");
  for (int k = 1;; k++) { /* at no allocation that fails is the old file lost or rubbish left */
    char old[4] = "";
    tl_fail_allocation(k);
    tl_status st = tl_write_safetensors(scratch("keep"), 1, &name, &t, 0, NULL, NULL);
    tl_fail_allocation(0);
    if (st == TL_OK) break;
    ck_assert_int_eq(st, TL_ERR_MEMORY);
    ck_assert_uint_eq(read_file(scratch("keep"), old, 3), 3);
    ck_assert_str_eq(old, "old");
  }
  char link[400];
  snprintf(link, sizeof link, "%s", scratch("link"));
  ck_assert_int_eq(symlink("keep", link), 0);
  ck_ok(tl_write_safetensors(link, 1, &name, &t, 0, NULL, NULL));
  ck_assert(readlink(link, (char[8]){0}, 8) == 4); /* still a link */
  tl_tensor_free(t);
  ck_assert_int_eq(clear_scratch(), 2); /* keep and link: no temporary file stays */
}
END_TEST

START_TEST(reading_survives_failing_allocations) {
  tl_tensor *t[] = {VECTOR(1, 2), VECTOR(3)};
  const char *names[] = {"a", "b"};
  ck_ok(tl_write_safetensors(scratch("f"), 2, names, t, 1, names, names));
  tl_tensor_free(t[0]);
  tl_tensor_free(t[1]);
  int64_t before = live_tensors();
  for (int k = 1;; k++) {
    tl_archive *a = NULL;
    tl_fail_allocation(k);
    tl_status st = tl_read_safetensors(scratch("f"), &a);
    tl_fail_allocation(0);
    tl_archive_free(a);
    ck_assert_int_eq(live_tensors(), before);
    if (st == TL_OK) break;
    ck_assert_int_eq(st, TL_ERR_MEMORY);
  }
  clear_scratch();
}
END_TEST

TEST_MAIN("safetensors", every_dtype_survives, scalars_empty_views_and_notes_survive, writes_the_exact_format,
          widens_foreign_types, refuses_bad_headers, reads_a_header_that_looks_like_gzip, writing_is_atomic,
          reading_survives_failing_allocations)
