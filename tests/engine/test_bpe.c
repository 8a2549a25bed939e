/* test_bpe.c: what the tokenizer promises beyond its ids (those are compared with the reference's in bpe_spec.lua): time that
 * grows with the text, interrupts, any bytes. */
#include <time.h>

#include "check_file.h"

static tl_bpe *learn(const char *text, int64_t bytes, int vocab_size) {
  const char *special[] = {"<end>"};
  tl_bpe_trainer *t;
  tl_bpe *b;
  ck_ok(tl_bpe_trainer_new(NULL, &t));
  ck_ok(tl_bpe_trainer_feed(t, text, bytes));
  ck_ok(tl_bpe_trainer_finish(t, vocab_size, 1, 1, special, &b));
  tl_bpe_trainer_free(t);
  return b;
}

static const char words[] = "the then them there, don't! 12  the\n\n the \xe2\x82\xac <end>";

static tl_bpe *small(void) { return learn(words, sizeof words - 1, 290); }

static void ck_round_trip(tl_bpe *b, const char *text, int64_t n, bool skip) {
  tl_tensor *ids, *bytes;
  ck_ok(tl_bpe_encode(b, text, n, true, -1, NULL, TL_INT64, &ids));
  ck_ok(tl_bpe_decode(b, ids, skip, false, &bytes));
  ck_assert(tl_numel(bytes) == (double)n);
  ck_assert(n == 0 || memcmp(tl_data(bytes), text, (size_t)n) == 0);
  tl_tensor_free(ids);
  tl_tensor_free(bytes);
}

START_TEST(any_bytes_survive) {
  tl_bpe *b = small();
  char text[4096];
  uint32_t state = 1;
  ck_round_trip(b, "", 0, false);
  for (int round = 0; round < 200; round++) {
    int64_t n = 1 + state % 500;
    for (int64_t i = 0; i < n; i++) {
      state = state * 1664525 + 1013904223;
      text[i] = (char)(state >> 24);
    }
    ck_round_trip(b, text, n, true);
  }
  tl_bpe_free(b);
}
END_TEST

/* A piece of a million bytes: merging is n log n, not n squared, which would take minutes. */
START_TEST(long_pieces_take_little_time) {
  enum { N = 1000000 };
  tl_bpe *b = learn("                                                                ", 64, 280);
  char *text = malloc(N);
  clock_t start = clock();
  memset(text, ' ', N);
  ck_round_trip(b, text, N, false);
  memset(text, 'x', N);
  ck_round_trip(b, text, N, false);
  ck_assert_msg(clock() - start < 20 * CLOCKS_PER_SEC, "%g s", (double)(clock() - start) / CLOCKS_PER_SEC);
  free(text);
  tl_bpe_free(b);
}
END_TEST

START_TEST(an_interrupt_stops_it) {
  tl_bpe *b = small();
  tl_bpe_trainer *t;
  tl_bpe *none = NULL;
  tl_tensor *ids = NULL;
  tl_interrupt();
  ck_fails(tl_bpe_encode(b, words, sizeof words - 1, true, -1, NULL, TL_INT64, &ids), TL_ERR_INTERRUPT, "");
  ck_ok(tl_bpe_trainer_new(NULL, &t));
  tl_interrupt();
  ck_fails(tl_bpe_trainer_feed(t, words, sizeof words - 1), TL_ERR_INTERRUPT, "");
  ck_ok(tl_bpe_trainer_feed(t, words, sizeof words - 1));
  tl_interrupt();
  ck_fails(tl_bpe_trainer_finish(t, 300, 1, 0, NULL, &none), TL_ERR_INTERRUPT, "");
  ck_fails(tl_bpe_trainer_finish(t, 300, 1, 0, NULL, &none), TL_ERR_STATE, "has been used");
  ck_assert(ids == NULL && none == NULL);
  tl_bpe_trainer_free(t);
  ck_round_trip(b, words, sizeof words - 1, false);
  tl_bpe_free(b);
}
END_TEST

START_TEST(tokens_by_id_and_by_bytes) {
  tl_bpe *b = small();
  int length = 0;
  int n = tl_bpe_size(b); /* pairs ran out before 290 */
  ck_assert_int_gt(n, 257);
  ck_assert_int_eq(tl_bpe_find(b, "<end>", 5), 0);
  ck_assert(tl_bpe_is_special(b, 0) && !tl_bpe_is_special(b, 1) && !tl_bpe_is_special(b, -1) &&
            !tl_bpe_is_special(b, n));
  for (int id = 0; id < n; id++) {
    const char *bytes = tl_bpe_token(b, id, &length);
    ck_assert(bytes != NULL && length > 0);
    ck_assert_int_eq(tl_bpe_find(b, bytes, length), id);
  }
  ck_assert(tl_bpe_token(b, -1, &length) == NULL && tl_bpe_token(b, n, &length) == NULL);
  ck_assert_int_eq(tl_bpe_find(b, "nothing", 7), -1);
  tl_bpe_free(b);
}
END_TEST

START_TEST(a_saved_tokenizer_is_the_same) {
  tl_bpe *b = small(), *again;
  tl_tensor *first, *second;
  ck_ok(tl_bpe_save(b, scratch("tokenizer.json")));
  ck_ok(tl_bpe_load(scratch("tokenizer.json"), &again));
  ck_ok(tl_bpe_text(b, &first));
  ck_ok(tl_bpe_text(again, &second));
  ck_assert(tl_numel(first) == tl_numel(second));
  ck_assert_int_eq(memcmp(tl_data(first), tl_data(second), (size_t)tl_numel(first)), 0);
  tl_tensor_free(first);
  tl_tensor_free(second);
  tl_bpe_free(again);
  tl_bpe_free(b);
  ck_assert_int_eq(clear_scratch(), 1);
}
END_TEST

TEST_MAIN("bpe", any_bytes_survive, long_pieces_take_little_time, an_interrupt_stops_it, tokens_by_id_and_by_bytes,
          a_saved_tokenizer_is_the_same)
