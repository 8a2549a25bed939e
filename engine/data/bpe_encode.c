/* bpe_encode.c: text -> ids: added tokens are found first, what lies between them is cut into pieces, and the bytes of a
 * piece are merged, lowest rank first, from left to right. ids -> bytes. */
#include <string.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "data/bpe.h"
#include "data/utf8.h"

#define OP TL_BPE
#define CACHE_SLOTS 16384
#define CACHE_BYTES 22
#define CACHE_IDS 10

/* ---- scratch memory, which a tokenizer keeps ---- */

typedef struct symbol {
  int32_t id, before, next; /* id -1: it became a part of the one before; next, before -1: none */
} symbol;

typedef struct candidate { /* symbols[place] and the next one may merge */
  uint64_t order;          /* rank << 32 | place: the least is merged first */
  int32_t left, right, id;
} candidate;

typedef struct cached { /* the ids of a short piece */
  uint8_t bytes, count; /* bytes 0: free */
  char text[CACHE_BYTES];
  int32_t ids[CACHE_IDS];
} cached;

struct tl_bpe_scratch {
  symbol *symbols;  /* [room] */
  candidate *queue; /* [2 room]: a heap */
  int64_t room, queued;
  int32_t *ids; /* [ids_room], the result so far */
  int64_t count, ids_room;
  cached *cache; /* [CACHE_SLOTS] by hash */
};

void tl_bpe_scratch_free(tl_bpe_scratch *s) {
  if (s == NULL) return;
  tl_host_free(s->symbols);
  tl_host_free(s->queue);
  tl_host_free(s->ids);
  tl_host_free(s->cache);
  tl_host_free(s);
}

static tl_status no_memory(int64_t n) {
  return TL_FAIL(TL_ERR_MEMORY, OP, "no memory to encode %lld bytes", (long long)n);
}

static tl_status make_scratch(tl_bpe *b) {
  if (b->scratch != NULL) return TL_OK;
  tl_bpe_scratch *s = tl_host_calloc(1, sizeof *s);
  if (s != NULL) s->cache = tl_host_calloc(CACHE_SLOTS, sizeof *s->cache);
  if (s == NULL || s->cache == NULL) {
    tl_host_free(s);
    return no_memory(0);
  }
  b->scratch = s;
  return TL_OK;
}

static tl_status grow(tl_bpe_scratch *s, int64_t n) {
  if (n <= s->room) return TL_OK;
  if (n > INT32_MAX) return TL_FAIL(TL_ERR_VALUE, OP, "a piece of %lld bytes is too long", (long long)n);
  tl_host_free(s->symbols);
  tl_host_free(s->queue);
  s->room = 0;
  int64_t room = n < 256 ? 256 : n + n / 2;
  s->symbols = tl_host_alloc((size_t)room * sizeof *s->symbols);
  s->queue = tl_host_alloc(2 * (size_t)room * sizeof *s->queue);
  if (s->symbols == NULL || s->queue == NULL) return no_memory(n);
  s->room = room;
  return TL_OK;
}

static tl_status push_ids(tl_bpe_scratch *s, const int32_t *ids, int64_t n) {
  if (n == 0) return TL_OK;
  if (s->count + n > s->ids_room) {
    int64_t room = 2 * s->ids_room + n + 256;
    int32_t *bigger = tl_host_alloc((size_t)room * sizeof *bigger);
    if (bigger == NULL) return no_memory(room);
    if (s->count > 0) memcpy(bigger, s->ids, (size_t)s->count * sizeof *bigger);
    tl_host_free(s->ids);
    s->ids = bigger;
    s->ids_room = room;
  }
  memcpy(s->ids + s->count, ids, (size_t)n * sizeof *ids);
  s->count += n;
  return TL_OK;
}

/* ---- merging ---- */

static void push(tl_bpe_scratch *s, candidate c) {
  int64_t at = s->queued++;
  for (int64_t up; at > 0 && s->queue[up = (at - 1) / 2].order > c.order; at = up) s->queue[at] = s->queue[up];
  s->queue[at] = c;
}

