/* test_graph.c: recorded work: its memory, what is refused, and that a failed recording leaves everything as it was. */
#include "check_cuda.h"

static tl_tensor *filled(double value) {
  tl_tensor *t = NULL;
  ck_ok(tl_full(SHAPE(5000), value, TL_FLOAT32, cuda_device(), &t));
  return t;
}

static double first_of(const tl_tensor *t) {
  double v[5000];
  ck_ok(tl_to_doubles(t, 5000, v));
  for (int i = 1; i < 5000; i++) ck_assert_double_eq(v[i], v[0]);
  return v[0];
}

static double allocated(void) {
  tl_memory_details d;
  ck_ok(tl_memory_details_of(cuda_device(), &d));
  return d.allocated;
}

/* x -> 2 x + 1, with temporaries */
static tl_graph *record(tl_tensor *x, tl_tensor **y) {
  tl_graph *g;
  tl_tensor *twice;
  ck_ok(tl_graph_begin(cuda_device(), &g));
  ck_ok(tl_mul_scalar(x, 2, &twice));
  ck_ok(tl_add_scalar(twice, 1, y));
  tl_tensor_free(twice);
  ck_ok(tl_graph_end(&g, true));
  return g;
}

START_TEST(replays_work_on_the_same_memory) {
  tl_tensor *x = filled(0), *y;
  tl_graph *g = record(x, &y);
  for (int i = 0; i < 10; i++) {
    tl_tensor *other = filled(-i); /* does not get the recording's memory */
    ck_ok(tl_fill_(x, i));
    ck_ok(tl_graph_replay(g));
    ck_assert_double_eq(first_of(y), 2 * i + 1);
    ck_assert_double_eq(first_of(other), -i);
    tl_tensor_free(other);
  }
  tl_graph_free(g);
  ck_assert_double_eq(first_of(y), 19);
  tl_tensor_free(x);
  tl_tensor_free(y);
  ck_ok(tl_synchronize(cuda_device()));
  ck_assert_double_eq(allocated(), 0);
}
END_TEST

START_TEST(what_a_recording_read_stays_as_long_as_it) {
  tl_tensor *x = filled(3), *y;
  tl_graph *g = record(x, &y);
  tl_tensor_free(x);
  for (int i = 0; i < 4; i++) {
    tl_tensor *other = filled(100);
    ck_ok(tl_graph_replay(g));
    ck_assert_double_eq(first_of(y), 7);
    tl_tensor_free(other);
  }
  tl_graph_free(g);
  tl_tensor_free(y);
  ck_assert_double_eq(allocated(), 0);
}
END_TEST

START_TEST(a_replay_from_another_stream_is_in_order) {
  tl_tensor *x = filled(0), *y;
  tl_graph *g = record(x, &y);
  tl_stream *s, *own;
  ck_ok(tl_stream_new(cuda_device(), false, &s));
  ck_ok(tl_stream_use(cuda_device(), s, &own));
  ck_ok(tl_stream_wait_stream(s, own));
  for (int i = 0; i < 5; i++) {
    ck_ok(tl_fill_(x, i));
    ck_ok(tl_graph_replay(g));
    ck_assert_double_eq(first_of(y), 2 * i + 1);
  }
  ck_ok(tl_stream_use(cuda_device(), own, NULL));
  ck_ok(tl_stream_wait_stream(own, s));
  tl_stream_free(s);
  tl_stream_free(own);
  tl_graph_free(g);
  tl_tensor_free(x);
  tl_tensor_free(y);
}
END_TEST

START_TEST(what_needs_the_host_is_refused) {
  tl_tensor *x = filled(1), *y, *host;
  tl_graph *g, *inner;
  tl_stream *s;
  double v[5000] = {0};
  ck_ok(tl_stream_new(cuda_device(), false, &s));
  ck_ok(tl_graph_begin(cuda_device(), &g));
  ck_fails(tl_to_doubles(x, 5000, v), TL_ERR_STATE, "while a step is recorded");
  ck_fails(tl_synchronize(cuda_device()), TL_ERR_STATE, "while a step is recorded");
  ck_ok(tl_from_doubles(SHAPE(5), TL_FLOAT32, TL_CPU, v, &host));
  ck_fails(tl_to(host, TL_FLOAT32, cuda_device(), &y), TL_ERR_STATE, "while a step is recorded");
  ck_fails(tl_graph_begin(cuda_device(), &inner), TL_ERR_STATE, "already");
  ck_fails(tl_stream_use(cuda_device(), s, NULL), TL_ERR_STATE, "stays on its stream");
  ck_ok(tl_add_scalar(x, 1, &y));
  ck_ok(tl_graph_end(&g, false));
  ck_assert_ptr_null(g);
  ck_assert_double_eq(first_of(x), 1);
  tl_tensor_free(x);
  tl_tensor_free(y);
  tl_tensor_free(host);
  tl_stream_free(s);
  ck_assert_double_eq(allocated(), 0);
}
END_TEST

TEST_MAIN("cuda graphs", replays_work_on_the_same_memory, what_a_recording_read_stays_as_long_as_it,
          a_replay_from_another_stream_is_in_order, what_needs_the_host_is_refused)
