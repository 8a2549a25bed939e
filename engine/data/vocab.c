/* vocab.c: a vocabulary of characters: the Unicode code points of a text, sorted; the id of one is its place. */
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "data/utf8.h"

#define OP "CharVocab"
#define POINTS 0x110000

struct tl_vocab {
  int size;
  int32_t *points;    /* [size], ascending */
  int32_t ascii[128]; /* their ids, -1: none */
};

static tl_status bad_text(int64_t at) {
  return TL_FAIL(TL_ERR_VALUE, OP, "the text is not UTF-8 at byte %lld", (long long)tl_position(at));
}

/* Marks the code points of a text in seen[POINTS]; *count grows by the new ones. */
static tl_status mark(const char *text, int64_t bytes, char *seen, int *count) {
  for (int64_t at = 0; at < bytes;) {
    tl_utf8 c = tl_utf8_read(text + at, (size_t)(bytes - at));
    if (c.point < 0) return bad_text(at);
    *count += !seen[c.point];
    seen[c.point] = 1;
    at += c.length;
  }
  return TL_OK;
}

static tl_status collect(tl_vocab *v, const char *seen) {
  v->points = tl_host_alloc((size_t)v->size * sizeof *v->points);
  if (v->points == NULL) return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for %d characters", v->size);
  memset(v->ascii, 0xff, sizeof v->ascii);
  int n = 0;
  for (int32_t c = 0; n < v->size; c++) {
    if (!seen[c]) continue;
    if (c < 128) v->ascii[c] = n;
    v->points[n++] = c;
  }
  return TL_OK;
}

tl_status tl_vocab_new(const char *text, int64_t bytes, tl_vocab **out) {
  char *seen = tl_host_calloc(POINTS, 1);
  tl_vocab *v = tl_host_calloc(1, sizeof *v);
  tl_status st = seen == NULL || v == NULL ? TL_FAIL(TL_ERR_MEMORY, OP, "no memory for a vocabulary") : TL_OK;
  if (st == TL_OK) st = mark(text, bytes, seen, &v->size);
  if (st == TL_OK) st = collect(v, seen);
  tl_host_free(seen);
  if (st == TL_OK) *out = v;
  else tl_vocab_free(v);
  return st;
}

void tl_vocab_free(tl_vocab *v) {
  if (v == NULL) return;
  tl_host_free(v->points);
  tl_host_free(v);
}

int tl_vocab_size(const tl_vocab *v) { return v->size; }

static int32_t find(const tl_vocab *v, int32_t point) {
  if (point < 128) return v->ascii[point];
  int low = 0, high = v->size;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (v->points[middle] < point) low = middle + 1;
    else high = middle;
  }
  return low < v->size && v->points[low] == point ? low : -1;
}

static tl_status unknown(const char *text, int length, int32_t point, int64_t at) {
  return TL_FAIL(TL_ERR_VALUE, OP, "'%.*s' (U+%04X, character %lld) is not in the vocabulary", point < 32 ? 0 : length,
                 text, (unsigned)point, (long long)tl_position(at));
}

tl_status tl_vocab_encode(const tl_vocab *v, const char *text, int64_t bytes, int unknown_id, tl_tensor **out) {
  tl_tensor *ids;
  TL_TRY(tl_empty(1, &bytes, TL_INT64, TL_CPU, &ids)); /* a character has at least one byte */
  int64_t *to = tl_data(ids), n = 0;
  tl_status st = TL_OK;
  for (int64_t at = 0; at < bytes && st == TL_OK; n++) {
    tl_utf8 c = tl_utf8_read(text + at, (size_t)(bytes - at));
    int32_t id = c.point < 0 ? -1 : find(v, c.point);
    if (c.point < 0) st = bad_text(at);
    else if (id < 0 && unknown_id < 0) st = unknown(text + at, c.length, c.point, n);
    else to[n] = id < 0 ? unknown_id : id;
    at += c.length;
  }
  if (st == TL_OK && n < bytes) { /* a copy: the tensor shall not keep the longer storage */
    tl_tensor *part = NULL;
    st = tl_from_memory(1, &n, TL_INT64, TL_CPU, to, &part);
    tl_tensor_free(ids);
    ids = part;
  }
  return tl_give(st, ids, out);
}

static tl_status check_ids(const tl_vocab *v, const tl_tensor *ids) {
  const int64_t *id = tl_data(ids);
  for (int64_t i = 0; i < ids->numel; i++)
    if (id[i] < 0 || id[i] >= v->size)
      return TL_FAIL(TL_ERR_INDEX, OP, "id %lld at place %lld is not 0 to %d", (long long)id[i],
                     (long long)tl_position(i), v->size - 1);
  return TL_OK;
}

/* rows: int64, contiguous */
static tl_status decode(const tl_vocab *v, const tl_tensor *rows, tl_tensor **out) {
  TL_TRY(check_ids(v, rows));
  const int64_t *id = tl_data(rows);
  char c[4];
  int64_t bytes = 0;
  for (int64_t i = 0; i < rows->numel; i++) bytes += tl_utf8_write(v->points[id[i]], c);
  tl_tensor *text;
  TL_TRY(tl_empty(1, &bytes, TL_UINT8, TL_CPU, &text));
  char *to = tl_data(text);
  for (int64_t i = 0; i < rows->numel; i++) {
    int n = tl_utf8_write(v->points[id[i]], c);
    memcpy(to, c, (size_t)n);
    to += n;
  }
  *out = text;
  return TL_OK;
}

tl_status tl_vocab_decode(const tl_vocab *v, tl_tensor *ids, tl_tensor **out) {
  int dtype = tl_dtype_of(ids);
  if (dtype != TL_INT64 && dtype != TL_INT32 && dtype != TL_UINT8)
    return TL_FAIL(TL_ERR_DTYPE, OP, "ids are integers, got %s", tl_dtype_name(dtype));
  tl_tensor *wide = NULL, *rows = NULL;
  tl_status st = tl_to(ids, TL_INT64, TL_CPU, &wide);
  if (st == TL_OK) st = tl_contiguous(wide, &rows);
  if (st == TL_OK) st = decode(v, rows, out);
  tl_tensor_free(wide);
  tl_tensor_free(rows);
  return st;
}

tl_status tl_vocab_characters(const tl_vocab *v, tl_tensor **out) {
  int64_t n = v->size;
  tl_tensor *ids;
  TL_TRY(tl_arange(0, (double)n, 1, TL_INT64, TL_CPU, &ids));
  tl_status st = decode(v, ids, out);
  tl_tensor_free(ids);
  return st;
}