static candidate pop(tl_bpe_scratch *s) {
  candidate first = s->queue[0], last = s->queue[--s->queued];
  int64_t at = 0;
  for (int64_t down; (down = 2 * at + 1) < s->queued; at = down) {
    if (down + 1 < s->queued && s->queue[down + 1].order < s->queue[down].order) down++;
    if (s->queue[down].order >= last.order) break;
    s->queue[at] = s->queue[down];
  }
  s->queue[at] = last;
  return first;
}

static void propose(const tl_bpe *b, tl_bpe_scratch *s, int32_t place) {
  if (place < 0 || s->symbols[place].next < 0) return;
  int32_t left = s->symbols[place].id, right = s->symbols[s->symbols[place].next].id;
  const tl_pair *p = tl_find_pair(b, left, right);
  if (p != NULL) push(s, (candidate){(uint64_t)p->rank << 32 | (uint32_t)place, left, right, p->id});
}

/* symbols[0 .. n) are linked; those that are left afterwards start at 0. */
static void merge(const tl_bpe *b, tl_bpe_scratch *s, int32_t n) {
  symbol *symbols = s->symbols;
  s->queued = 0;
  for (int32_t i = 0; i + 1 < n; i++) propose(b, s, i);
  while (s->queued > 0) {
    candidate c = pop(s);
    symbol *left = &symbols[(uint32_t)c.order];
    if (left->id != c.left || left->next < 0 || symbols[left->next].id != c.right) continue; /* merged meanwhile */
    symbol *right = &symbols[left->next];
    left->id = c.id;
    left->next = right->next;
    if (right->next >= 0) symbols[right->next].before = (int32_t)(uint32_t)c.order;
    right->id = -1;
    propose(b, s, left->before);
    propose(b, s, (int32_t)(uint32_t)c.order);
  }
}

static tl_status no_byte(const char *piece, int64_t n, int64_t i) {
  (void)n;
  return TL_FAIL(TL_ERR_VALUE, OP, "the vocabulary has no token for byte %d", (unsigned char)piece[i]);
}

static tl_status merge_piece(const tl_bpe *b, const char *piece, int64_t n) {
  tl_bpe_scratch *s = b->scratch;
  TL_TRY(grow(s, n));
  for (int32_t i = 0; i < n; i++) {
    int32_t id = b->byte_ids[(unsigned char)piece[i]];
    if (id < 0) return no_byte(piece, n, i);
    s->symbols[i] = (symbol){id, i - 1, i + 1 < n ? i + 1 : -1};
  }
  merge(b, s, (int32_t)n);
  for (int32_t i = 0; i >= 0; i = s->symbols[i].next) TL_TRY(push_ids(s, &s->symbols[i].id, 1));
  return TL_OK;
}

/* ---- pieces ---- */

static tl_status encode_piece(void *to, const char *piece, int64_t n) {
  const tl_bpe *b = to;
  tl_bpe_scratch *s = b->scratch;
  TL_CHECK_INTERRUPT(OP);
  if (n > CACHE_BYTES) {
    int32_t id = b->ignore_merges && n <= INT32_MAX ? tl_index_find(&b->model, b->tokens, piece, (int32_t)n) : -1;
    return id >= 0 ? push_ids(s, &id, 1) : merge_piece(b, piece, n);
  }
  cached *c = &s->cache[tl_hash_bytes(piece, (size_t)n) % CACHE_SLOTS];
  if (c->bytes == n && memcmp(c->text, piece, (size_t)n) == 0) return push_ids(s, c->ids, c->count);
  int64_t before = s->count;
  int32_t id = b->ignore_merges ? tl_index_find(&b->model, b->tokens, piece, (int32_t)n) : -1;
  TL_TRY(id >= 0 ? push_ids(s, &id, 1) : merge_piece(b, piece, n));
  int64_t count = s->count - before;
  if (count > CACHE_IDS) return TL_OK;
  c->bytes = (uint8_t)n;
  c->count = (uint8_t)count;
  memcpy(c->text, piece, (size_t)n);
  memcpy(c->ids, s->ids + before, (size_t)count * sizeof *c->ids);
  return TL_OK;
}

