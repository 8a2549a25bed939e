/* fuzz_text.c: tl_read_bytes on any bytes, plain or gzip, with a limit. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tl_tensor *t = NULL;
  if (tl_read_bytes(fuzz_file(data, size), 1 << 20, &t) == TL_OK) fuzz_use(t);
  else if (t != NULL) abort();
  fuzz_check_leaks();
  return 0;
}
