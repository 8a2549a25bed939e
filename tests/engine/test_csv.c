/* test_csv.c: tables as text, and errors that name the line and the column. */
#include "check_file.h"

static const tl_csv_options plain = {.delimiter = ',', .header = -1, .dtype = TL_FLOAT32};

static tl_tensor *read_text(const char *text, const tl_csv_options *o, tl_archive **columns) {
  tl_tensor *t = NULL;
  tl_archive *a = NULL;
  ck_ok(tl_read_csv(write_file("t.csv", text, strlen(text)), o, &t, &a));
  if (columns != NULL) *columns = a;
  else tl_archive_free(a);
  return t;
}

static void fails(const char *text, const tl_csv_options *o, tl_status code, const char *message) {
  int64_t before = live_tensors();
  tl_tensor *t = NULL;
  tl_archive *a = NULL;
  ck_fails(tl_read_csv(write_file("t.csv", text, strlen(text)), o, &t, &a), code, message);
  ck_assert(t == NULL && a == NULL && live_tensors() == before);
}

START_TEST(reads_a_table_with_a_header) {
  tl_archive *a;
  tl_tensor *t = read_text("\xef\xbb\xbf\"a\",\"b \"\"c\"\"\"\r\n1,2\r\n\r\n-3.5,\"4e2\"\r\n", &plain, &a), *column;
  ck_assert(tl_size(t, 0) == 2 && tl_size(t, 1) == 2 && tl_dtype_of(t) == TL_FLOAT32);
  ck_tensor(t, 0, 1, 2, -3.5, 400);
  ck_assert_int_eq(tl_archive_count(a), 2);
  ck_assert_str_eq(tl_archive_name(a, 0), "a");
  ck_assert_str_eq(tl_archive_name(a, 1), "b \"c\"");
  ck_ok(tl_archive_tensor(a, 1, &column));
  ck_tensor(column, 0, 2, 400);
  tl_tensor_free(column);
  tl_archive_free(a);
  tl_tensor_free(t);
  clear_scratch();
}
END_TEST

START_TEST(header_is_found_or_told) {
  tl_archive *a;
  tl_tensor *t = read_text("1,2\n3,4", &plain, &a); /* all numbers: data */
  ck_tensor(t, 0, 1, 2, 3, 4);
  ck_assert_str_eq(tl_archive_name(a, 1), "1");
  tl_archive_free(a);
  tl_tensor_free(t);
  tl_csv_options o = plain;
  o.header = 1;
  t = read_text("1,2\n3,4\n", &o, NULL);
  ck_tensor(t, 0, 3, 4);
  tl_tensor_free(t);
  t = read_text("1,2\n", &o, NULL);
  ck_assert(tl_size(t, 0) == 0 && tl_size(t, 1) == 2);
  tl_tensor_free(t);
  o.header = 0;
  fails("a,b\n1,2\n", &o, TL_ERR_FORMAT, "line 1, column 1: 'a' is not a number");
  clear_scratch();
}
END_TEST

START_TEST(selects_columns_by_name_and_position) {
  const char *names[] = {"z", NULL, NULL};
  int positions[] = {0, -2, 0};
  tl_csv_options o = plain;
  o.columns = 3;
  o.names = names;
  o.positions = positions;
  o.dtype = TL_INT64;
  tl_tensor *t = read_text("x,text,y,z\n1,\"any, \n thing\",2,3\n4,,5,6\n", &o, NULL);
  ck_assert_int_eq(tl_dtype_of(t), TL_INT64);
  ck_tensor(t, 0, 3, 2, 1, 6, 5, 4);
  tl_tensor_free(t);
  fails("x,y,w\n1,2,3\n", &o, TL_ERR_VALUE, "no column 'z'");
  positions[1] = 3;
  fails("x,y,z\n1,2,3\n", &o, TL_ERR_INDEX, "there is no column 3, line 1 has 3");
  o.header = 0;
  fails("1,2,3\n", &o, TL_ERR_VALUE, "'z' is asked for by name, and there is no header");
  clear_scratch();
}
END_TEST

