/* test_npy.c: npy and npz. Files are spelt out as NumPy writes them (numpy/lib/format.py). */
#include <zip.h>

#include "check_file.h"

/* An npy file of this version: header padded with spaces to 64. Returns its size. */
static size_t make_npy(char *to, int version, const char *header, const void *data, size_t bytes) {
  size_t prefix = version == 1 ? 10 : 12, length = strlen(header) + 1;
  while ((prefix + length) % 64 != 0) length++;
  memcpy(to, "\x93NUMPY", 6);
  to[6] = (char)version;
  to[7] = 0;
  for (int i = 0; i < (version == 1 ? 2 : 4); i++) to[8 + i] = (char)(length >> 8 * i);
  memset(to + prefix, ' ', length - 1);
  memcpy(to + prefix, header, strlen(header));
  to[prefix + length - 1] = '\n';
  memcpy(to + prefix + length, data, bytes);
  return prefix + length + bytes;
}

static tl_status read_npy(int version, const char *header, const void *data, size_t bytes, tl_tensor **out) {
  char file[1024];
  return tl_read_npy(write_file("t.npy", file, make_npy(file, version, header, data, bytes)), out);
}

static const float six[] = {0, 1, 2, 3, 4, 5};

START_TEST(reads_every_version) {
  for (int version = 1; version <= 3; version++) {
    tl_tensor *t;
    ck_ok(read_npy(version, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", six, sizeof six, &t));
    ck_assert(tl_ndim(t) == 2 && tl_size(t, 0) == 2 && tl_size(t, 1) == 3 && tl_dtype_of(t) == TL_FLOAT32);
    ck_tensor(t, 0, 0, 1, 2, 3, 4, 5);
    tl_tensor_free(t);
  }
  clear_scratch();
}
END_TEST

START_TEST(understands_fortran_order) {
  tl_tensor *t;
  ck_ok(read_npy(1, "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", six, sizeof six, &t));
  ck_assert(tl_size(t, 0) == 2 && tl_size(t, 1) == 3 && tl_is_contiguous(t));
  ck_tensor(t, 0, 0, 2, 4, 1, 3, 5);
  tl_tensor_free(t);
  ck_ok(read_npy(1, "{'descr': '<f4', 'fortran_order': True, 'shape': (6,)}", six, sizeof six, &t));
  ck_tensor(t, 0, 0, 1, 2, 3, 4, 5);
  tl_tensor_free(t);
  clear_scratch();
}
END_TEST

START_TEST(reads_types_and_byte_orders) {
  const struct {
    const char *descr;
    unsigned char data[16];
    size_t bytes;
    int dtype;
    double value;
  } types[] = {
      {">f8", {0xc0, 4, 0, 0, 0, 0, 0, 0}, 8, TL_FLOAT64, -2.5},
      {"<f8", {0, 0, 0, 0, 0, 0, 4, 0xc0}, 8, TL_FLOAT64, -2.5},
      {">i4", {0xff, 0xff, 0xff, 0xfe}, 4, TL_INT32, -2},
      {"<i8", {3, 1}, 8, TL_INT64, 259},
      {"|u1", {200}, 1, TL_UINT8, 200},
      {"|b1", {1}, 1, TL_BOOL, 1},
      {"|i1", {0xfe}, 1, TL_INT32, -2},
      {">u2", {1, 2}, 2, TL_INT32, 258},
      {"<u4", {0, 0, 0, 0x80}, 4, TL_INT64, 2147483648.0},
      {"<f2", {0, 0x3e}, 2, TL_FLOAT16, 1.5},
  };
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    char header[128];
    tl_tensor *t;
    snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (), }", types[i].descr);
    ck_ok(read_npy(1, header, types[i].data, types[i].bytes, &t));
    ck_assert_int_eq(tl_dtype_of(t), types[i].dtype);
    ck_assert_int_eq(tl_ndim(t), 0);
    ck_tensor(t, 0, types[i].value);
    tl_tensor_free(t);
  }
  clear_scratch();
}
END_TEST

