/* fuzz_tokens.c: tl_tokens_open on any bytes; all ids can be read. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const dtypes[] = {NULL, "uint16", "int32", "int64"};
  const char *path = fuzz_file(data, size);
  for (int i = 0; i < 4; i++) {
    tl_tokens *t = NULL;
    tl_tensor *ids;
    if (tl_tokens_open(path, dtypes[i], &t) != TL_OK) {
      if (t != NULL) abort();
      continue;
    }
    if (tl_tokens_read(t, 0, (int64_t)tl_tokens_count(t), &ids) != TL_OK) abort();
    fuzz_use(ids);
    tl_tokens_free(t);
  }
  fuzz_check_leaks();
  return 0;
}
