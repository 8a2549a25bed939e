/* check_file.h: small files for the tests of readers and writers. */
#ifndef CHECK_FILE_H
#define CHECK_FILE_H

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>
#include <zlib.h>

#include "check_tl.h"

static char scratch_directory[64];

/* A name in a fresh directory of this process. */
static inline const char *scratch(const char *name) {
  static char path[400];
  if (scratch_directory[0] == 0) {
    strcpy(scratch_directory, "/tmp/tlua-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(scratch_directory));
  }
  snprintf(path, sizeof path, "%s/%s", scratch_directory, name);
  return path;
}

/* Everything that scratch() holds, removed. Returns how many files there were. */
static inline int clear_scratch(void) {
  char path[600];
  snprintf(path, sizeof path, "%s", scratch(""));
  DIR *d = opendir(path);
  int n = 0;
  for (struct dirent *e; (e = readdir(d)) != NULL;) {
    if (e->d_name[0] == '.') continue;
    char file[600];
    snprintf(file, sizeof file, "%s", scratch(e->d_name));
    unlink(file);
    n++;
  }
  closedir(d);
  rmdir(path);
  scratch_directory[0] = 0;
  return n;
}

static inline const char *write_file(const char *name, const void *data, size_t bytes) {
  const char *path = scratch(name);
  FILE *f = fopen(path, "wb");
  ck_assert_ptr_nonnull(f);
  ck_assert_uint_eq(fwrite(data, 1, bytes, f), bytes);
  ck_assert_int_eq(fclose(f), 0);
  return path;
}

static inline const char *write_gzip(const char *name, const void *data, size_t bytes) {
  const char *path = scratch(name);
  gzFile f = gzopen(path, "wb");
  ck_assert_ptr_nonnull(f);
  if (bytes > 0) ck_assert_int_eq(gzwrite(f, data, (unsigned)bytes), (int)bytes);
  ck_assert_int_eq(gzclose(f), Z_OK);
  return path;
}

/* Up to `room` bytes of a file; returns how many it has. */
static inline size_t read_file(const char *path, void *buffer, size_t room) {
  FILE *f = fopen(path, "rb");
  ck_assert_ptr_nonnull(f);
  size_t n = fread(buffer, 1, room, f);
  fclose(f);
  return n;
}

#endif