START_TEST(refuses_other_dtypes_by_name) {
  const struct {
    const char *descr, *text;
  } types[] = {{"'|O'", "Python objects (dtype '|O')"}, {"'<U3'", "'<U3'"}, {"'<c8'", "'<c8'"},
               {"[('a', '<f4')]", "records"},           {"'<u8'", "'<u8'"}, {"'<M8[s]'", "'<M8[s]'"}};
  tl_tensor *t = NULL;
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    char header[128];
    snprintf(header, sizeof header, "{'descr': %s, 'fortran_order': False, 'shape': (1,), }", types[i].descr);
    ck_fails(read_npy(1, header, six, 8, &t), TL_ERR_UNSUPPORTED, types[i].text);
  }
  ck_assert_ptr_null(t);
  clear_scratch();
}
END_TEST

START_TEST(refuses_bad_headers) {
  const char *headers[] = {
      "",
      "{}",
      "{'descr': '<f4', 'fortran_order': False}",
      "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}",
      "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x",
      "{'descr': '<f4\\x00', 'fortran_order': False, 'shape': (1,)}",
      "{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,)}",
  };
  int64_t before = live_tensors();
  tl_tensor *t = NULL;
  for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
    ck_fails(read_npy(1, headers[i], six, 4, &t), TL_ERR_FORMAT, "t.npy: the npy header is not a dictionary");
  const char *good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  ck_fails(read_npy(1, good, six, 20, &t), TL_ERR_FORMAT, "needs 24 bytes, the file has no more than 20");
  ck_fails(read_npy(1, good, (float[7]){0}, 28, &t), TL_ERR_FORMAT, "more bytes follow");
  ck_fails(read_npy(4, good, six, 24, &t), TL_ERR_FORMAT, "no npy version 4.0");
  ck_fails(read_npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}", six, 24, &t),
           TL_ERR_FORMAT, "too big to address");
  ck_fails(read_npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", six, 4, &t),
           TL_ERR_UNSUPPORTED, "more than 8 dims");
  ck_fails(tl_read_npy(write_file("x.npy", "\x93NUMPX\1\0\0\0", 10), &t), TL_ERR_FORMAT, "not an npy file");
  ck_fails(tl_read_npy(write_file("x.npy", "\x93NUMPY\1\0\xff\xff", 10), &t), TL_ERR_FORMAT, "needs 65535 bytes");
  ck_assert_ptr_null(t);
  ck_assert_int_eq(live_tensors(), before);
  clear_scratch();
}
END_TEST

