/* bpe_train.c: learns merges: the most frequent pair of neighbours becomes a token, again and again. Ties go to the pair with
 * the smaller ids, so that the result is that of Hugging Face's BpeTrainer.
 *
 * A queue holds the pairs by their count, each with the words that have it. Counts change while a pair waits: one whose count
 * is not what it was goes back into the queue with the new one. */
#include <string.h>

#include "core/memory.h"
#include "data/bpe.h"

#define OP "BPE.train"

typedef struct word {
  int64_t first; /* of its bytes; while training: of its symbols */
  int32_t length;
  int64_t count; /* how often it occurs */
} word;

typedef struct pair {
  uint64_t key; /* left << 32 | right */
  int64_t count;
  int32_t *words; /* that have it since this round: they wait to be put into the queue */
  int32_t n, room;
} pair;

typedef struct entry {
  int64_t count;
  int32_t pair;
  int32_t *words;
  int32_t n;
} entry;

struct tl_bpe_trainer {
  tl_splitter splitter;
  char *pattern; /* NULL: GPT-2's */
  /* words */
  char *bytes;
  int64_t used, room;
  word *words;
  int32_t count, words_room;
  int32_t *slots; /* by hash; -1: free */
  uint32_t mask;
  /* training */
  int32_t *symbols;
  pair *pairs;
  int32_t pair_count, pairs_room;
  int32_t *pair_slots;
  uint32_t pair_mask;
  int32_t *touched; /* pairs with waiting words */
  int32_t touched_count, touched_room;
  entry *queue;
  int64_t queued, queue_room;
  /* tokens */
  tl_token *tokens;
  int32_t size, tokens_room;
  tl_index index; /* of their bytes */
  int32_t (*merge)[2];
  int32_t merges, merge_room;
};

