/* fuzz_bpe.c: tl_bpe_load on any bytes; what it takes encodes, and is saved as what loads again. */
#include "fuzz.h"

static void use(tl_bpe *b) {
  static const char text[] = "a ab  <e>12 e\xcc\x81\xff it's\n\n";
  tl_tensor *ids = NULL, *bytes = NULL, *json = NULL;
  if (tl_bpe_encode(b, text, sizeof text - 1, true, -1, NULL, TL_INT64, &ids) == TL_OK) {
    if (tl_bpe_decode(b, ids, true, true, &bytes) != TL_OK) abort();
    fuzz_use(bytes);
    fuzz_use(ids);
  }
  for (int id = -1, length; id <= tl_bpe_size(b) && id < 100; id++)
    if (tl_bpe_token(b, id, &length) != NULL && length < 0) abort();
  if (tl_bpe_text(b, &json) != TL_OK) abort();
  tl_bpe *again = NULL;
  if (tl_bpe_parse(tl_data(json), (int64_t)tl_numel(json), &again) != TL_OK) abort();
  if (tl_bpe_size(again) != tl_bpe_size(b)) abort();
  tl_bpe_free(again);
  tl_tensor_free(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tl_bpe *b = NULL;
  if (tl_bpe_load(fuzz_file(data, size), &b) == TL_OK) use(b);
  else if (b != NULL) abort();
  tl_bpe_free(b);
  fuzz_check_leaks();
  return 0;
}
