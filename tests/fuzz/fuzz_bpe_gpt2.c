/* fuzz_bpe_gpt2.c: tl_bpe_load_gpt2 on any bytes: vocab.json, a NUL byte, merges.txt. */
#include "fuzz.h"

static const char *second_file(const uint8_t *data, size_t size) {
  static int fd = -1;
  static char path[64];
  if (fd < 0) {
    fd = memfd_create("merges", 0);
    if (fd < 0) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  }
  if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
  return path;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const uint8_t *nul = size == 0 ? NULL : memchr(data, 0, size);
  size_t vocab = nul == NULL ? size : (size_t)(nul - data), rest = nul == NULL ? size : vocab + 1;
  tl_bpe *b = NULL;
  if (tl_bpe_load_gpt2(fuzz_file(data, vocab), second_file(data + rest, size - rest), &b) == TL_OK) {
    tl_tensor *ids = NULL;
    if (tl_bpe_encode(b, "ab ab", 5, true, -1, NULL, TL_INT32, &ids) == TL_OK) fuzz_use(ids);
  } else if (b != NULL) {
    abort();
  }
  tl_bpe_free(b);
  fuzz_check_leaks();
  return 0;
}