static tl_status split_text(tl_bpe *b, const char *text, int64_t n) {
  if (!b->prefix_space || n == 0 || text[0] == ' ') return tl_split(&b->splitter, text, n, encode_piece, b);
  char *spaced = tl_host_alloc((size_t)n + 1);
  if (spaced == NULL) return no_memory(n);
  spaced[0] = ' ';
  memcpy(spaced + 1, text, (size_t)n);
  tl_status st = tl_split(&b->splitter, spaced, n + 1, encode_piece, b);
  tl_host_free(spaced);
  return st;
}

/* ---- added tokens ---- */

typedef struct request {
  tl_bpe *b;
  int allowed_count;  /* -1: all special tokens are found in the text */
  const int *allowed; /* those that are */
} request;

static bool is_allowed(const request *r, int32_t id) {
  if (r->allowed_count < 0 || !(r->b->tokens[id].flags & TL_TOKEN_SPECIAL)) return true;
  for (int i = 0; i < r->allowed_count; i++)
    if (r->allowed[i] == id) return true;
  return false;
}

/* The longest added token of this pass at the start of n bytes; -1: none. */
static int32_t added_at(const tl_bpe *b, int pass, const char *text, int64_t n) {
  const tl_added *search = &b->search[pass];
  if (!search->first[(unsigned char)text[0]]) return -1;
  for (int32_t i = 0; i < search->count; i++) {
    int32_t length = search->lengths[i], id = length > n ? -1 : tl_index_find(&b->added, b->tokens, text, length);
    if (id >= 0 && !(b->tokens[id].flags & TL_TOKEN_NORMALIZED) == !pass) return id;
  }
  return -1;
}

/* What is found becomes its id, what lies between goes on. */
static tl_status find_added(request *r, int pass, const char *text, int64_t n, tl_piece between) {
  int64_t from = 0, at = 0;
  while (at < n) {
    int32_t id = added_at(r->b, pass, text + at, n - at);
    int32_t length = id < 0 ? 1 : r->b->tokens[id].length;
    if (id >= 0 && is_allowed(r, id)) {
      if (at > from) TL_TRY(between(r, text + from, at - from));
      TL_TRY(push_ids(r->b->scratch, &id, 1));
      from = at + length;
    }
    at += length;
  }
  return n > from ? between(r, text + from, n - from) : TL_OK;
}

static tl_status plain_text(void *to, const char *text, int64_t n) { return split_text(((request *)to)->b, text, n); }

static tl_status normalised_text(void *to, const char *text, int64_t n) {
  return find_added(to, 1, text, n, plain_text);
}

static tl_status given_text(void *to, const char *text, int64_t n) {
  return tl_normalise(&((request *)to)->b->splitter, text, n, normalised_text, to);
}

static tl_status utf8_text(void *to, const char *text, int64_t n) { return find_added(to, 0, text, n, given_text); }

static tl_status broken_text(void *to, const char *text, int64_t n) {
  return encode_piece(((request *)to)->b, text, n);
}

/* ---- texts ---- */

static tl_status give_ids(const tl_bpe_scratch *s, int dtype, tl_tensor **out) {
  if (dtype == TL_INT32) return tl_from_memory(1, &s->count, TL_INT32, TL_CPU, s->ids, out);
  TL_TRY(tl_empty(1, &s->count, TL_INT64, TL_CPU, out));
  int64_t *to = tl_data(*out);
  for (int64_t i = 0; i < s->count; i++) to[i] = s->ids[i];
  return TL_OK;
}

