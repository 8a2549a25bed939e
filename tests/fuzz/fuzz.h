/* fuzz.h: what the fuzz targets share: the input becomes a file in memory, which a reader opens by its path. */
#ifndef TL_FUZZ_H
#define TL_FUZZ_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tlua.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The path of a file that holds the input. One descriptor serves all runs. */
static inline const char *fuzz_file(const uint8_t *data, size_t size) {
  static int fd = -1;
  static char path[64];
  if (fd < 0) {
    fd = memfd_create("fuzz", 0);
    if (fd < 0) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  }
  if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
  return path;
}

/* After a run: nothing may be left, whatever the reader said. */
static inline void fuzz_check_leaks(void) {
  tl_memory_stats stats;
  if (tl_memory(TL_CPU, &stats) != TL_OK || stats.tensors != 0) abort();
}

/* Reads every element: a tensor that points outside its storage is found here. */
static inline void fuzz_use(tl_tensor *t) {
  double n = tl_numel(t);
  if (n <= 1 << 16) {
    double *values = malloc(((size_t)n + 1) * sizeof *values);
    if (tl_to_doubles(t, (int64_t)n, values) != TL_OK) abort();
    free(values);
  }
  tl_tensor_free(t);
}

static inline void fuzz_use_archive(tl_archive *a) {
  for (int i = 0; i < tl_archive_count(a); i++) {
    tl_tensor *t;
    if (tl_archive_name(a, i) == NULL || tl_archive_tensor(a, i, &t) != TL_OK) abort();
    fuzz_use(t);
  }
  for (int i = 0; i < tl_archive_notes(a); i++)
    if (tl_archive_note_key(a, i) == NULL || tl_archive_note(a, i) == NULL) abort();
  tl_archive_free(a);
}

/* A target that reads one tensor. */
#define FUZZ_TENSOR(read)                                        \
  int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { \
    tl_tensor *t = NULL;                                         \
    if (read(fuzz_file(data, size), &t) == TL_OK) fuzz_use(t);   \
    else if (t != NULL) abort();                                 \
    fuzz_check_leaks();                                          \
    return 0;                                                    \
  }

/* A target that reads an archive. */
#define FUZZ_ARCHIVE(read)                                             \
  int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {       \
    tl_archive *a = NULL;                                              \
    if (read(fuzz_file(data, size), &a) == TL_OK) fuzz_use_archive(a); \
    else if (a != NULL) abort();                                       \
    fuzz_check_leaks();                                                \
    return 0;                                                          \
  }

#endif
