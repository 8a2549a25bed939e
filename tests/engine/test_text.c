/* test_text.c: a whole file as bytes, within a limit. */
#include "check_file.h"

START_TEST(reads_plain_and_gzip) {
  tl_tensor *t;
  const char *texts[] = {"", "hello\n"};
  for (int i = 0; i < 2; i++)
    for (int packed = 0; packed < 2; packed++) {
      size_t n = strlen(texts[i]);
      ck_ok(tl_read_bytes(packed ? write_gzip("t", texts[i], n) : write_file("t", texts[i], n), 1e9, &t));
      ck_assert_int_eq(tl_dtype_of(t), TL_UINT8);
      ck_assert(tl_ndim(t) == 1 && tl_numel(t) == (double)n && memcmp(tl_data(t), texts[i], n) == 0);
      tl_tensor_free(t);
    }
  clear_scratch();
}
END_TEST

/* Longer than any buffer: every byte in its place. */
START_TEST(reads_long_gzip) {
  size_t n = 5000001;
  char *data = malloc(n);
  for (size_t i = 0; i < n; i++) data[i] = (char)(i * 2654435761u >> 13);
  tl_tensor *t;
  ck_ok(tl_read_bytes(write_gzip("l.gz", data, n), (double)n, &t));
  ck_assert(tl_numel(t) == (double)n && memcmp(tl_data(t), data, n) == 0);
  tl_tensor_free(t);
  int64_t before = live_tensors();
  ck_fails(tl_read_bytes(scratch("l.gz"), (double)n - 1, &t), TL_ERR_FORMAT, "l.gz: holds more than the 5000000 bytes");
  ck_fails(tl_read_bytes(scratch("l.gz"), 0, &t), TL_ERR_FORMAT, "more than the 0 bytes");
  ck_fails(tl_read_bytes(write_file("p", data, 10), 9, &t), TL_ERR_FORMAT, "more than the 9 bytes");
  ck_fails(tl_read_bytes(scratch("p"), -1, &t), TL_ERR_VALUE, "limit");
  ck_assert_int_eq(live_tensors(), before);
  free(data);
  clear_scratch();
}
END_TEST

START_TEST(survives_failing_allocations) {
  size_t n = 3000000;
  void *zeros = calloc(n, 1);
  write_gzip("z.gz", zeros, n);
  free(zeros);
  int64_t before = live_tensors();
  for (int k = 1;; k++) {
    tl_tensor *t = NULL;
    tl_fail_allocation(k);
    tl_status st = tl_read_bytes(scratch("z.gz"), 1e9, &t);
    tl_fail_allocation(0);
    tl_tensor_free(t);
    ck_assert_int_eq(live_tensors(), before);
    if (st == TL_OK) break;
    ck_assert_int_eq(st, TL_ERR_MEMORY);
  }
  clear_scratch();
}
END_TEST

TEST_MAIN("text", reads_plain_and_gzip, reads_long_gzip, survives_failing_allocations)
