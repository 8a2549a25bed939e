/* test_memory.c: the caching allocator: what it takes from the device, what it reuses, and that blocks never overlap. */
#include "check_cuda.h"

static tl_memory_details details(void) {
  tl_memory_details d;
  ck_ok(tl_memory_details_of(cuda_device(), &d));
  return d;
}

static tl_tensor *bytes(int64_t n) {
  tl_tensor *t = NULL;
  ck_ok(tl_empty(1, &n, TL_UINT8, cuda_device(), &t));
  return t;
}

START_TEST(small_requests_share_a_segment_of_2_MB) {
  tl_memory_details before = details(), after;
  tl_tensor *t[100];
  for (int i = 0; i < 100; i++) t[i] = bytes(1 + i * 10);
  after = details();
  ck_assert_double_eq(after.segments - before.segments, 1);
  ck_assert_double_eq(after.reserved - before.reserved, 2 << 20);
  ck_assert_double_eq(after.blocks - before.blocks, 100);
  ck_assert_double_eq(after.allocated - before.allocated, 52 * 512 + 48 * 1024); /* whole units */
  for (int i = 0; i < 100; i++) tl_tensor_free(t[i]);
  ck_assert_double_eq(details().allocated, before.allocated);
  ck_assert_double_eq(details().largest_free, 2 << 20); /* all neighbours merged */
}
END_TEST

START_TEST(larger_requests_take_segments_of_20_MB_or_their_own) {
  tl_memory_details before = details();
  tl_tensor *a = bytes(3 << 20), *b = bytes(5 << 20);
  ck_assert_double_eq(details().reserved - before.reserved, 20 << 20);
  tl_tensor *c = bytes((30 << 20) + 1);
  ck_assert_double_eq(details().reserved - before.reserved, 52 << 20);
  ck_assert_double_eq(details().device_allocations - before.device_allocations, 2);
  tl_tensor_free(a);
  tl_tensor_free(b);
  tl_tensor_free(c);
  ck_ok(tl_empty_cache(cuda_device()));
  ck_assert_double_eq(details().reserved, before.reserved);
}
END_TEST

START_TEST(a_loop_that_repeats_itself_asks_the_device_for_nothing) {
  static const int64_t sizes[] = {1 << 10, 3 << 20, 700 << 10, 12 << 20, 1 << 20, 5 << 20, 77, 900 << 10};
  enum { N = sizeof sizes / sizeof *sizes };
  double made = 0;
  for (int round = 0; round < 50; round++) {
    tl_tensor *t[N];
    for (int i = 0; i < N; i++) t[i] = bytes(sizes[i]);
    for (int i = 0; i < N; i += 2) tl_tensor_free(t[i]);
    for (int i = 0; i < N; i += 2) t[i] = bytes(sizes[N - 1 - i]);
    for (int i = 0; i < N; i++) tl_tensor_free(t[i]);
    if (round == 1) made = details().device_allocations;
  }
  ck_assert_double_eq(details().device_allocations, made);
}
END_TEST

START_TEST(a_full_device_gives_cached_memory_back_before_it_refuses) {
  double total = details().device_total;
  tl_tensor *t = bytes((int64_t)(total * 0.6));
  tl_tensor_free(t);
  t = bytes((int64_t)(total * 0.7)); /* fits only where the cached segment lies */
  ck_assert_double_ge(details().retries, 1);
  tl_tensor *more;
  int64_t n = (int64_t)(total * 0.7);
  ck_fails(tl_empty(1, &n, TL_UINT8, cuda_device(), &more), TL_ERR_MEMORY, "MB asked for on cuda:0");
  ck_fails(tl_empty(1, &n, TL_UINT8, cuda_device(), &more), TL_ERR_MEMORY, "are free");
  tl_tensor_free(t);
}
END_TEST

/* A live block and what it was filled with. */
typedef struct live {
  tl_tensor *t;
  int stream, value;
} live;

static unsigned next_random(unsigned *state) { return (*state = *state * 1664525u + 1013904223u) >> 8; }

static void check_value(tl_tensor *t, int value) {
  tl_tensor *host;
  ck_ok(tl_to(t, TL_UINT8, TL_CPU, &host));
  const uint8_t *v = tl_data(host);
  for (int64_t i = 0; i < (int64_t)tl_numel(t); i++)
    ck_assert_msg(v[i] == value, "byte %lld of %g was filled with %d and is %d", (long long)i, tl_numel(t), value,
                  v[i]);
  tl_tensor_free(host);
}

