/* test_tokens.c: token files: layouts, windows in batches, damaged and changed files, and how much of a file is read. */
#include <sys/time.h>

#include "check_file.h"

static const uint16_t ids16[10] = {7, 1, 65535, 3, 4, 5, 6, 7, 8, 9};

static tl_tokens *open_tokens(const char *path, const char *dtype) {
  tl_tokens *t = NULL;
  ck_ok(tl_tokens_open(path, dtype, &t));
  return t;
}

static void ck_ids(tl_tokens *t, int64_t first, int n, const double *expected) {
  tl_tensor *ids;
  double values[32];
  ck_ok(tl_tokens_read(t, first, n, &ids));
  ck_ok(tl_to_doubles(ids, n, values));
  ck_assert(tl_dtype_of(ids) == TL_INT64 && tl_ndim(ids) == 1);
  for (int i = 0; i < n; i++) ck_assert(values[i] == expected[i]);
  tl_tensor_free(ids);
}

START_TEST(ids_of_every_width) {
  static const uint8_t u8[2] = {1, 255};
  static const int32_t i32[2] = {1, -2};
  static const uint32_t u32[2] = {1, 4000000000u};
  static const int64_t i64[2] = {1, 5000000000};
  const struct {
    const char *dtype;
    const void *data;
    size_t bytes;
    double second;
  } files[] = {{"uint8", u8, sizeof u8, 255},  {"uint16", ids16 + 1, 4, 65535},  {NULL, ids16 + 1, 4, 65535},
               {"int32", i32, sizeof i32, -2}, {"uint32", u32, sizeof u32, 4e9}, {"int64", i64, sizeof i64, 5e9}};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    tl_tokens *t = open_tokens(write_file("ids", files[i].data, files[i].bytes), files[i].dtype);
    ck_assert(tl_tokens_count(t) == 2);
    ck_assert_str_eq(tl_tokens_dtype(t), files[i].dtype == NULL ? "uint16" : files[i].dtype);
    ck_ids(t, 0, 2, (double[]){1, files[i].second});
    ck_ids(t, 1, 1, &files[i].second);
    ck_ids(t, 2, 0, NULL);
    tl_tokens_free(t);
  }
  tl_tokens *empty = open_tokens(write_file("ids", "", 0), NULL);
  ck_assert(tl_tokens_count(empty) == 0);
  ck_ids(empty, 0, 0, NULL);
  tl_tokens_free(empty);
  clear_scratch();
}
END_TEST

START_TEST(files_with_a_header) {
  int32_t file[256 + 3] = {20240520, 1, 6};
  memcpy(file + 256, ids16, 12);
  tl_tokens *t = open_tokens(write_file("llmc", file, sizeof file), NULL);
  ck_assert(tl_tokens_count(t) == 6);
  ck_ids(t, 1, 2, (double[]){1, 65535});
  tl_tokens_free(t);
  file[0] = 20240801, file[1] = 7, file[2] = 3;
  t = open_tokens(write_file("llmc", file, sizeof file), "uint32");
  ck_assert(tl_tokens_count(t) == 3);
  tl_tokens_free(t);
  file[2] = 4; /* a wrong length: these are ids */
  t = open_tokens(write_file("llmc", file, sizeof file), NULL);
  ck_assert(tl_tokens_count(t) == sizeof file / 2);
  tl_tokens_free(t);

  tl_tensor *x;
  ck_ok(tl_arange(5, 9, 1, TL_INT32, TL_CPU, &x));
  ck_ok(tl_write_npy(scratch("ids.npy"), x));
  t = open_tokens(scratch("ids.npy"), NULL);
  ck_assert_str_eq(tl_tokens_dtype(t), "int32");
  ck_ids(t, 0, 4, (double[]){5, 6, 7, 8});
  tl_tokens_free(t);
  tl_tensor_free(x);
  clear_scratch();
}
END_TEST

