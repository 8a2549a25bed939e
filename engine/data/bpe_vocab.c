/* bpe_vocab.c: tokens by their bytes, merges by their pair, and the letters that stand for bytes in files. */
#include <string.h>

#include "core/memory.h"
#include "data/bpe.h"
#include "data/utf8.h"

/* ---- bytes in files ---- */

/* In files a byte is a visible letter: itself where Latin-1 has one for it, else one of those from U+0100 on, in order
 * (GPT-2). */
static bool is_visible(int byte) { return (byte > 32 && byte < 127) || (byte > 160 && byte != 173); }

int32_t tl_byte_letter(int byte) {
  if (is_visible(byte)) return byte;
  if (byte < 33) return 256 + byte;
  return byte == 173 ? 256 + 67 : 256 + 33 + byte - 127; /* 127 .. 160 follow */
}

int tl_letter_byte(int32_t point) {
  if (point < 256) return is_visible(point) ? point : -1;
  if (point < 256 + 33) return point - 256;
  if (point < 256 + 67) return point - 256 - 33 + 127;
  return point == 256 + 67 ? 173 : -1;
}

bool tl_name_bytes(const char *name, size_t n, char *to, int32_t *length) {
  *length = 0;
  for (size_t at = 0; at < n;) {
    tl_utf8 c = tl_utf8_read(name + at, n - at);
    int byte = c.point < 0 ? -1 : tl_letter_byte(c.point);
    if (byte < 0) return false;
    to[(*length)++] = (char)byte;
    at += (size_t)c.length;
  }
  return true;
}

size_t tl_bytes_name(const char *bytes, int32_t n, char *to) {
  char *end = to;
  for (int32_t i = 0; i < n; i++) end += tl_utf8_write(tl_byte_letter((unsigned char)bytes[i]), end);
  return (size_t)(end - to);
}

/* ---- tokens by their bytes ---- */

uint64_t tl_hash_bytes(const char *bytes, size_t n) {
  uint64_t h = n * 0x9E3779B97F4A7C15u;
  for (; n > 0; bytes += n < 8 ? n : 8, n -= n < 8 ? n : 8) {
    uint64_t word = 0;
    memcpy(&word, bytes, n < 8 ? n : 8);
    h = (h ^ word) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
  }
  return h;
}

tl_status tl_index_new(tl_index *x, int32_t room) {
  uint32_t slots = 16;
  while (slots < 2 * (uint32_t)room) slots *= 2;
  x->slots = tl_host_alloc(slots * sizeof *x->slots);
  if (x->slots == NULL) return TL_FAIL(TL_ERR_MEMORY, TL_BPE, "no memory for %d tokens", room);
  memset(x->slots, 0xff, slots * sizeof *x->slots);
  x->mask = slots - 1;
  return TL_OK;
}

void tl_index_free(tl_index *x) { tl_host_free(x->slots); }

static uint32_t slot_of(const tl_index *x, const tl_token *tokens, const char *bytes, int32_t n) {
  uint32_t slot = (uint32_t)tl_hash_bytes(bytes, (size_t)n) & x->mask;
  for (;; slot = (slot + 1) & x->mask) {
    int32_t id = x->slots[slot];
    if (id < 0 || (tokens[id].length == n && memcmp(tokens[id].bytes, bytes, (size_t)n) == 0)) return slot;
  }
}

int32_t tl_index_find(const tl_index *x, const tl_token *tokens, const char *bytes, int32_t n) {
  return x->slots[slot_of(x, tokens, bytes, n)];
}

void tl_index_add(tl_index *x, const tl_token *tokens, int32_t id) {
  x->slots[slot_of(x, tokens, tokens[id].bytes, tokens[id].length)] = id;
}

/* ---- merges by their pair ---- */

static uint64_t key_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

static tl_pair *pair_slot(const tl_bpe *b, uint64_t key) {
  uint64_t h = key * 0x9E3779B97F4A7C15u;
  uint64_t slot = (h ^ h >> 32) & b->pair_mask;
  while (b->pairs[slot].key != key && b->pairs[slot].key != UINT64_MAX) slot = (slot + 1) & b->pair_mask;
  return &b->pairs[slot];
}

const tl_pair *tl_find_pair(const tl_bpe *b, int32_t left, int32_t right) {
  const tl_pair *p = pair_slot(b, key_of(left, right));
  return p->key == UINT64_MAX ? NULL : p;
}

/* A pair that is named twice has its last rank. */
tl_status tl_pairs_fill(tl_bpe *b, const int32_t *ids) {
  uint64_t slots = 16;
  while (slots < 2 * (uint64_t)b->merges) slots *= 2;
  b->pairs = tl_host_alloc(slots * sizeof *b->pairs);
  if (b->pairs == NULL) return TL_FAIL(TL_ERR_MEMORY, TL_BPE, "no memory for %d merges", b->merges);
  b->pair_mask = slots - 1;
  for (uint64_t i = 0; i < slots; i++) b->pairs[i].key = UINT64_MAX;
  for (int32_t m = 0; m < b->merges; m++) {
    uint64_t key = key_of(b->merge[m][0], b->merge[m][1]);
    *pair_slot(b, key) = (tl_pair){key, m, ids[m]};
  }
  return TL_OK;
}

/* ---- the tokenizer ---- */

void tl_bpe_free(tl_bpe *b) {
  if (b == NULL) return;
  tl_splitter_free(&b->splitter);
  tl_host_free(b->search[0].lengths);
  tl_host_free(b->search[1].lengths);
  tl_index_free(&b->model);
  tl_index_free(&b->added);
  tl_bpe_scratch_free(b->scratch);
  json_decref(b->parts);
  tl_host_free(b->tokens);
  tl_host_free(b->bytes);
  tl_host_free(b->merge);
  tl_host_free(b->pairs);
  tl_host_free(b);
}

int tl_bpe_size(const tl_bpe *b) { return b->count; }

int tl_bpe_find(const tl_bpe *b, const char *bytes, int64_t n) {
  if (n > INT32_MAX) return -1;
  int32_t id = tl_index_find(&b->added, b->tokens, bytes, (int32_t)n);
  return id >= 0 ? id : tl_index_find(&b->model, b->tokens, bytes, (int32_t)n);
}

const char *tl_bpe_token(const tl_bpe *b, int id, int *length) {
  if (id < 0 || id >= b->count || b->tokens[id].bytes == NULL) return NULL;
  *length = b->tokens[id].length;
  return b->tokens[id].bytes;
}

bool tl_bpe_is_special(const tl_bpe *b, int id) {
  return id >= 0 && id < b->count && (b->tokens[id].flags & TL_TOKEN_SPECIAL) != 0;
}