tl_status tl_bpe_encode(tl_bpe *b, const char *text, int64_t bytes, bool add_special_tokens, int allowed_count,
                        const int *allowed, int dtype, tl_tensor **out) {
  TL_CHECK_INTERRUPT(OP);
  if (dtype != TL_INT64 && dtype != TL_INT32)
    return TL_FAIL(TL_ERR_DTYPE, OP, "ids are int64 or int32, not %s", tl_dtype_name(dtype));
  TL_TRY(make_scratch(b));
  tl_bpe_scratch *s = b->scratch;
  request r = {b, allowed_count, allowed};
  s->count = 0;
  tl_status st = TL_OK;
  if (add_special_tokens) st = push_ids(s, b->before, b->before_count);
  if (st == TL_OK) st = tl_split_runs(text, bytes, utf8_text, broken_text, &r);
  if (st == TL_OK && add_special_tokens) st = push_ids(s, b->after, b->after_count);
  if (st == TL_OK) st = give_ids(s, dtype, out);
  return st;
}

/* ---- decoding ---- */

static bool is_left_out(const tl_bpe *b, int64_t id, bool skip) { return skip && tl_bpe_is_special(b, (int)id); }

static tl_status count_bytes(const tl_bpe *b, const int64_t *ids, int64_t n, bool skip, int64_t *bytes) {
  *bytes = 0;
  for (int64_t i = 0; i < n; i++) {
    if (ids[i] < 0 || ids[i] >= b->count || b->tokens[ids[i]].bytes == NULL)
      return TL_FAIL(TL_ERR_INDEX, OP, "there is no token %lld (at place %lld), they are 0 to %d", (long long)ids[i],
                     (long long)tl_position(i), b->count - 1);
    if (!is_left_out(b, ids[i], skip)) *bytes += b->tokens[ids[i]].length;
  }
  return TL_OK;
}

static tl_status join(const tl_bpe *b, const int64_t *ids, int64_t n, bool skip, tl_tensor **out) {
  int64_t bytes;
  TL_TRY(count_bytes(b, ids, n, skip, &bytes));
  TL_TRY(tl_empty(1, &bytes, TL_UINT8, TL_CPU, out));
  char *to = tl_data(*out);
  for (int64_t i = 0; i < n; i++) {
    if (is_left_out(b, ids[i], skip)) continue;
    const tl_token *t = &b->tokens[ids[i]];
    memcpy(to, t->bytes, (size_t)t->length);
    to += t->length;
  }
  return TL_OK;
}

/* What is no UTF-8 becomes U+FFFD: one for each longest beginning of a character (Unicode's recommendation). */
static int64_t repair(const char *text, int64_t n, char *to) {
  int64_t length = 0;
  for (int64_t at = 0; at < n;) {
    tl_utf8 c = tl_utf8_read(text + at, (size_t)(n - at));
    const char *from = c.point < 0 ? "\xEF\xBF\xBD" : text + at;
    int size = c.point < 0 ? 3 : c.length;
    if (to != NULL) memcpy(to + length, from, (size_t)size);
    length += size;
    at += c.length;
  }
  return length;
}

static tl_status repaired(tl_tensor *text, tl_tensor **out) {
  int64_t bytes = repair(tl_data(text), text->numel, NULL);
  TL_TRY(tl_empty(1, &bytes, TL_UINT8, TL_CPU, out));
  repair(tl_data(text), text->numel, tl_data(*out));
  return TL_OK;
}

tl_status tl_bpe_decode(const tl_bpe *b, tl_tensor *ids, bool skip_special_tokens, bool replace, tl_tensor **out) {
  int dtype = tl_dtype_of(ids);
  if (dtype != TL_INT64 && dtype != TL_INT32 && dtype != TL_UINT8)
    return TL_FAIL(TL_ERR_DTYPE, OP, "ids are integers, got %s", tl_dtype_name(dtype));
  tl_tensor *wide = NULL, *rows = NULL, *text = NULL;
  tl_status st = tl_to(ids, TL_INT64, TL_CPU, &wide);
  if (st == TL_OK) st = tl_contiguous(wide, &rows);
  if (st == TL_OK) st = join(b, tl_data(rows), rows->numel, skip_special_tokens, &text);
  tl_tensor_free(wide);
  tl_tensor_free(rows);
  if (st != TL_OK || !replace) return tl_give(st, text, out);
  st = repaired(text, out);
  tl_tensor_free(text);
  return st;
}