START_TEST(files_that_are_not_what_they_should_be) {
  tl_tokens *t = NULL;
  tl_tensor *x;
  char file[1024];
  ck_fails(tl_tokens_open(scratch("absent"), NULL, &t), TL_ERR_IO, "No such file");
  ck_fails(tl_tokens_open("/tmp", NULL, &t), TL_ERR_IO, "not a regular file");
  ck_fails(tl_tokens_open(write_file("ids", ids16, 11), NULL, &t), TL_ERR_FORMAT, "11 bytes");
  ck_fails(tl_tokens_open(write_file("ids", ids16, 10), "int32", &t), TL_ERR_FORMAT, "int32");
  ck_fails(tl_tokens_open(scratch("ids"), "float32", &t), TL_ERR_DTYPE, "float32");
  ck_ok(tl_arange(5, 9, 1, TL_INT32, TL_CPU, &x));
  ck_ok(tl_write_npy(scratch("ids.npy"), x));
  ck_fails(tl_tokens_open(scratch("ids.npy"), "uint16", &t), TL_ERR_FORMAT, "its header says int32");
  size_t n = read_file(scratch("ids.npy"), file, sizeof file);
  ck_fails(tl_tokens_open(write_file("ids.npy", file, n - 3), NULL, &t), TL_ERR_FORMAT, "promises 4 ids");
  ck_fails(tl_tokens_open(write_file("ids.npy", file, 40), NULL, &t), TL_ERR_FORMAT, "npy header");
  tl_tensor *y;
  ck_ok(tl_to(x, TL_FLOAT32, TL_CPU, &y));
  ck_ok(tl_write_npy(scratch("ids.npy"), y));
  ck_fails(tl_tokens_open(scratch("ids.npy"), NULL, &t), TL_ERR_UNSUPPORTED, "mapped as");
  tl_tensor_free(y);
  ck_ok(tl_unsqueeze(x, 0, &y));
  ck_ok(tl_write_npy(scratch("ids.npy"), y));
  ck_fails(tl_tokens_open(scratch("ids.npy"), NULL, &t), TL_ERR_FORMAT, "2 dims");
  tl_tensor_free(y);
  tl_tensor_free(x);
  ck_assert_ptr_null(t);
  clear_scratch();
}
END_TEST

static void check_windows(tl_tokens *t, int64_t context, int64_t stride, int workers) {
  int n = (int)tl_window_count(t, context, stride);
  double places[16];
  for (int i = 0; i < n; i++) places[i] = n - 1 - i;
  tl_tensor *order = make_tensor(TL_INT64, SHAPE(n), places), *out[2];
  tl_loader *l;
  bool more;
  ck_ok(tl_loader_windows(t, context, stride, order, 2, false, workers, 2, &l));
  int seen = 0;
  for (;;) {
    ck_ok(tl_loader_next(l, out, &more));
    if (!more) break;
    for (int k = 0; k < 2; k++) {
      double values[32];
      int rows = (int)tl_size(out[k], 0);
      ck_assert(tl_size(out[k], 1) == context && tl_dtype_of(out[k]) == TL_INT64);
      ck_ok(tl_to_doubles(out[k], rows * context, values));
      for (int r = 0; r < rows; r++)
        for (int j = 0; j < context; j++)
          ck_assert(values[r * context + j] == ids16[(int)places[seen + r] * stride + k + j]);
    }
    seen += (int)tl_size(out[0], 0);
    tl_tensor_free(out[0]);
    tl_tensor_free(out[1]);
  }
  ck_assert_int_eq(seen, n);
  tl_loader_free(l);
  tl_tensor_free(order);
}

