/* text.c: a whole file as bytes, read and written. */
#include <string.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "data/sink.h"
#include "data/source.h"

#define OP "text"
#define FIRST_ROOM (1 << 20)

static tl_status too_long(const tl_source *s, double limit) {
  return TL_FAIL(TL_ERR_FORMAT, OP, "%s: holds more than the %.0f bytes allowed", s->label, limit);
}

static tl_status bytes_tensor(int64_t n, tl_tensor **out) { return tl_empty(1, &n, TL_UINT8, TL_CPU, out); }

/* A gzip file tells its size only by its end: read into doubling buffers. */
static tl_status read_growing(tl_source *s, int64_t limit, tl_tensor **out) {
  tl_tensor *buffer;
  TL_TRY(bytes_tensor(limit < FIRST_ROOM ? limit : FIRST_ROOM, &buffer));
  int64_t n = 0;
  tl_status st = TL_OK;
  for (;;) {
    char extra;
    bool full = n == buffer->numel;
    int64_t got = s->read(s, full ? &extra : (char *)tl_data(buffer) + n, full ? 1 : (size_t)(buffer->numel - n));
    if (got < 0) st = (tl_status)tl_last_error()->code;
    if (got <= 0) break;
    s->pos += got;
    if (full) {
      if (n == limit) {
        st = too_long(s, (double)limit);
        break;
      }
      tl_tensor *bigger;
      st = bytes_tensor(n > limit / 2 ? limit : n * 2, &bigger);
      if (st != TL_OK) break;
      memcpy(tl_data(bigger), tl_data(buffer), (size_t)n);
      ((char *)tl_data(bigger))[n] = extra;
      tl_tensor_free(buffer);
      buffer = bigger;
    }
    n += got;
  }
  if (st == TL_OK) st = tl_narrow(buffer, 0, 0, n, out);
  tl_tensor_free(buffer);
  return st;
}

static tl_status read_sized(tl_source *s, tl_tensor **out) {
  tl_tensor *t;
  TL_TRY(bytes_tensor(s->size, &t));
  tl_status st = tl_source_read(s, tl_data(t), s->size, "the text");
  if (st == TL_OK) st = tl_source_finish(s);
  return tl_give(st, t, out);
}

tl_status tl_read_bytes(const char *path, double limit, tl_tensor **out) {
  if (!(limit >= 0)) return TL_FAIL(TL_ERR_VALUE, OP, "the limit is %g bytes", limit);
  int64_t most = limit < 1e15 ? (int64_t)limit : (int64_t)1e15;
  tl_source s;
  tl_status st = tl_source_open(&s, OP, path, true);
  if (st == TL_OK && s.size > most) st = too_long(&s, limit);
  if (st == TL_OK) st = s.size >= 0 ? read_sized(&s, out) : read_growing(&s, most, out);
  tl_source_close(&s);
  return st;
}

tl_status tl_write_bytes(const char *path, const char *bytes, int64_t n) {
  tl_sink s;
  TL_TRY(tl_sink_open(&s, "save", path));
  return tl_sink_close(&s, tl_sink_write(&s, bytes, (size_t)n));
}