START_TEST(writes_what_numpy_writes) {
  tl_tensor *t = TENSOR(TL_FLOAT32, SHAPE(2, 3), 0, 1, 2, 3, 4, 5), *v;
  char file[1024], expected[1024];
  ck_ok(tl_write_npy(scratch("w.npy"), t));
  size_t n = make_npy(expected, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", six, sizeof six);
  ck_assert_uint_eq(read_file(scratch("w.npy"), file, sizeof file), n);
  ck_assert(memcmp(file, expected, n) == 0);
  ck_ok(tl_transpose(t, 0, 1, &v));
  ck_ok(tl_write_npy(scratch("w.npy"), v));
  tl_tensor_free(v);
  ck_ok(tl_read_npy(scratch("w.npy"), &v));
  ck_tensor(v, 0, 0, 3, 1, 4, 2, 5);
  tl_tensor_free(v);
  tl_tensor_free(t);
  clear_scratch();
}
END_TEST

START_TEST(every_dtype_and_rank_survives) {
  tl_tensor *back;
  for (int dtype = 0; dtype < TL_DTYPES; dtype++)
    for (int ndim = 0; ndim <= TL_MAX_DIMS; ndim++) {
      int64_t shape[TL_MAX_DIMS] = {1, 1, 1, 1, 1, 1, 1, 1};
      tl_tensor *t = make_tensor(dtype, ndim, shape, (double[]){1});
      if (dtype == TL_BFLOAT16) {
        ck_fails(tl_write_npy(scratch("d.npy"), t), TL_ERR_DTYPE, "NumPy has no bfloat16");
      } else {
        ck_ok(tl_write_npy(scratch("d.npy"), t));
        ck_ok(tl_read_npy(scratch("d.npy"), &back));
        ck_assert(tl_dtype_of(back) == dtype && tl_ndim(back) == ndim);
        ck_tensor(back, 0, 1);
        tl_tensor_free(back);
      }
      tl_tensor_free(t);
    }
  clear_scratch();
}
END_TEST

/* ---- npz ---- */

static const char *write_zip(const char *name, int n, const char *const *members, const char *const *data,
                             const size_t *bytes, bool deflate) {
  const char *path = scratch(name);
  int code = 0;
  zip_t *zip = zip_open(path, ZIP_CREATE | ZIP_TRUNCATE, &code);
  ck_assert_ptr_nonnull(zip);
  for (int i = 0; i < n; i++) {
    zip_int64_t at = zip_file_add(zip, members[i], zip_source_buffer(zip, data[i], bytes[i], 0), 0);
    ck_assert_int_ge(at, 0);
    zip_set_file_compression(zip, (zip_uint64_t)at, deflate ? ZIP_CM_DEFLATE : ZIP_CM_STORE, 0);
  }
  ck_assert_int_eq(zip_close(zip), 0);
  return path;
}

START_TEST(reads_npz_stored_and_deflated) {
  char a[512], b[512];
  size_t bytes[2] = {make_npy(a, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", six, sizeof six),
                     make_npy(b, 1, "{'descr': '|u1', 'fortran_order': False, 'shape': (0,), }", "", 0)};
  for (int deflate = 0; deflate < 2; deflate++) {
    int64_t before = live_tensors();
    tl_archive *z;
    tl_tensor *t;
    ck_ok(tl_read_npz(
        write_zip("z.npz", 2, (const char *[]){"x.npy", "deep/y.npy"}, (const char *[]){a, b}, bytes, deflate), &z));
    ck_assert_int_eq(tl_archive_count(z), 2);
    ck_assert_str_eq(tl_archive_name(z, 0), "x");
    ck_assert_str_eq(tl_archive_name(z, 1), "deep/y");
    ck_ok(tl_archive_tensor(z, 0, &t));
    tl_archive_free(z);
    ck_tensor(t, 0, 0, 1, 2, 3, 4, 5);
    tl_tensor_free(t);
    ck_assert_int_eq(live_tensors(), before);
  }
  clear_scratch();
}
END_TEST

START_TEST(refuses_bad_npz) {
  char a[512], big[512], *padded = calloc(1, 1 << 20);
  size_t n = make_npy(a, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", six, sizeof six);
  size_t m =
      make_npy(big, 1, "{'descr': '<f8', 'fortran_order': False, 'shape': (1000, 1000, 1000), }", six, sizeof six);
  memcpy(padded, a, n); /* inflates to far more than its shape declares */
  int64_t before = live_tensors();
  tl_archive *z = NULL;
  ck_fails(tl_read_npz(write_zip("z.npz", 1, (const char *[]){"x.txt"}, (const char *[]){a}, &n, false), &z),
           TL_ERR_FORMAT, "z.npz: x.txt: not an npy member");
  ck_fails(tl_read_npz(write_zip("z.npz", 1, (const char *[]){"x.npy"}, (const char *[]){big}, &m, true), &z),
           TL_ERR_FORMAT, "z.npz: x.npy: the data needs 8000000000 bytes");
  ck_fails(
      tl_read_npz(write_zip("z.npz", 1, (const char *[]){"x.npy"}, (const char *[]){padded}, (size_t[]){1 << 20}, true),
                  &z),
      TL_ERR_FORMAT, "more bytes follow");
  ck_fails(tl_read_npz(write_file("n.npz", "PK\3\4 nothing", 12), &z), TL_ERR_FORMAT, "not a zip file");
  ck_fails(tl_read_npz(scratch("absent"), &z), TL_ERR_IO, "No such file");
  char file[2048]; /* a bit of the stored data flips: the checksum tells */
  size_t size =
      read_file(write_zip("z.npz", 1, (const char *[]){"x.npy"}, (const char *[]){a}, &n, false), file, sizeof file);
  for (size_t i = 0; i + 4 < size; i++)
    if (memcmp(file + i, &six[5], 4) == 0) file[i] ^= 1;
  ck_fails(tl_read_npz(write_file("z.npz", file, size), &z), TL_ERR_FORMAT, "damaged");
  ck_assert_ptr_null(z);
  ck_assert_int_eq(live_tensors(), before);
  free(padded);
  clear_scratch();
}
END_TEST

TEST_MAIN("npy", reads_every_version, understands_fortran_order, reads_types_and_byte_orders,
          refuses_other_dtypes_by_name, refuses_bad_headers, writes_what_numpy_writes, every_dtype_and_rank_survives,
          reads_npz_stored_and_deflated, refuses_bad_npz)
