/* fuzz_csv.c: tl_read_csv on any bytes; the first one chooses the options. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  static const char *const names[] = {"a", NULL};
  static const int positions[] = {0, -1};
  tl_csv_options o = {.delimiter = data[0] & 1 ? ',' : ';',
                      .header = data[0] / 2 % 3 - 1,
                      .allow_missing = data[0] & 8,
                      .dtype = TL_FLOAT32};
  if (data[0] & 16) o.columns = 2, o.names = names, o.positions = positions;
  tl_tensor *t = NULL;
  tl_archive *a = NULL;
  if (tl_read_csv(fuzz_file(data + 1, size - 1), &o, &t, &a) == TL_OK) {
    fuzz_use_archive(a);
    fuzz_use(t);
  } else if (t != NULL || a != NULL) {
    abort();
  }
  fuzz_check_leaks();
  return 0;
}
