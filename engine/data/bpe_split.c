/* bpe_split.c: text is cut into pieces, which are merged each by itself. */
#include <string.h>

#include <utf8proc.h>

#include <stdlib.h>

#include "data/bpe.h"
#include "data/utf8.h"

void tl_splitter_free(tl_splitter *s) {
  for (int i = 0; i < s->steps; i++) tl_regex_free(s->step[i]);
  s->steps = 0;
}

static tl_status split_from(const tl_splitter *s, int step, const char *text, int64_t n, tl_piece f, void *to) {
  if (n == 0) return TL_OK;
  if (step == s->steps) return f(to, text, n);
  for (int64_t at = 0; at < n;) {
    int64_t begin, end = n;
    TL_TRY(tl_regex_next(s->step[step], text, n, at, &begin, &end));
    int64_t gap = (begin < 0 ? n : begin) - at;
    if (!s->drop[step]) TL_TRY(split_from(s, step + 1, text + at, gap, f, to));
    if (begin < 0) break;
    TL_TRY(split_from(s, step + 1, text + begin, end - begin, f, to));
    at = end;
  }
  return TL_OK;
}

tl_status tl_split(const tl_splitter *s, const char *text, int64_t n, tl_piece f, void *to) {
  return split_from(s, 0, text, n, f, to);
}

tl_status tl_split_runs(const char *text, int64_t n, tl_piece run, tl_piece broken, void *to) {
  for (int64_t at = 0; at < n;) {
    int64_t first = at, good;
    while (at < n) {
      tl_utf8 c = tl_utf8_read(text + at, (size_t)(n - at));
      if (c.point < 0) break;
      at += c.length;
    }
    if (at > first) TL_TRY(run(to, text + first, at - first));
    for (good = at; good < n; good += tl_utf8_read(text + good, (size_t)(n - good)).length)
      if (tl_utf8_read(text + good, (size_t)(n - good)).point >= 0) break;
    if (good > at) TL_TRY(broken(to, text + at, good - at));
    at = good;
  }
  return TL_OK;
}

/* All characters below U+0300 are in form C already. */
static bool is_plain(const char *text, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if ((unsigned char)text[i] >= 0xCC) return false;
  return true;
}

tl_status tl_normalise(const tl_splitter *s, const char *text, int64_t n, tl_piece f, void *to) {
  if (!s->nfc || is_plain(text, n)) return f(to, text, n);
  utf8proc_uint8_t *composed = NULL;
  utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, n, &composed,
                                         (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) return TL_FAIL(TL_ERR_MEMORY, TL_BPE, "cannot normalise: %s", utf8proc_errmsg(length));
  tl_status st = f(to, (const char *)composed, length);
  free(composed);
  return st;
}
