/* source.c: bounded reading of data files. */
#include "data/source.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include "core/memory.h"

#define READ_STEP (1 << 30) /* gzread counts in int */
#define DEFLATE_RATIO 1032  /* the most that deflate can pack: 258 bytes in 2 bits */

void tl_path_label(char label[TL_LABEL_CHARS], const char *path) {
  size_t length = strlen(path);
  if (length < TL_LABEL_CHARS) memcpy(label, path, length + 1);
  else snprintf(label, TL_LABEL_CHARS, "...%s", path + length - (TL_LABEL_CHARS - 4));
}

const char *tl_printable(const char *text, size_t length) {
  static _Thread_local char ring[4][64];
  static _Thread_local unsigned next = 0;
  char *to = ring[next++ % 4];
  size_t n = length < sizeof ring[0] - 4 ? length : sizeof ring[0] - 4;
  for (size_t i = 0; i < n; i++) to[i] = (unsigned char)text[i] < 32 || text[i] == 127 ? '?' : text[i];
  strcpy(to + n, n < length ? "..." : "");
  return to;
}

/* ---- plain and gzip files ---- */

static int64_t plain_read(tl_source *s, void *buffer, size_t bytes) {
  size_t n = fread(buffer, 1, bytes, s->handle);
  if (n == 0 && ferror((FILE *)s->handle)) {
    TL_FAIL(TL_ERR_IO, s->op, "%s: %s", s->label, strerror(errno));
    return -1;
  }
  return (int64_t)n;
}

static void plain_close(void *handle) { fclose(handle); }

static int64_t gzip_read(tl_source *s, void *buffer, size_t bytes) {
  int n = gzread(s->handle, buffer, bytes > READ_STEP ? READ_STEP : (unsigned)bytes);
  int code = Z_OK;
  const char *text = gzerror(s->handle, &code);
  if (n < 0 || code < 0) {
    if (code == Z_ERRNO) TL_FAIL(TL_ERR_IO, s->op, "%s: %s", s->label, strerror(errno));
    else TL_FAIL(TL_ERR_FORMAT, s->op, "%s: the gzip data is damaged (%s)", s->label, tl_printable(text, strlen(text)));
    return -1;
  }
  return n;
}

static void gzip_close(void *handle) { gzclose(handle); }

tl_status tl_source_open(tl_source *s, const char *op, const char *path, bool inflate) {
  *s = (tl_source){.op = op};
  tl_path_label(s->label, path);
  FILE *file = fopen(path, "rbe");
  struct stat info;
  if (file == NULL) return TL_FAIL(TL_ERR_IO, op, "%s: %s", s->label, strerror(errno));
  if (fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode)) {
    fclose(file);
    return TL_FAIL(TL_ERR_IO, op, "%s: not a regular file", s->label);
  }
  unsigned char magic[3] = {0};
  bool packed = inflate && fread(magic, 1, 3, file) == 3 && magic[0] == 0x1f && magic[1] == 0x8b && magic[2] == 8;
  s->size = s->ceiling = info.st_size;
  s->handle = file;
  s->read = plain_read;
  s->close = plain_close;
  if (!packed) {
    rewind(file);
    return TL_OK;
  }
  fclose(file);
  s->size = -1;
  if (__builtin_mul_overflow((int64_t)info.st_size, DEFLATE_RATIO, &s->ceiling)) s->ceiling = INT64_MAX;
  s->handle = gzopen(path, "rbe");
  s->read = gzip_read;
  s->close = gzip_close;
  if (s->handle == NULL) return TL_FAIL(TL_ERR_IO, op, "%s: %s", s->label, strerror(errno));
  gzbuffer(s->handle, 1 << 17);
  return TL_OK;
}

void tl_source_close(tl_source *s) {
  if (s->handle != NULL) s->close(s->handle);
  tl_host_free(s->ahead);
  s->handle = NULL;
  s->ahead = NULL;
}

tl_status tl_source_read(tl_source *s, void *buffer, int64_t bytes, const char *what) {
  for (int64_t done = 0; done < bytes;) {
    int64_t n = s->read(s, (char *)buffer + done, (size_t)(bytes - done));
    if (n < 0) return (tl_status)tl_last_error()->code;
    if (n == 0)
      return TL_FAIL(TL_ERR_FORMAT, s->op, "%s: ends at byte %lld, inside %s", s->label, (long long)s->pos, what);
    done += n;
    s->pos += n;
  }
  return TL_OK;
}

tl_status tl_source_promise(const tl_source *s, int64_t bytes, const char *what) {
  if (bytes <= s->ceiling - s->pos) return TL_OK;
  return TL_FAIL(TL_ERR_FORMAT, s->op, "%s: %s needs %lld bytes, the file has no more than %lld left", s->label, what,
                 (long long)bytes, (long long)(s->ceiling - s->pos));
}

tl_status tl_source_finish(tl_source *s) {
  char extra;
  int64_t n = s->read(s, &extra, 1);
  if (n < 0) return (tl_status)tl_last_error()->code;
  if (n > 0)
    return TL_FAIL(TL_ERR_FORMAT, s->op, "%s: more bytes follow at byte %lld, where the data should end", s->label,
                   (long long)s->pos);
  return TL_OK;
}

tl_status tl_source_byte_slow(tl_source *s, int *byte) {
  if (s->ahead == NULL) s->ahead = tl_host_alloc(TL_BUFFERED);
  if (s->ahead == NULL) return TL_FAIL(TL_ERR_MEMORY, s->op, "no memory for a read buffer");
  int64_t n = s->read(s, s->ahead, TL_BUFFERED);
  if (n < 0) return (tl_status)tl_last_error()->code;
  s->ahead_pos = 0;
  s->ahead_length = (int)n;
  s->pos += n;
  *byte = n == 0 ? -1 : s->ahead[s->ahead_pos++];
  return TL_OK;
}
