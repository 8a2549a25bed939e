/* bpe.h: byte-level byte-pair encoding inside (Sennrich et al. 2016; Radford et al. 2019): bpe_regex.c and bpe_split.c cut
 * text into pieces, bpe_encode.c merges the bytes of a piece into tokens, bpe_vocab.c holds tokens and merges, bpe_json.c,
 * bpe_file.c and bpe_write.c are the file formats, bpe_train.c learns the merges. */
#ifndef TL_DATA_BPE_H
#define TL_DATA_BPE_H

#include <jansson.h>

#include "core/error.h"

#define TL_BPE "BPE"

/* ---- regular expressions (bpe_regex.c) ---- */

typedef struct tl_regex tl_regex;

tl_status tl_regex_new(const char *pattern, size_t bytes, tl_regex **out);
void tl_regex_free(tl_regex *r);
/* The first match at or after `from` in n bytes of UTF-8 that has any character; *begin = -1: there is none. */
tl_status tl_regex_next(tl_regex *r, const char *text, int64_t n, int64_t from, int64_t *begin, int64_t *end);

/* ---- pieces (bpe_split.c) ---- */

enum { TL_MAX_STEPS = 8 };

/* Each step cuts the pieces of the step before at its matches: matches and what lies between them are pieces. */
typedef struct tl_splitter {
  int steps;
  tl_regex *step[TL_MAX_STEPS];
  bool drop[TL_MAX_STEPS]; /* what lies between matches is left out */
  bool nfc;
} tl_splitter;

typedef tl_status (*tl_piece)(void *to, const char *piece, int64_t n);

void tl_splitter_free(tl_splitter *s);
/* f(to, piece) for the pieces of UTF-8 text, which was normalised. */
tl_status tl_split(const tl_splitter *s, const char *text, int64_t n, tl_piece f, void *to);
/* text(to, run) for each longest run of UTF-8 in any bytes, broken(to, bytes) for what lies between. */
tl_status tl_split_runs(const char *text, int64_t n, tl_piece run, tl_piece broken, void *to);
/* f(to, text) with the text in normalisation form C. */
tl_status tl_normalise(const tl_splitter *s, const char *text, int64_t n, tl_piece f, void *to);

/* ---- tokens and merges (bpe_vocab.c) ---- */

enum { TL_TOKEN_MODEL = 1, TL_TOKEN_RAW = 2, TL_TOKEN_ADDED = 4, TL_TOKEN_SPECIAL = 8, TL_TOKEN_NORMALIZED = 16 };

typedef struct tl_token {
  const char *bytes; /* what it stands for; NULL: no token has this id */
  int32_t length;
  int32_t flags; /* MODEL: BPE may give it; RAW: its name in files is not made of the letters that stand for bytes */
} tl_token;

typedef struct tl_pair {
  uint64_t key; /* left << 32 | right; UINT64_MAX: free */
  int32_t rank, id;
} tl_pair;

typedef struct tl_index { /* bytes -> id, open addressing */
  int32_t *slots;         /* -1: free */
  uint32_t mask;
} tl_index;

typedef struct tl_added { /* tokens to be found before, or after, normalisation */
  bool first[256];        /* what they start with */
  int32_t *lengths;       /* [count], the longest first */
  int32_t count;
} tl_added;

typedef struct tl_bpe_scratch tl_bpe_scratch;

enum { TL_MAX_AROUND = 16, TL_MAX_ID = 1 << 21 };

struct tl_bpe {
  int32_t count; /* ids are below */
  tl_token *tokens;
  char *bytes; /* of all tokens */
  tl_index model, added;
  int32_t byte_ids[256]; /* the token of one byte, -1: none */
  int32_t merges;
  int32_t (*merge)[2]; /* [merges] by rank: left, right */
  tl_pair *pairs;
  uint64_t pair_mask;
  tl_splitter splitter;
  bool prefix_space, ignore_merges;
  tl_added search[2]; /* for added tokens */
  int before_count, after_count;
  int32_t before[TL_MAX_AROUND], after[TL_MAX_AROUND]; /* special tokens around a text */
  json_t *parts;                                       /* what of tokenizer.json is kept as it was */
  tl_bpe_scratch *scratch;                             /* bpe_encode.c */
};

/* The letter (code point) that stands for a byte in files, and back: -1 when none does. */
int32_t tl_byte_letter(int byte);
int tl_letter_byte(int32_t point);
/* The bytes that a name in a file stands for: at most n of them. False: some of its letters stand for no byte. */
bool tl_name_bytes(const char *name, size_t n, char *to, int32_t *length);
/* The name of bytes: at most 2 n. Returns its length. */
size_t tl_bytes_name(const char *bytes, int32_t n, char *to);

uint64_t tl_hash_bytes(const char *bytes, size_t n);
tl_status tl_index_new(tl_index *x, int32_t room); /* for so many entries */
void tl_index_free(tl_index *x);
int32_t tl_index_find(const tl_index *x, const tl_token *tokens, const char *bytes, int32_t n); /* -1: absent */
void tl_index_add(tl_index *x, const tl_token *tokens, int32_t id);
const tl_pair *tl_find_pair(const tl_bpe *b, int32_t left, int32_t right); /* NULL: they do not merge */
tl_status tl_pairs_fill(tl_bpe *b, const int32_t *ids); /* from b->merge; what they become: ids[merges] */
void tl_bpe_scratch_free(tl_bpe_scratch *s);

/* ---- files (bpe_json.c, bpe_file.c) ---- */

/* A tokenizer from the tree of a tokenizer.json. `label` names it in messages. */
tl_status tl_bpe_build(const char *label, const json_t *root, tl_bpe **out);
extern const char tl_gpt2_pattern[];
/* The parts of tokenizer.json around a model without normaliser or post-processor; pattern NULL: GPT-2's. Steals special,
 * the list of added tokens. NULL: no memory, or text that is not UTF-8. */
json_t *tl_bpe_parts(const char *pattern, json_t *special);
json_t *tl_bpe_special(const char *content, int32_t id); /* an entry of added_tokens */

#endif