START_TEST(windows_and_the_ids_that_follow) {
  tl_tokens *t = open_tokens(write_file("ids", ids16, sizeof ids16), NULL);
  ck_assert(tl_window_count(t, 3, 3) == 3); /* 0, 3 and 6, whose last target is id 9 */
  ck_assert(tl_window_count(t, 9, 1) == 1);
  ck_assert(tl_window_count(t, 10, 1) == 0);
  ck_assert(tl_window_count(t, INT64_MAX, 1) == 0);
  for (int workers = 0; workers <= 2; workers++)
    for (int stride = 1; stride <= 4; stride++) check_windows(t, 3, stride, workers);
  tl_tensor *order = make_tensor(TL_INT64, SHAPE(1), (double[]){3});
  tl_loader *l = NULL;
  ck_fails(tl_loader_windows(t, 3, 3, order, 1, false, 0, 1, &l), TL_ERR_INDEX, "sample 3");
  ck_fails(tl_loader_windows(t, 0, 3, order, 1, false, 0, 1, &l), TL_ERR_VALUE, "at least 1");
  tl_tensor *ids = NULL;
  ck_fails(tl_tokens_read(t, 9, 2, &ids), TL_ERR_INDEX, "from 9 on");
  ck_fails(tl_tokens_read(t, -1, 2, &ids), TL_ERR_INDEX, "from -1 on");
  tl_tensor_free(order);
  tl_tokens_free(t);
  clear_scratch();
}
END_TEST

START_TEST(a_loader_outlives_the_handle) {
  tl_tokens *t = open_tokens(write_file("ids", ids16, sizeof ids16), NULL);
  tl_tensor *order = make_tensor(TL_INT64, SHAPE(2), (double[]){2, 0}), *out[2];
  tl_loader *l;
  bool more;
  ck_ok(tl_loader_windows(t, 3, 3, order, 2, false, 1, 1, &l));
  tl_tokens_free(t);
  ck_ok(tl_loader_next(l, out, &more));
  ck_tensor(out[1], 0, 7, 8, 9, 1, 65535, 3);
  tl_tensor_free(out[0]);
  tl_tensor_free(out[1]);
  tl_loader_free(l);
  tl_tensor_free(order);
  clear_scratch();
}
END_TEST

START_TEST(a_changed_file_is_an_error) {
  const char *path = write_file("ids", ids16, sizeof ids16);
  tl_tokens *t = open_tokens(path, NULL);
  tl_tensor *order = make_tensor(TL_INT64, SHAPE(2), (double[]){0, 1}), *out[2], *ids = NULL;
  tl_loader *l;
  bool more;
  ck_ok(tl_loader_windows(t, 3, 3, order, 1, false, 0, 1, &l));
  ck_ok(tl_loader_next(l, out, &more));
  tl_tensor_free(out[0]);
  tl_tensor_free(out[1]);
  ck_assert_int_eq(truncate(path, 0), 0); /* reading the mapping now would be a bus error */
  ck_fails(tl_loader_next(l, out, &more), TL_ERR_FORMAT, "was changed");
  ck_fails(tl_tokens_read(t, 0, 1, &ids), TL_ERR_FORMAT, "20 bytes, now 0");
  tl_loader_free(l);
  tl_tokens_free(t);
  t = open_tokens(write_file("ids", ids16, sizeof ids16), NULL);
  struct timeval times[2] = {{1, 0}, {1, 0}};
  ck_assert_int_eq(utimes(path, times), 0);
  ck_fails(tl_tokens_read(t, 0, 1, &ids), TL_ERR_FORMAT, "was changed");
  tl_tokens_free(t);
  tl_tensor_free(order);
  clear_scratch();
}
END_TEST

