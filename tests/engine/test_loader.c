/* test_loader.c: batches are the same, and in the same order, whatever the number of threads. */
#include <dirent.h>
#include <unistd.h>

#include "check_tl.h"

static int count_threads(void) {
  DIR *d = opendir("/proc/self/task");
  int n = 0;
  for (struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}

/* x (10, 3): row i is {i, i + .25, i + .5}; y int64 (10): 100 + i */
static void make_data(tl_tensor **x, tl_tensor **y) {
  double xs[30], ys[10];
  for (int i = 0; i < 10; i++) {
    ys[i] = 100 + i;
    for (int j = 0; j < 3; j++) xs[i * 3 + j] = i + .25 * j;
  }
  *x = make_tensor(TL_FLOAT32, SHAPE(10, 3), xs);
  *y = make_tensor(TL_INT64, SHAPE(10), ys);
}

static const double order_values[] = {3, 1, 4, 1, 5, 9, 2, 6, 0, 8, 7};

static void check_epoch(tl_tensor *x, tl_tensor *y, int64_t batch, bool drop_last, int workers, int prefetch) {
  tl_tensor *order = make_tensor(TL_INT64, SHAPE(11), order_values), *sources[2] = {x, y}, *out[2];
  tl_loader *l;
  ck_ok(tl_loader_new(2, sources, order, batch, drop_last, workers, prefetch, &l));
  tl_tensor_free(order);
  bool more;
  int64_t seen = 0;
  for (;;) {
    ck_ok(tl_loader_next(l, out, &more));
    if (!more) break;
    int64_t rows = 11 - seen < batch ? 11 - seen : batch;
    ck_assert(tl_size(out[0], 0) == rows && tl_size(out[1], 0) == rows && tl_ndim(out[1]) == 1);
    double xs[33], ys[11];
    ck_ok(tl_to_doubles(out[0], rows * 3, xs));
    ck_ok(tl_to_doubles(out[1], rows, ys));
    for (int64_t r = 0; r < rows; r++, seen++) {
      ck_assert(ys[r] == 100 + order_values[seen]);
      for (int j = 0; j < 3; j++) ck_assert(xs[r * 3 + j] == order_values[seen] + .25 * j);
    }
    tl_tensor_free(out[0]);
    tl_tensor_free(out[1]);
  }
  ck_assert_int_eq(seen, drop_last ? 11 / batch * batch : 11);
  ck_ok(tl_loader_next(l, out, &more)); /* the end stays the end */
  ck_assert(!more);
  tl_loader_free(l);
}

START_TEST(same_batches_for_any_threads) {
  tl_tensor *x, *y;
  make_data(&x, &y);
  int64_t before = live_tensors();
  for (int workers = 0; workers <= 4; workers++)
    for (int prefetch = 1; prefetch <= 3; prefetch++)
      for (int64_t batch = 1; batch <= 12; batch++)
        for (int drop = 0; drop < 2; drop++) check_epoch(x, y, batch, drop, workers, prefetch);
  ck_assert_int_eq(live_tensors(), before);
  tl_tensor_free(x);
  tl_tensor_free(y);
}
END_TEST

START_TEST(any_strides) {
  tl_tensor *x, *y, *t, *back, *wide;
  make_data(&x, &y);
  ck_ok(tl_transpose(x, 0, 1, &t));
  ck_ok(tl_clone(t, &wide)); /* (3, 10) in memory */
  ck_ok(tl_transpose(wide, 0, 1, &back));
  ck_assert(!tl_is_contiguous(back));
  check_epoch(back, y, 4, false, 2, 2);
  tl_tensor_free(t);
  tl_tensor_free(back);
  tl_tensor_free(wide);
  tl_tensor *parts[2] = {x, x}; /* rows of a narrowed (10, 6) */
  double v[60];
  for (int i = 0; i < 60; i++) v[i] = i / 6 + (i % 6 >= 2 && i % 6 < 5 ? .25 * (i % 6 - 2) : -1);
  wide = make_tensor(TL_FLOAT32, SHAPE(10, 6), v);
  ck_ok(tl_narrow(wide, 1, 2, 3, &parts[0]));
  check_epoch(parts[0], y, 3, false, 1, 1);
  tl_tensor_free(parts[0]);
  tl_tensor_free(wide);
  tl_tensor_free(x);
  tl_tensor_free(y);
}
END_TEST

START_TEST(empty_rows_and_no_samples) {
  tl_tensor *x = make_tensor(TL_FLOAT32, SHAPE(4, 0), NULL), *order = TENSOR(TL_INT64, SHAPE(2), 3, 0), *out;
  tl_loader *l;
  bool more;
  ck_ok(tl_loader_new(1, &x, order, 2, false, 1, 1, &l));
  ck_ok(tl_loader_next(l, &out, &more));
  ck_assert(more && tl_size(out, 0) == 2 && tl_size(out, 1) == 0);
  tl_tensor_free(out);
  tl_loader_free(l);
  tl_tensor_free(order);
  order = make_tensor(TL_INT64, SHAPE(0), NULL);
  ck_ok(tl_loader_new(1, &x, order, 2, false, 2, 1, &l));
  ck_ok(tl_loader_next(l, &out, &more));
  ck_assert(!more);
  tl_loader_free(l);
  tl_tensor_free(order);
  tl_tensor_free(x);
}
END_TEST

START_TEST(abandoning_stops_the_threads) {
  tl_tensor *x, *y, *order = make_tensor(TL_INT64, SHAPE(11), order_values);
  make_data(&x, &y);
  tl_tensor *sources[2] = {x, y}, *out[2];
  int64_t before = live_tensors();
  int threads = count_threads(), most = 0;
  for (int taken = 0; taken < 4; taken++) {
    tl_loader *l;
    bool more;
    ck_ok(tl_loader_new(2, sources, order, 1, false, 3, 2, &l)); /* more batches than slots: the workers stay */
    int now = count_threads(); /* a lower bound: /proc skips entries while threads come and go */
    if (now > most) most = now;
    for (int i = 0; i < taken; i++) {
      ck_ok(tl_loader_next(l, out, &more));
      tl_tensor_free(out[0]);
      tl_tensor_free(out[1]);
    }
    tl_loader_free(l);
    ck_assert_int_eq(live_tensors(), before);
  }
  ck_assert_int_gt(most, threads);
  /* A joined thread may be listed for a moment longer. */
  for (int wait = 0; wait < 1000 && count_threads() != threads; wait++) usleep(1000);
  ck_assert_int_eq(count_threads(), threads);
  tl_tensor_free(x);
  tl_tensor_free(y);
  tl_tensor_free(order);
}
END_TEST

/* The sources may go away: the loader holds their bytes. */
START_TEST(holds_its_sources) {
  tl_tensor *x, *y, *order = make_tensor(TL_INT64, SHAPE(11), order_values), *out;
  make_data(&x, &y);
  tl_loader *l;
  bool more;
  ck_ok(tl_loader_new(1, &y, order, 11, false, 0, 1, &l));
  tl_tensor_free(x);
  tl_tensor_free(y);
  tl_tensor_free(order);
  ck_ok(tl_loader_next(l, &out, &more));
  ck_tensor(out, 0, 103, 101, 104, 101, 105, 109, 102, 106, 100, 108, 107);
  tl_tensor_free(out);
  tl_loader_free(l);
}
END_TEST

START_TEST(refuses_bad_arguments) {
  tl_tensor *x, *y, *order = TENSOR(TL_INT64, SHAPE(2), 0, 10), *wrong = TENSOR(TL_INT32, SHAPE(2), 0, 1);
  tl_tensor *scalar = make_tensor(TL_FLOAT32, 0, NULL, (double[]){1});
  make_data(&x, &y);
  int64_t before = live_tensors();
  tl_loader *l = NULL;
  ck_fails(tl_loader_new(1, &x, order, 2, false, 0, 2, &l), TL_ERR_INDEX, "names sample 10 at place 1, there are 10");
  ck_fails(tl_loader_new(1, &x, wrong, 2, false, 0, 2, &l), TL_ERR_DTYPE, "int64");
  ck_fails(tl_loader_new(1, &x, order, 0, false, 0, 2, &l), TL_ERR_VALUE, "batch size is 0");
  ck_fails(tl_loader_new(1, &x, order, 1, false, -1, 2, &l), TL_ERR_VALUE, "num_workers is -1");
  ck_fails(tl_loader_new(1, &x, order, 1, false, 1, 0, &l), TL_ERR_VALUE, "prefetch is 0");
  ck_fails(tl_loader_new(1, &scalar, order, 1, false, 0, 1, &l), TL_ERR_SHAPE, "0-d");
  tl_tensor *pair[2] = {x, wrong};
  ck_fails(tl_loader_new(2, pair, order, 1, false, 0, 1, &l), TL_ERR_SHAPE, "(10x3) and (2) hold different numbers");
  ck_assert_ptr_null(l);
  ck_assert_int_eq(live_tensors(), before);
  tl_tensor_free(scalar);
  tl_tensor_free(order);
  tl_tensor_free(wrong);
  tl_tensor_free(x);
  tl_tensor_free(y);
}
END_TEST

START_TEST(survives_failing_allocations) {
  tl_tensor *x, *y, *order = make_tensor(TL_INT64, SHAPE(11), order_values);
  make_data(&x, &y);
  tl_tensor *sources[2] = {x, y};
  int64_t before = live_tensors();
  for (int workers = 0; workers < 3; workers++)
    for (int k = 1;; k++) {
      tl_loader *l = NULL;
      tl_tensor *out[2];
      bool more = true;
      int64_t batches = 0;
      tl_fail_allocation(k);
      tl_status st = tl_loader_new(2, sources, order, 2, false, workers, 1, &l);
      while (l != NULL && more) { /* a batch that failed for want of memory can be asked for again */
        st = tl_loader_next(l, out, &more);
        if (st != TL_OK || !more) continue;
        batches++;
        tl_tensor_free(out[0]);
        tl_tensor_free(out[1]);
      }
      bool hit = tl_fail_allocation(0) >= k;
      if (l != NULL) ck_assert_int_eq(batches, 6);
      tl_loader_free(l);
      ck_assert_int_eq(live_tensors(), before);
      if (!hit) break;
    }
  tl_tensor_free(x);
  tl_tensor_free(y);
  tl_tensor_free(order);
}
END_TEST

START_TEST(interrupts_arrive) {
  tl_tensor *x, *y, *order = make_tensor(TL_INT64, SHAPE(11), order_values), *out;
  make_data(&x, &y);
  for (int workers = 0; workers < 2; workers++) {
    tl_loader *l;
    bool more;
    int interrupted = 0;
    ck_ok(tl_loader_new(1, &y, order, 1, false, workers, 1, &l));
    tl_interrupt();
    for (int i = 0; i < 3 && interrupted == 0; i++) {
      tl_status st = tl_loader_next(l, &out, &more);
      if (st == TL_OK) tl_tensor_free(out);
      interrupted += st == TL_ERR_INTERRUPT;
    }
    ck_assert_int_eq(interrupted, 1);
    tl_loader_free(l);
  }
  tl_tensor_free(x);
  tl_tensor_free(y);
  tl_tensor_free(order);
}
END_TEST

TEST_MAIN("loader", same_batches_for_any_threads, any_strides, empty_rows_and_no_samples, abandoning_stops_the_threads,
          holds_its_sources, refuses_bad_arguments, survives_failing_allocations, interrupts_arrive)