START_TEST(parses_numbers_exactly) {
  const char *numbers[] = {"0.1",
                           "-0.1",
                           "123456789012345",
                           "1234567890123456789",
                           "0.30000000000000004",
                           "1e-320",
                           "12.5 ",
                           " 7",
                           "+3",
                           "1e5",
                           "-.5",
                           "5.",
                           "inf",
                           "-1.5e-3",
                           "0000000000000001.5"};
  tl_csv_options o = plain;
  o.header = 0;
  o.dtype = TL_FLOAT64;
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    tl_tensor *t = read_text(numbers[i], &o, NULL);
    double v;
    ck_ok(tl_item(t, &v));
    ck_assert(v == strtod(numbers[i], NULL));
    tl_tensor_free(t);
  }
  const char *wrong[] = {"1.2.3", "-", ".", "1x", "--1", "1 2", "e5"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) fails(wrong[i], &o, TL_ERR_FORMAT, "is not a number");
  clear_scratch();
}
END_TEST

START_TEST(errors_name_line_and_column) {
  fails("a,b\n1,2\n\n3,x\n", &plain, TL_ERR_FORMAT, "t.csv: line 4, column 2: 'x' is not a number");
  fails("a,b\n1,2\n3\n", &plain, TL_ERR_FORMAT, "line 3 has 1 fields, the lines before have 2");
  fails("a,b\n1,2,3\n", &plain, TL_ERR_FORMAT, "line 2 has 3 fields");
  fails("a,b\n1,\n", &plain, TL_ERR_FORMAT, "line 2, column 2 is empty");
  fails("a,b\n1,\"2\n", &plain, TL_ERR_FORMAT, "quoted field of the record at line 2 never ends");
  fails("a,b\n1,\"2\"3\n", &plain, TL_ERR_FORMAT, "line 2, column 2: text follows the closing quote");
  fails("a,b\n\"1\n\n\",x\n", &plain, TL_ERR_FORMAT, "line 2, column 1: '1");
  fails("", &plain, TL_ERR_FORMAT, "holds no records");
  fails("\n\r\n", &plain, TL_ERR_FORMAT, "holds no records");
  tl_tensor *t;
  tl_archive *a;
  ck_fails(tl_read_csv(write_file("n.csv", "1\0002", 3), &plain, &t, &a), TL_ERR_FORMAT, "line 1 holds a NUL byte");
  tl_csv_options o = plain;
  o.delimiter = '"';
  fails("1", &o, TL_ERR_VALUE, "delimiter");
  clear_scratch();
}
END_TEST

START_TEST(missing_fields_can_be_nan) {
  tl_csv_options o = plain;
  o.allow_missing = true;
  o.delimiter = ';';
  tl_tensor *t = read_text("a;b\n1;\n ;2\n", &o, NULL);
  ck_tensor(t, 0, 1, NAN, NAN, 2);
  tl_tensor_free(t);
  clear_scratch();
}
END_TEST

/* Many rows, through gzip, and records that cross the reader's buffer. */
START_TEST(reads_long_files) {
  enum { ROWS = 30000 };
  char *text = malloc(ROWS * 24);
  int n = 0;
  for (int i = 0; i < ROWS; i++) n += sprintf(text + n, "%d,%d.25\n", i, -i);
  tl_tensor *t;
  tl_archive *a;
  ck_ok(tl_read_csv(write_gzip("l.csv.gz", text, (size_t)n), &plain, &t, &a));
  ck_assert(tl_size(t, 0) == ROWS);
  for (int64_t i = 0; i < ROWS; i += 997) {
    double v;
    ck_ok(tl_get(t, 2, (int64_t[]){i, 0}, &v));
    ck_assert(v == i);
    ck_ok(tl_get(t, 2, (int64_t[]){i, 1}, &v));
    ck_assert(i == 0 || v == -i - .25);
  }
  tl_archive_free(a);
  tl_tensor_free(t);
  free(text);
  clear_scratch();
}
END_TEST

START_TEST(survives_failing_allocations) {
  write_file("t.csv", "a,b\n1,2\n", 8);
  int64_t before = live_tensors();
  for (int k = 1;; k++) {
    tl_tensor *t = NULL;
    tl_archive *a = NULL;
    tl_fail_allocation(k);
    tl_status st = tl_read_csv(scratch("t.csv"), &plain, &t, &a);
    tl_fail_allocation(0);
    tl_archive_free(a);
    tl_tensor_free(t);
    ck_assert_int_eq(live_tensors(), before);
    if (st == TL_OK) break;
    ck_assert_int_eq(st, TL_ERR_MEMORY);
  }
  clear_scratch();
}
END_TEST

TEST_MAIN("csv", reads_a_table_with_a_header, header_is_found_or_told, selects_columns_by_name_and_position,
          parses_numbers_exactly, errors_name_line_and_column, missing_fields_can_be_nan, reads_long_files,
          survives_failing_allocations)
