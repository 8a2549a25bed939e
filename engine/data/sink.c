/* sink.c: atomic writing. */
#include "data/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "data/source.h"

#define SUFFIX_CHARS 48

static tl_status refused(const tl_sink *s, const char *path) {
  int code = errno;
  char label[TL_LABEL_CHARS];
  tl_path_label(label, path);
  return TL_FAIL(TL_ERR_IO, s->op, "%s: %s", label, strerror(code));
}

/* The path to write: an existing one with links resolved, so that a link keeps pointing. */
static tl_status resolve(tl_sink *s, const char *path, mode_t *mode) {
  struct stat info;
  *mode = 0;
  if (stat(path, &info) == 0) {
    char label[TL_LABEL_CHARS];
    tl_path_label(label, path);
    if (!S_ISREG(info.st_mode)) return TL_FAIL(TL_ERR_IO, s->op, "%s: exists and is not a regular file", label);
    *mode = info.st_mode & 0777;
    s->target = realpath(path, NULL);
    return s->target == NULL ? refused(s, path) : TL_OK;
  }
  if (errno != ENOENT) return refused(s, path);
  s->target = strdup(path);
  return s->target == NULL ? TL_FAIL(TL_ERR_MEMORY, s->op, "no memory for a path") : TL_OK;
}

tl_status tl_sink_open(tl_sink *s, const char *op, const char *path) {
  static atomic_uint serial;
  *s = (tl_sink){.op = op};
  mode_t mode;
  tl_status st = resolve(s, path, &mode);
  size_t room = st == TL_OK ? strlen(s->target) + SUFFIX_CHARS : 0;
  if (st == TL_OK) s->temporary = tl_host_alloc(room);
  if (st == TL_OK && s->temporary == NULL) st = TL_FAIL(TL_ERR_MEMORY, op, "no memory for a path");
  int fd = -1;
  while (st == TL_OK && fd < 0) {
    snprintf(s->temporary, room, "%s.tmp-%ld-%u", s->target, (long)getpid(), atomic_fetch_add(&serial, 1));
    fd = open(s->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno != EEXIST) st = refused(s, path);
  }
  if (st == TL_OK && mode != 0 && fchmod(fd, mode) != 0) st = refused(s, path);
  if (st == TL_OK && (s->file = fdopen(fd, "wb")) == NULL) st = refused(s, path);
  if (st != TL_OK) {
    if (fd >= 0) {
      close(fd);
      unlink(s->temporary);
    }
    free(s->target);
    tl_host_free(s->temporary);
  }
  return st;
}

tl_status tl_sink_write(tl_sink *s, const void *data, size_t bytes) {
  if (bytes == 0 || fwrite(data, 1, bytes, s->file) == bytes) return TL_OK;
  return refused(s, s->target);
}

tl_status tl_sink_tensor(tl_sink *s, tl_tensor *t) {
  tl_tensor *host = NULL, *rows = NULL;
  bool grad = tl_set_grad_enabled(false);
  tl_status st = tl_to(t, tl_dtype_of(t), TL_CPU, &host);
  if (st == TL_OK) st = tl_contiguous(host, &rows);
  if (st == TL_OK) st = tl_sink_write(s, tl_data(rows), (size_t)rows->numel * tl_dtype_size(rows->dtype));
  tl_set_grad_enabled(grad);
  tl_tensor_free(host);
  tl_tensor_free(rows);
  return st;
}

/* The new name is on disk only when the directory is. */
static tl_status sync_directory(tl_sink *s) {
  char *slash = strrchr(s->target, '/');
  const char *directory = slash == NULL ? "." : slash == s->target ? "/" : s->target;
  if (slash != NULL && slash != s->target) *slash = 0;
  int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return refused(s, directory);
  int failed = fsync(fd) != 0 && errno != EINVAL; /* some file systems cannot sync a directory, and say so */
  tl_status st = failed ? refused(s, directory) : TL_OK;
  close(fd);
  return st;
}

tl_status tl_sink_close(tl_sink *s, tl_status st) {
  if (st == TL_OK && (fflush(s->file) != 0 || fsync(fileno(s->file)) != 0)) st = refused(s, s->target);
  if (fclose(s->file) != 0 && st == TL_OK) st = refused(s, s->target);
  if (st == TL_OK && rename(s->temporary, s->target) != 0) st = refused(s, s->target);
  if (st == TL_OK) st = sync_directory(s);
  else unlink(s->temporary);
  free(s->target);
  tl_host_free(s->temporary);
  return st;
}