static tl_status no_memory(const char *what) { return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for %s", what); }

/* Room for one more element of a growing array. */
#define GROW(array, n, room)                                                                  \
  do {                                                                                        \
    if ((n) == (room)) {                                                                      \
      int64_t more = (room) == 0 ? 64 : 2 * (int64_t)(room);                                  \
      void *bigger = more > INT32_MAX ? NULL : tl_host_alloc((size_t)more * sizeof *(array)); \
      if (bigger == NULL) return no_memory(#array);                                           \
      if ((n) > 0) memcpy(bigger, (array), (size_t)(n) * sizeof *(array));                    \
      tl_host_free(array);                                                                    \
      (array) = bigger;                                                                       \
      (room) = (__typeof__(room))more;                                                        \
    }                                                                                         \
  } while (0)

/* ---- words ---- */

static uint32_t word_slot(const tl_bpe_trainer *t, const char *piece, int64_t n) {
  uint32_t slot = (uint32_t)tl_hash_bytes(piece, (size_t)n) & t->mask;
  for (;; slot = (slot + 1) & t->mask) {
    int32_t w = t->slots[slot];
    if (w < 0 || (t->words[w].length == n && memcmp(t->bytes + t->words[w].first, piece, (size_t)n) == 0)) return slot;
  }
}

static tl_status rehash_words(tl_bpe_trainer *t, uint32_t slots) {
  int32_t *table = tl_host_alloc(slots * sizeof *table);
  if (table == NULL) return no_memory("words");
  memset(table, 0xff, slots * sizeof *table);
  tl_host_free(t->slots);
  t->slots = table;
  t->mask = slots - 1;
  for (int32_t w = 0; w < t->count; w++) {
    uint32_t slot = (uint32_t)tl_hash_bytes(t->bytes + t->words[w].first, (size_t)t->words[w].length) & t->mask;
    while (table[slot] >= 0) slot = (slot + 1) & t->mask;
    table[slot] = w;
  }
  return TL_OK;
}

static tl_status keep_bytes(tl_bpe_trainer *t, const char *piece, int64_t n) {
  if (t->used + n > t->room) {
    int64_t room = 2 * t->room + n + 65536;
    char *bigger = tl_host_alloc((size_t)room);
    if (bigger == NULL) return no_memory("words");
    if (t->used > 0) memcpy(bigger, t->bytes, (size_t)t->used);
    tl_host_free(t->bytes);
    t->bytes = bigger;
    t->room = room;
  }
  memcpy(t->bytes + t->used, piece, (size_t)n);
  t->used += n;
  return TL_OK;
}

static tl_status count_word(void *to, const char *piece, int64_t n) {
  tl_bpe_trainer *t = to;
  TL_CHECK_INTERRUPT(OP);
  uint32_t slot = word_slot(t, piece, n);
  if (t->slots[slot] >= 0) return t->words[t->slots[slot]].count++, TL_OK;
  if (n > INT32_MAX) return TL_FAIL(TL_ERR_VALUE, OP, "a piece of %lld bytes is too long", (long long)n);
  if (2 * (uint32_t)t->count >= t->mask) {
    TL_TRY(rehash_words(t, 4 * (t->mask + 1)));
    slot = word_slot(t, piece, n);
  }
  GROW(t->words, t->count, t->words_room);
  int64_t first = t->used;
  TL_TRY(keep_bytes(t, piece, n));
  t->words[t->count] = (word){first, (int32_t)n, 1};
  t->slots[slot] = t->count++;
  return TL_OK;
}

static tl_status count_words(void *to, const char *text, int64_t n) {
  return tl_split(&((tl_bpe_trainer *)to)->splitter, text, n, count_word, to);
}

tl_status tl_bpe_trainer_new(const char *pattern, tl_bpe_trainer **out) {
  tl_bpe_trainer *t = tl_host_calloc(1, sizeof *t);
  if (t == NULL) return no_memory("a trainer");
  const char *used = pattern == NULL ? tl_gpt2_pattern : pattern;
  tl_status st = tl_regex_new(used, strlen(used), &t->splitter.step[0]);
  if (st == TL_OK) t->splitter.steps = 1;
  if (st == TL_OK) st = rehash_words(t, 1024);
  if (st == TL_OK && pattern != NULL) {
    t->pattern = tl_host_alloc(strlen(pattern) + 1);
    if (t->pattern == NULL) st = no_memory("a pattern");
    else strcpy(t->pattern, pattern);
  }
  if (st == TL_OK) *out = t;
  else tl_bpe_trainer_free(t);
  return st;
}

tl_status tl_bpe_trainer_feed(tl_bpe_trainer *t, const char *text, int64_t bytes) {
  return tl_split_runs(text, bytes, count_words, count_word, t);
}

/* ---- pairs ---- */

static uint64_t key_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

static uint32_t pair_slot(const tl_bpe_trainer *t, uint64_t key) {
  uint64_t h = key * 0x9E3779B97F4A7C15u;
  uint32_t slot = (uint32_t)(h ^ h >> 32) & t->pair_mask;
  while (t->pair_slots[slot] >= 0 && t->pairs[t->pair_slots[slot]].key != key) slot = (slot + 1) & t->pair_mask;
  return slot;
}

static tl_status rehash_pairs(tl_bpe_trainer *t, uint32_t slots) {
  int32_t *table = tl_host_alloc(slots * sizeof *table);
  if (table == NULL) return no_memory("pairs");
  memset(table, 0xff, slots * sizeof *table);
  tl_host_free(t->pair_slots);
  t->pair_slots = table;
  t->pair_mask = slots - 1;
  for (int32_t p = 0; p < t->pair_count; p++) table[pair_slot(t, t->pairs[p].key)] = p;
  return TL_OK;
}

/* The pair's count changes by `change`; one that grows is in word w, which waits to be queued with it. */
static tl_status change_pair(tl_bpe_trainer *t, int32_t left, int32_t right, int64_t change, int32_t w) {
  uint64_t key = key_of(left, right);
  uint32_t slot = pair_slot(t, key);
  if (t->pair_slots[slot] < 0) {
    if (2 * (uint32_t)t->pair_count >= t->pair_mask) {
      TL_TRY(rehash_pairs(t, 4 * (t->pair_mask + 1)));
      slot = pair_slot(t, key);
    }
    GROW(t->pairs, t->pair_count, t->pairs_room);
    t->pairs[t->pair_count] = (pair){.key = key};
    t->pair_slots[slot] = t->pair_count++;
  }
  pair *p = &t->pairs[t->pair_slots[slot]];
  p->count += change;
  if (change < 0 || (p->n > 0 && p->words[p->n - 1] == w)) return TL_OK;
  if (p->n == 0) {
    GROW(t->touched, t->touched_count, t->touched_room);
    t->touched[t->touched_count++] = t->pair_slots[slot];
  }
  GROW(p->words, p->n, p->room);
  p->words[p->n++] = w;
  return TL_OK;
}

/* ---- the queue: a heap, the most frequent first, of equals the one with the smaller ids ---- */

static bool is_before(const tl_bpe_trainer *t, const entry *a, const entry *b) {
  return a->count != b->count ? a->count > b->count : t->pairs[a->pair].key < t->pairs[b->pair].key;
}

static tl_status push(tl_bpe_trainer *t, entry e) {
  GROW(t->queue, t->queued, t->queue_room);
  int64_t at = t->queued++;
  for (int64_t up; at > 0 && is_before(t, &e, &t->queue[up = (at - 1) / 2]); at = up) t->queue[at] = t->queue[up];
  t->queue[at] = e;
  return TL_OK;
}

static entry pop(tl_bpe_trainer *t) {
  entry first = t->queue[0], last = t->queue[--t->queued];
  int64_t at = 0;
  for (int64_t down; (down = 2 * at + 1) < t->queued; at = down) {
    if (down + 1 < t->queued && is_before(t, &t->queue[down + 1], &t->queue[down])) down++;
    if (!is_before(t, &t->queue[down], &last)) break;
    t->queue[at] = t->queue[down];
  }
  t->queue[at] = last;
  return first;
}

/* The pairs that words wait for come into the queue. */
static tl_status queue_touched(tl_bpe_trainer *t) {
  for (; t->touched_count > 0; t->touched_count--) {
    pair *p = &t->pairs[t->touched[t->touched_count - 1]];
    if (p->count > 0) TL_TRY(push(t, (entry){p->count, (int32_t)(p - t->pairs), p->words, p->n}));
    else tl_host_free(p->words);
    p->words = NULL;
    p->n = p->room = 0;
  }
  return TL_OK;
}

/* ---- merging ---- */

/* Every `left right` in word w becomes `id`; counts of the neighbours follow. */
static tl_status merge_in_word(tl_bpe_trainer *t, int32_t w, int32_t left, int32_t right, int32_t id) {
  int32_t *s = t->symbols + t->words[w].first, n = t->words[w].length, to = 0;
  int64_t count = t->words[w].count;
  for (int32_t i = 0; i < n; i++, to++) {
    if (i + 1 == n || s[i] != left || s[i + 1] != right) {
      s[to] = s[i];
      continue;
    }
    if (to > 0) {
      TL_TRY(change_pair(t, s[to - 1], left, -count, w));
      TL_TRY(change_pair(t, s[to - 1], id, count, w));
    }
    if (i + 2 < n) {
      TL_TRY(change_pair(t, right, s[i + 2], -count, w));
      TL_TRY(change_pair(t, id, s[i + 2], count, w));
    }
    s[to] = id;
    i++;
  }
  t->words[w].length = to;
  return TL_OK;
}

/* The id of bytes, which may be new. Takes the bytes, which must have been allocated. */
static tl_status token_of(tl_bpe_trainer *t, char *bytes, int32_t n, int32_t *id) {
  *id = tl_index_find(&t->index, t->tokens, bytes, n);
  if (*id >= 0) {
    tl_host_free(bytes);
    return TL_OK;
  }
  *id = t->size;
  t->tokens[t->size++] = (tl_token){bytes, n, TL_TOKEN_MODEL};
  tl_index_add(&t->index, t->tokens, *id);
  return TL_OK;
}

static tl_status merge_pair(tl_bpe_trainer *t, const entry *e) {
  uint64_t key = t->pairs[e->pair].key;
  int32_t left = (int32_t)(key >> 32), right = (int32_t)(uint32_t)key, id;
  const tl_token *a = &t->tokens[left], *b = &t->tokens[right];
  char *bytes = tl_host_alloc((size_t)a->length + (size_t)b->length + 1);
  if (bytes == NULL) return no_memory("a token");
  memcpy(bytes, a->bytes, (size_t)a->length);
  memcpy(bytes + a->length, b->bytes, (size_t)b->length);
  TL_TRY(token_of(t, bytes, a->length + b->length, &id));
  GROW(t->merge, t->merges, t->merge_room);
  t->merge[t->merges][0] = left;
  t->merge[t->merges++][1] = right;
  for (int32_t i = 0; i < e->n; i++) TL_TRY(merge_in_word(t, e->words[i], left, right, id));
  return queue_touched(t);
}

static tl_status learn(tl_bpe_trainer *t, int32_t vocab_size, int64_t min_frequency) {
  while (t->size < vocab_size && t->queued > 0) {
    TL_CHECK_INTERRUPT(OP);
    entry e = pop(t);
    int64_t now = t->pairs[e.pair].count;
    if (e.count != now) {
      e.count = now;
      tl_status st = push(t, e);
      if (st != TL_OK) tl_host_free(e.words);
      TL_TRY(st);
      continue;
    }
    bool rare = e.count < 1 || e.count < min_frequency;
    tl_status st = rare ? TL_OK : merge_pair(t, &e);
    tl_host_free(e.words);
    TL_TRY(st);
    if (rare) break;
  }
  return TL_OK;
}

/* ---- from words to tokens ---- */

static tl_status add_token(tl_bpe_trainer *t, const char *bytes, int32_t n, int32_t flags) {
  int32_t id, before = t->size;
  char *copy = tl_host_alloc((size_t)n + 1);
  if (copy == NULL) return no_memory("a token");
  memcpy(copy, bytes, (size_t)n);
  copy[n] = 0;
  TL_TRY(token_of(t, copy, n, &id));
  if (t->size > before) t->tokens[id].flags |= flags;
  return TL_OK;
}

/* Special tokens come first, then the bytes in the order of their letters. */
static tl_status first_tokens(tl_bpe_trainer *t, int n, const char *const *special, int32_t vocab_size) {
  t->tokens_room = vocab_size + n + 256;
  t->tokens = tl_host_calloc((size_t)t->tokens_room, sizeof *t->tokens);
  if (t->tokens == NULL) return no_memory("tokens");
  TL_TRY(tl_index_new(&t->index, t->tokens_room));
  for (int i = 0; i < n; i++)
    TL_TRY(add_token(t, special[i], (int32_t)strlen(special[i]), TL_TOKEN_ADDED | TL_TOKEN_SPECIAL));
  for (int32_t letter = 0; letter < 256 + 68; letter++) {
    char byte = (char)tl_letter_byte(letter);
    if (tl_letter_byte(letter) >= 0) TL_TRY(add_token(t, &byte, 1, 0));
  }
  return TL_OK;
}

static tl_status first_pairs(tl_bpe_trainer *t) {
  t->symbols = tl_host_alloc((size_t)t->used * sizeof *t->symbols + 1);
  if (t->symbols == NULL) return no_memory("words");
  for (int64_t i = 0; i < t->used; i++) t->symbols[i] = tl_index_find(&t->index, t->tokens, t->bytes + i, 1);
  TL_TRY(rehash_pairs(t, 1024));
  for (int32_t w = 0; w < t->count; w++) {
    const int32_t *s = t->symbols + t->words[w].first;
    for (int32_t i = 0; i + 1 < t->words[w].length; i++) TL_TRY(change_pair(t, s[i], s[i + 1], t->words[w].count, w));
  }
  return queue_touched(t);
}

/* ---- the result ---- */

static json_t *name_of(const tl_token *t) {
  if (t->flags & TL_TOKEN_ADDED) return json_string(t->bytes);
  char *name = tl_host_alloc(2 * (size_t)t->length);
  json_t *text = name == NULL ? NULL : json_stringn(name, tl_bytes_name(t->bytes, t->length, name));
  tl_host_free(name);
  return text;
}

static bool write_tokens(const tl_bpe_trainer *t, json_t *vocab, json_t *special) {
  for (int32_t id = 0; id < t->size; id++) {
    json_t *name = name_of(&t->tokens[id]);
    bool fine = name != NULL && json_object_set_new(vocab, json_string_value(name), json_integer(id)) == 0;
    if (fine && t->tokens[id].flags & TL_TOKEN_ADDED)
      fine = json_array_append_new(special, tl_bpe_special(json_string_value(name), id)) == 0;
    json_decref(name);
    if (!fine) return false;
  }
  return true;
}

static bool write_merges(const tl_bpe_trainer *t, json_t *merges) {
  for (int32_t m = 0; m < t->merges; m++) {
    const tl_token *left = &t->tokens[t->merge[m][0]], *right = &t->tokens[t->merge[m][1]];
    if (json_array_append_new(merges, json_pack("[o, o]", name_of(left), name_of(right))) != 0) return false;
  }
  return true;
}

static tl_status result_of(const tl_bpe_trainer *t, tl_bpe **out) {
  json_t *vocab = json_object(), *merges = json_array(), *special = json_array();
  bool fine = write_tokens(t, vocab, special) && write_merges(t, merges);
  json_t *root = tl_bpe_parts(t->pattern, special);
  json_t *model = json_pack("{s:s, s:o, s:o}", "type", "BPE", "vocab", vocab, "merges", merges);
  fine = json_object_set_new(root, "model", model) == 0 && fine;
  tl_status st = fine ? tl_bpe_build("the trained tokenizer", root, out) : no_memory("a tokenizer");
  json_decref(root);
  return st;
}

static tl_status check_options(const tl_bpe_trainer *t, int vocab_size, int n, const char *const *special) {
  if (t->tokens != NULL) return TL_FAIL(TL_ERR_STATE, OP, "the trainer has been used");
  for (int i = 0; i < n; i++)
    if (special[i][0] == 0) return TL_FAIL(TL_ERR_VALUE, OP, "special token %lld is empty", (long long)tl_position(i));
  if (vocab_size < 256 + n || vocab_size > TL_MAX_ID)
    return TL_FAIL(TL_ERR_VALUE, OP, "vocab_size is %d, it must be %d (the bytes and %d special tokens) to %d",
                   vocab_size, 256 + n, n, TL_MAX_ID);
  return TL_OK;
}

tl_status tl_bpe_trainer_finish(tl_bpe_trainer *t, int vocab_size, double min_frequency, int n,
                                const char *const *special, tl_bpe **out) {
  TL_TRY(check_options(t, vocab_size, n, special));
  TL_TRY(first_tokens(t, n, special, vocab_size));
  TL_TRY(first_pairs(t));
  TL_TRY(learn(t, vocab_size, (int64_t)min_frequency));
  return result_of(t, out);
}

void tl_bpe_trainer_free(tl_bpe_trainer *t) {
  if (t == NULL) return;
  tl_splitter_free(&t->splitter);
  for (int64_t i = 0; i < t->queued; i++) tl_host_free(t->queue[i].words);
  for (int32_t i = 0; i < t->pair_count; i++) tl_host_free(t->pairs[i].words);
  for (int32_t i = 0; i < t->size; i++) tl_host_free((char *)t->tokens[i].bytes);
  tl_index_free(&t->index);
  void *blocks[] = {t->pattern,    t->bytes,   t->words, t->slots,  t->symbols, t->pairs,
                    t->pair_slots, t->touched, t->queue, t->tokens, t->merge,   t};
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) tl_host_free(blocks[i]);
}
