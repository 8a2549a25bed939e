/* test_stream.c: streams, events, the current stream, copies between devices. */
#include "check_cuda.h"

static tl_tensor *vector(double value, tl_device device) {
  tl_tensor *t = NULL;
  ck_ok(tl_full(SHAPE(1000), value, TL_FLOAT32, device, &t));
  return t;
}

static double first_of(const tl_tensor *t) {
  double v[1000];
  ck_ok(tl_to_doubles(t, 1000, v));
  for (int i = 1; i < 1000; i++) ck_assert_double_eq(v[i], v[0]);
  return v[0];
}

START_TEST(events_order_streams) {
  tl_stream *a, *b;
  tl_event *e;
  bool done;
  ck_ok(tl_stream_new(cuda_device(), false, &a));
  ck_ok(tl_stream_new(cuda_device(), true, &b));
  ck_ok(tl_event_new(false, &e));
  ck_ok(tl_event_query(e, &done));
  ck_assert(done); /* it stands for nothing */
  for (int round = 1; round <= 20; round++) {
    ck_ok(tl_stream_use(cuda_device(), a, NULL));
    tl_tensor *x = vector(round, cuda_device()), *y;
    ck_ok(tl_event_record(e, a));
    ck_ok(tl_stream_use(cuda_device(), b, NULL));
    ck_ok(tl_stream_wait(b, e));
    ck_ok(tl_clone(x, &y));
    ck_assert_double_eq(first_of(y), round);
    ck_ok(tl_record_stream(x, b));
    tl_tensor_free(x);
    tl_tensor_free(y);
  }
  ck_ok(tl_event_synchronize(e));
  ck_ok(tl_event_query(e, &done));
  ck_assert(done);
  ck_ok(tl_stream_synchronize(b));
  ck_ok(tl_stream_query(b, &done));
  ck_assert(done);
  ck_ok(tl_stream_use(cuda_device(), NULL, NULL));
  tl_event_free(e);
  tl_stream_free(a);
  tl_stream_free(b);
}
END_TEST

START_TEST(time_passes_between_events) {
  tl_event *a, *b, *plain;
  tl_stream *own;
  double ms = -1;
  ck_ok(tl_event_new(true, &a));
  ck_ok(tl_event_new(true, &b));
  ck_ok(tl_event_new(false, &plain));
  ck_ok(tl_stream_current(cuda_device(), &own));
  ck_fails(tl_event_elapsed(a, b, &ms), TL_ERR_STATE, "was not recorded");
  ck_ok(tl_event_record(a, own));
  tl_tensor *x = vector(1, cuda_device());
  ck_ok(tl_event_record(b, own));
  ck_ok(tl_event_synchronize(b));
  ck_ok(tl_event_elapsed(a, b, &ms));
  ck_assert_double_ge(ms, 0);
  ck_fails(tl_event_elapsed(a, plain, &ms), TL_ERR_STATE, "timing");
  tl_tensor_free(x);
  tl_event_free(a);
  tl_event_free(b);
  tl_event_free(plain);
  tl_stream_free(own);
}
END_TEST

START_TEST(the_current_stream_is_a_matter_of_the_device) {
  tl_stream *s, *former;
  ck_ok(tl_stream_new(cuda_device(), false, &s));
  ck_fails(tl_stream_use(cuda_device() + 1, s, NULL), TL_ERR_DEVICE, "belongs to cuda:0");
  ck_ok(tl_stream_use(cuda_device(), s, &former));
  tl_tensor *x = vector(3, cuda_device());
  ck_assert_double_eq(first_of(x), 3);
  ck_ok(tl_stream_use(cuda_device(), former, NULL));
  tl_tensor_free(x);
  tl_stream_free(former);
  tl_stream_free(s);
  ck_fails(tl_stream_new(TL_CPU, false, &s), TL_ERR_DEVICE, "this is for \"cuda\"");
}
END_TEST

START_TEST(devices_copy_from_each_other) {
  for (int round = 1; round <= 10; round++) {
    tl_tensor *x = vector(round, cuda_device()), *y, *z;
    ck_ok(tl_to(x, TL_FLOAT32, cuda_device() + 1, &y));
    ck_ok(tl_fill_(x, -1)); /* after the copy, although nobody waited */
    ck_ok(tl_to(y, TL_FLOAT32, cuda_device(), &z));
    ck_assert_double_eq(first_of(y), round);
    ck_assert_double_eq(first_of(z), round);
    tl_tensor_free(x);
    tl_tensor_free(y);
    tl_tensor_free(z);
  }
}
END_TEST

START_TEST(a_device_that_is_not_there_is_named) {
  tl_device d;
  tl_device_properties p;
  ck_fails(tl_device_parse("cuda:9", &d), TL_ERR_DEVICE, "cuda:9 was asked for, there are 2 cuda devices");
  ck_ok(tl_device_properties_of(cuda_device(), &p));
  ck_assert_double_ge(p.major, 8);
  ck_assert_double_gt(p.total_memory, 0);
  ck_fails(tl_device_properties_of(TL_CPU, &p), TL_ERR_DEVICE, "cuda");
}
END_TEST

TEST_MAIN("cuda streams", events_order_streams, time_passes_between_events,
          the_current_stream_is_a_matter_of_the_device, devices_copy_from_each_other,
          a_device_that_is_not_there_is_named)
