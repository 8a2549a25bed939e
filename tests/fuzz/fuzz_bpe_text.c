/* fuzz_bpe_text.c: any bytes are encoded, decode to themselves, and can be learnt from. */
#include "fuzz.h"

static tl_bpe *learn(const void *text, size_t n, int vocab_size) {
  const char *special[] = {"<e>"};
  tl_bpe_trainer *t;
  tl_bpe *b;
  if (tl_bpe_trainer_new(NULL, &t) != TL_OK || tl_bpe_trainer_feed(t, text, (int64_t)n) != TL_OK) abort();
  if (tl_bpe_trainer_finish(t, vocab_size, 1, 1, special, &b) != TL_OK) abort();
  tl_bpe_trainer_free(t);
  return b;
}

static void round_trip(tl_bpe *b, const void *text, size_t n) {
  tl_tensor *ids, *bytes;
  if (tl_bpe_encode(b, text, (int64_t)n, true, -1, NULL, TL_INT64, &ids) != TL_OK) abort();
  if (tl_bpe_decode(b, ids, false, false, &bytes) != TL_OK) abort();
  if ((size_t)tl_numel(bytes) != n || (n > 0 && memcmp(tl_data(bytes), text, n) != 0)) abort();
  tl_tensor_free(ids);
  tl_tensor_free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char words[] = "the then them don't  12 \xc3\xa9\xe2\x80\x8d\n\n the then";
  static tl_bpe *known = NULL;
  if (known == NULL) known = learn(words, sizeof words - 1, 280);
  round_trip(known, data, size);
  tl_bpe *own = learn(data, size, 300);
  round_trip(own, data, size);
  tl_bpe_free(own);
  fuzz_check_leaks();
  return 0;
}