static double resident_megabytes(void) {
  long pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  ck_assert_int_eq(fscanf(f, "%*d %ld", &pages), 1);
  fclose(f);
  return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

/* 8 GB on paper: windows from all over it cost what they hold, not the file. */
START_TEST(only_what_is_wanted_is_read) {
  const char *path = write_file("ids", "", 0);
  ck_assert_int_eq(truncate(path, (off_t)8 << 30), 0);
  double before = resident_megabytes();
  tl_tokens *t = open_tokens(path, NULL);
  double places[200];
  for (int i = 0; i < 200; i++) places[i] = i * 2e7;
  tl_tensor *order = make_tensor(TL_INT64, SHAPE(200), places), *out[2];
  tl_loader *l;
  bool more = true;
  ck_ok(tl_loader_windows(t, 1024, 1, order, 8, false, 2, 2, &l));
  for (int b = 0; b < 25; b++) {
    ck_ok(tl_loader_next(l, out, &more));
    ck_assert(more);
    tl_tensor_free(out[0]);
    tl_tensor_free(out[1]);
  }
  double grown = resident_megabytes() - before;
  ck_assert_msg(grown < 64, "%g MB became resident", grown);
  tl_loader_free(l);
  tl_tensor_free(order);
  tl_tokens_free(t);
  clear_scratch();
}
END_TEST

START_TEST(writing) {
  tl_token_writer *w;
  tl_tensor *a = make_tensor(TL_INT64, SHAPE(2, 2), (double[]){1, 2, 3, 65535}), *column;
  tl_tensor *b = make_tensor(TL_INT32, SHAPE(1), (double[]){9}),
            *big = make_tensor(TL_INT64, SHAPE(1), (double[]){65536});
  tl_tensor *negative = make_tensor(TL_INT64, SHAPE(2), (double[]){5, -1});
  tl_tensor *real = make_tensor(TL_FLOAT32, SHAPE(1), (double[]){1});
  ck_ok(tl_token_writer_new(scratch("out"), "uint16", &w));
  ck_ok(tl_token_writer_add(w, a));
  ck_ok(tl_select(a, 1, 1, &column)); /* strided */
  ck_ok(tl_token_writer_add(w, column));
  ck_ok(tl_token_writer_add(w, b));
  ck_fails(tl_token_writer_add(w, big), TL_ERR_VALUE, "id 65536 at place 0 is not 0 to 65535");
  ck_fails(tl_token_writer_add(w, negative), TL_ERR_VALUE, "id -1 at place 1");
  ck_fails(tl_token_writer_add(w, real), TL_ERR_DTYPE, "float32");
  ck_assert_int_eq(access(scratch("out"), F_OK), -1);
  ck_ok(tl_token_writer_close(w));
  ck_fails(tl_token_writer_add(w, b), TL_ERR_STATE, "closed");
  tl_token_writer_free(w);
  tl_tokens *t = open_tokens(scratch("out"), NULL);
  ck_ids(t, 0, 7, (double[]){1, 2, 3, 65535, 2, 65535, 9});
  tl_tokens_free(t);
  for (int i = 0; i < 3; i++) { /* the same bytes of a small id in every width */
    static const char *const dtypes[] = {"uint8", "uint32", "int64"};
    ck_ok(tl_token_writer_new(scratch("out"), dtypes[i], &w));
    ck_ok(tl_token_writer_add(w, b));
    ck_ok(tl_token_writer_close(w));
    tl_token_writer_free(w);
    t = open_tokens(scratch("out"), dtypes[i]);
    ck_ids(t, 0, 1, (double[]){9});
    tl_tokens_free(t);
  }
  ck_fails(tl_token_writer_new(scratch("out"), "float32", &w), TL_ERR_DTYPE, "float32");
  ck_fails(tl_token_writer_new(scratch("no/where"), "uint16", &w), TL_ERR_IO, "No such file");
  ck_ok(tl_token_writer_new(scratch("given up"), "uint16", &w));
  tl_token_writer_free(w);
  ck_assert_int_eq(clear_scratch(), 1);
  tl_tensor *all[] = {a, b, big, negative, real, column};
  for (int i = 0; i < 6; i++) tl_tensor_free(all[i]);
}
END_TEST

TEST_MAIN("tokens", ids_of_every_width, files_with_a_header, files_that_are_not_what_they_should_be,
          windows_and_the_ids_that_follow, a_loader_outlives_the_handle, a_changed_file_is_an_error,
          only_what_is_wanted_is_read, writing)