/* Blocks of random sizes come and go on four streams; each is filled on its stream and still holds that when it is freed. */
START_TEST(blocks_of_several_streams_never_overlap) {
  enum { STREAMS = 4, LIVE = 40, ROUNDS = 400 };
  tl_stream *s[STREAMS];
  live all[LIVE] = {{0}};
  unsigned random = 42;
  for (int i = 0; i < STREAMS; i++) ck_ok(tl_stream_new(cuda_device(), i == 3, &s[i]));
  for (int round = 0; round < ROUNDS; round++) {
    live *l = &all[next_random(&random) % LIVE];
    if (l->t != NULL) {
      ck_ok(tl_stream_use(cuda_device(), s[l->stream], NULL));
      if (next_random(&random) % 4 == 0) check_value(l->t, l->value);
      tl_tensor_free(l->t);
    }
    unsigned kind = next_random(&random) % 100;
    int64_t n = 1 + (int64_t)(next_random(&random) % (kind < 90 ? 5000u : 1500000u));
    *l = (live){NULL, (int)(next_random(&random) % STREAMS), (int)(next_random(&random) % 251)};
    ck_ok(tl_stream_use(cuda_device(), s[l->stream], NULL));
    l->t = bytes(n);
    ck_ok(tl_fill_(l->t, l->value));
  }
  for (int i = 0; i < LIVE; i++) {
    if (all[i].t == NULL) continue;
    ck_ok(tl_stream_use(cuda_device(), s[all[i].stream], NULL));
    check_value(all[i].t, all[i].value);
    tl_tensor_free(all[i].t);
  }
  ck_ok(tl_stream_use(cuda_device(), NULL, NULL));
  for (int i = 0; i < STREAMS; i++) tl_stream_free(s[i]);
  ck_ok(tl_synchronize(cuda_device()));
  ck_assert_double_eq(details().allocated, 0);
  ck_ok(tl_empty_cache(cuda_device()));
  ck_assert_double_eq(details().reserved, 0);
}
END_TEST

/* A block that another stream still reads is not handed out, although its own stream has freed it. */
START_TEST(a_block_rests_until_other_streams_are_done_with_it) {
  tl_stream *side;
  tl_tensor *copy;
  ck_ok(tl_stream_new(cuda_device(), false, &side));
  for (int round = 0; round < 20; round++) {
    tl_tensor *t = bytes(1000), *u;
    ck_ok(tl_fill_(t, 7));
    tl_stream *own;
    ck_ok(tl_stream_use(cuda_device(), side, &own));
    ck_ok(tl_stream_wait_stream(side, own));
    ck_ok(tl_clone(t, &copy));
    ck_ok(tl_record_stream(t, side));
    ck_ok(tl_stream_use(cuda_device(), own, NULL));
    tl_tensor_free(t);
    u = bytes(1000);
    ck_ok(tl_fill_(u, 9));
    ck_ok(tl_stream_use(cuda_device(), side, NULL));
    check_value(copy, 7);
    tl_tensor_free(copy);
    ck_ok(tl_stream_use(cuda_device(), NULL, NULL));
    tl_stream_free(own);
    tl_tensor_free(u);
  }
  tl_stream_free(side);
}
END_TEST

START_TEST(pinned_memory_copies_by_itself) {
  double values[1000];
  for (int i = 0; i < 1000; i++) values[i] = i;
  tl_tensor *host, *pinned, *there;
  ck_ok(tl_from_doubles(SHAPE(1000), TL_FLOAT32, TL_CPU, values, &host));
  ck_ok(tl_pin_memory(host, &pinned));
  ck_assert(!tl_is_pinned(host) && tl_is_pinned(pinned));
  ck_ok(tl_to_async(pinned, TL_FLOAT32, cuda_device(), &there));
  tl_tensor_free(pinned);       /* its memory rests until the copy is done */
  for (int i = 0; i < 5; i++) { /* and is not given out again before */
    ck_ok(tl_pin_memory(host, &pinned));
    tl_tensor_free(pinned);
  }
  ck_values(there, 1000, values, 0);
  tl_tensor_free(there);
  tl_tensor_free(host);
}
END_TEST

/* More than the pinned blocks on the way hold, there and back. */
START_TEST(large_copies_go_through_pinned_blocks) {
  int64_t n = 3 * (4 << 20) + 12345;
  char *from = malloc((size_t)n), *to = malloc((size_t)n);
  for (int64_t i = 0; i < n; i++) from[i] = (char)(i * 31 >> 7);
  tl_tensor *there, *back;
  ck_ok(tl_from_memory(1, &n, TL_UINT8, cuda_device(), from, &there));
  ck_ok(tl_to(there, TL_UINT8, TL_CPU, &back));
  ck_assert(memcmp(tl_data(back), from, (size_t)n) == 0);
  tl_tensor_free(there);
  tl_tensor_free(back);
  free(from);
  free(to);
}
END_TEST

TEST_MAIN("cuda memory", small_requests_share_a_segment_of_2_MB, larger_requests_take_segments_of_20_MB_or_their_own,
          a_loop_that_repeats_itself_asks_the_device_for_nothing,
          a_full_device_gives_cached_memory_back_before_it_refuses, blocks_of_several_streams_never_overlap,
          a_block_rests_until_other_streams_are_done_with_it, pinned_memory_copies_by_itself,
          large_copies_go_through_pinned_blocks)
