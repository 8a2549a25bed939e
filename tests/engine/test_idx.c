/* test_idx.c: the IDX reader, and what all readers share: gzip, bounds, names in messages. */
#include "check_file.h"

static const unsigned char small[] = {0, 0, 0x08, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 250, 251, 252};

START_TEST(reads_uint8_plain_and_gzip) {
  int64_t before = live_tensors();
  for (int packed = 0; packed < 2; packed++) {
    const char *path = packed ? write_gzip("a.gz", small, sizeof small) : write_file("a", small, sizeof small);
    tl_tensor *t;
    ck_ok(tl_read_idx(path, &t));
    ck_assert_int_eq(tl_dtype_of(t), TL_UINT8);
    ck_assert_int_eq(tl_ndim(t), 2);
    ck_assert(tl_size(t, 0) == 2 && tl_size(t, 1) == 3);
    ck_tensor(t, 0, 1, 2, 3, 250, 251, 252);
    tl_tensor_free(t);
  }
  ck_assert_int_eq(live_tensors(), before);
  clear_scratch();
}
END_TEST

START_TEST(reads_every_type) {
  const struct {
    unsigned char bytes[24];
    size_t n;
    int dtype;
    double a, b;
  } files[] = {
      {{0, 0, 0x09, 1, 0, 0, 0, 2, 0xff, 5}, 10, TL_INT32, -1, 5},
      {{0, 0, 0x0b, 1, 0, 0, 0, 2, 0xff, 0xfe, 1, 0}, 12, TL_INT32, -2, 256},
      {{0, 0, 0x0c, 1, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xfd, 0, 1, 0, 0}, 16, TL_INT32, -3, 65536},
      {{0, 0, 0x0d, 1, 0, 0, 0, 2, 0x3f, 0x80, 0, 0, 0xc0, 0, 0, 0}, 16, TL_FLOAT32, 1, -2},
      {{0, 0, 0x0e, 1, 0, 0, 0, 2, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0}, 24, TL_FLOAT64, 1, -2},
  };
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    tl_tensor *t;
    ck_ok(tl_read_idx(write_file("t", files[i].bytes, files[i].n), &t));
    ck_assert_int_eq(tl_dtype_of(t), files[i].dtype);
    ck_tensor(t, 0, files[i].a, files[i].b);
    tl_tensor_free(t);
  }
  clear_scratch();
}
END_TEST

START_TEST(reads_scalars_and_empty) {
  const unsigned char scalar[] = {0, 0, 8, 0, 7}, none[] = {0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0, 9};
  tl_tensor *t;
  ck_ok(tl_read_idx(write_file("s", scalar, sizeof scalar), &t));
  ck_assert_int_eq(tl_ndim(t), 0);
  ck_tensor(t, 0, 7);
  tl_tensor_free(t);
  ck_ok(tl_read_idx(write_file("n", none, sizeof none), &t));
  ck_assert(tl_numel(t) == 0 && tl_size(t, 1) == 9);
  tl_tensor_free(t);
  clear_scratch();
}
END_TEST

START_TEST(refuses_what_is_not_idx) {
  int64_t before = live_tensors();
  tl_tensor *t = NULL;
  unsigned char bad[sizeof small + 1];
  for (size_t cut = 0; cut < sizeof small; cut++) {
    ck_fails(tl_read_idx(write_file("cut", small, cut), &t), TL_ERR_FORMAT, "cut: ");
    ck_fails(tl_read_idx(write_gzip("cut.gz", small, cut), &t), TL_ERR_FORMAT, "cut.gz: ");
  }
  memcpy(bad, small, sizeof small);
  bad[sizeof small] = 0;
  ck_fails(tl_read_idx(write_file("long", bad, sizeof bad), &t), TL_ERR_FORMAT, "more bytes follow at byte 18");
  bad[2] = 0x0a;
  ck_fails(tl_read_idx(write_file("type", bad, sizeof small), &t), TL_ERR_FORMAT, "no IDX type 0x0a");
  bad[0] = 0x89;
  ck_fails(tl_read_idx(write_file("magic", bad, sizeof small), &t), TL_ERR_FORMAT, "not an IDX file");
  const unsigned char deep[] = {0, 0, 8, 9};
  ck_fails(tl_read_idx(write_file("deep", deep, sizeof deep), &t), TL_ERR_FORMAT, "9 dims");
  ck_fails(tl_read_idx(scratch("absent"), &t), TL_ERR_IO, "No such file");
  ck_fails(tl_read_idx("/tmp", &t), TL_ERR_IO, "not a regular file");
  ck_assert_ptr_null(t);
  ck_assert_int_eq(live_tensors(), before);
  clear_scratch();
}
END_TEST

/* Sizes that no honest file of this length can have are refused before anything is allocated. */
START_TEST(refuses_huge_promises_without_allocating) {
  const unsigned char big[] = {0, 0, 0x0e, 2, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 200, 1};
  unsigned char overflow[4 + 32 + 1] = {0, 0, 0x08, 8};
  memset(overflow + 4, 0xff, 32);
  tl_memory_stats s;
  ck_ok(tl_reset_peak_memory(TL_CPU));
  tl_tensor *t = NULL;
  ck_fails(tl_read_idx(write_file("big", big, sizeof big), &t), TL_ERR_FORMAT, "needs 3435973835200 bytes");
  ck_fails(tl_read_idx(write_gzip("big.gz", big, sizeof big), &t), TL_ERR_FORMAT, "needs 3435973835200 bytes");
  ck_fails(tl_read_idx(write_file("over", overflow, sizeof overflow), &t), TL_ERR_FORMAT, "too big to address");
  ck_ok(tl_memory(TL_CPU, &s));
  ck_assert(s.peak < 65536);
  clear_scratch();
}
END_TEST

START_TEST(refuses_damaged_gzip) {
  char packed[256];
  size_t n = read_file(write_gzip("a.gz", small, sizeof small), packed, sizeof packed);
  tl_tensor *t = NULL;
  for (size_t cut = 3; cut < n; cut++) {
    write_file("cut.gz", packed, cut);
    ck_assert_int_ne(tl_read_idx(scratch("cut.gz"), &t), TL_OK);
  }
  packed[n - 8] ^= 1; /* the checksum */
  ck_fails(tl_read_idx(write_file("sum.gz", packed, n), &t), TL_ERR_FORMAT, "the gzip data is damaged");
  clear_scratch();
}
END_TEST

START_TEST(survives_failing_allocations) {
  write_gzip("a.gz", small, sizeof small);
  int64_t before = live_tensors();
  for (int k = 1;; k++) {
    tl_tensor *t = NULL;
    tl_fail_allocation(k);
    tl_status st = tl_read_idx(scratch("a.gz"), &t);
    tl_fail_allocation(0);
    tl_tensor_free(t);
    ck_assert_int_eq(live_tensors(), before);
    if (st == TL_OK) {
      ck_assert_int_gt(k, 1);
      break;
    }
    ck_assert_int_eq(st, TL_ERR_MEMORY);
  }
  clear_scratch();
}
END_TEST

TEST_MAIN("idx", reads_uint8_plain_and_gzip, reads_every_type, reads_scalars_and_empty, refuses_what_is_not_idx,
          refuses_huge_promises_without_allocating, refuses_damaged_gzip, survives_failing_allocations)
