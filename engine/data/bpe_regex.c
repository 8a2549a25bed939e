/* bpe_regex.c: the regular expressions of tokenizers, by PCRE2: Unicode's classes, compiled to machine code where it can, and
 * with a limit on the steps of a match, so that a pattern from a file cannot hang. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "core/memory.h"
#include "data/bpe.h"
#include "data/source.h"

#define STEPS 10000000 /* of one match */
#define JIT_STACK (1 << 20)
#define OPTIONS (PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C)

struct tl_regex {
  pcre2_general_context *memory;
  pcre2_code *code;
  pcre2_match_data *match;
  pcre2_match_context *limits;
  pcre2_jit_stack *stack;
  bool compiled; /* to machine code */
};

static void *allocate(size_t bytes, void *unused) {
  (void)unused;
  return tl_host_alloc(bytes);
}

static void release(void *p, void *unused) {
  (void)unused;
  tl_host_free(p);
}

/* ---- from Oniguruma's dialect, in which tokenizer.json is written, to PCRE2's ---- */

#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define ALONE "\\xB2\\xB3\\xB9\\xBC-\\xBE" /* are \w as well, but not in brackets */
#define GROWTH 32                          /* the most that a character becomes, of two in a row */

typedef struct translation {
  const char *from;
  size_t n, at;
  char *to;
  size_t length;
  bool in_class; /* [...] */
} translation;

static void put(translation *t, const char *text) {
  size_t n = strlen(text);
  memcpy(t->to + t->length, text, n);
  t->length += n;
}

static tl_status not_built(const translation *t, const char *what) {
  return TL_FAIL(TL_ERR_UNSUPPORTED, TL_BPE, "the pattern '%s': %s", tl_printable(t->from, t->n), what);
}

/* White space and word characters are what they are there. What differs and is not worth a translation is refused. */
static tl_status translate_escape(translation *t) {
  char c = t->from[t->at + 1];
  t->at += 2;
  if (strchr("hHbBX", c) != NULL && c != 0 && !(c == 'b' && t->in_class))
    return not_built(t, "\\b, \\B, \\h, \\H and \\X are not built");
  if (c == 'W' && t->in_class) return not_built(t, "\\W in brackets is not built");
  if (c == 's') put(t, "\\p{White_Space}");
  else if (c == 'S') put(t, "\\P{White_Space}");
  else if (c == 'w') put(t, t->in_class ? WORD : "[" WORD ALONE "]");
  else if (c == 'W') put(t, "[^" WORD ALONE "]");
  else t->to[t->length++] = '\\', t->to[t->length++] = c;
  return TL_OK;
}

/* An unescaped character; sets within sets and intersections would silently be something else to PCRE2. */
static tl_status translate_character(translation *t) {
  char c = t->from[t->at++], next = t->at < t->n ? t->from[t->at] : 0;
  t->to[t->length++] = c;
  if (!t->in_class) {
    t->in_class = c == '[';
    if (t->in_class && next == '^') t->to[t->length++] = t->from[t->at++];
    if (t->in_class && t->at < t->n && t->from[t->at] == ']') t->to[t->length++] = t->from[t->at++];
  } else if (c == '[' || (c == '&' && next == '&')) {
    return not_built(t, "sets within sets are not built (write \\[ or \\& for the character)");
  } else if (c == ']') {
    t->in_class = false;
  }
  return TL_OK;
}

static tl_status translate(translation *t) {
  while (t->at < t->n)
    TL_TRY(t->from[t->at] == '\\' && t->at + 1 < t->n ? translate_escape(t) : translate_character(t));
  return TL_OK;
}

/* ---- compiling ---- */

static tl_status compile(tl_regex *r, const char *pattern, size_t bytes) {
  int code = 0;
  size_t at;
  char *text = tl_host_alloc(GROWTH * bytes + 1);
  if (text == NULL) return TL_FAIL(TL_ERR_MEMORY, TL_BPE, "no memory for a pattern of %zu bytes", bytes);
  translation t = {.from = pattern, .n = bytes, .to = text};
  tl_status st = translate(&t);
  if (st == TL_OK) {
    pcre2_compile_context *context = pcre2_compile_context_create(r->memory);
    r->code = pcre2_compile((PCRE2_SPTR)text, t.length, OPTIONS, &code, &at, context);
    pcre2_compile_context_free(context);
  }
  tl_host_free(text);
  TL_TRY(st);
  if (r->code != NULL) return TL_OK;
  if (code == PCRE2_ERROR_HEAP_FAILED) return TL_FAIL(TL_ERR_MEMORY, TL_BPE, "no memory for a pattern");
  PCRE2_UCHAR message[128];
  pcre2_get_error_message(code, message, sizeof message);
  return TL_FAIL(TL_ERR_VALUE, TL_BPE, "the pattern '%s' is no regular expression: %s", tl_printable(pattern, bytes),
                 (const char *)message);
}

tl_status tl_regex_new(const char *pattern, size_t bytes, tl_regex **out) {
  tl_regex *r = tl_host_calloc(1, sizeof *r);
  if (r != NULL) r->memory = pcre2_general_context_create(allocate, release, NULL);
  tl_status st = r == NULL || r->memory == NULL ? TL_FAIL(TL_ERR_MEMORY, TL_BPE, "no memory for a pattern")
                                                : compile(r, pattern, bytes);
  if (st == TL_OK) {
    r->match = pcre2_match_data_create(1, r->memory);
    r->limits = pcre2_match_context_create(r->memory);
    if (r->match == NULL || r->limits == NULL) st = TL_FAIL(TL_ERR_MEMORY, TL_BPE, "no memory for a pattern");
  }
  if (st != TL_OK) {
    tl_regex_free(r);
    return st;
  }
  pcre2_set_match_limit(r->limits, STEPS);
  pcre2_set_depth_limit(r->limits, STEPS);
  r->compiled = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0;
  if (r->compiled) r->stack = pcre2_jit_stack_create(1 << 15, JIT_STACK, r->memory);
  if (r->stack != NULL) pcre2_jit_stack_assign(r->limits, NULL, r->stack);
  *out = r;
  return TL_OK;
}

void tl_regex_free(tl_regex *r) {
  if (r == NULL) return;
  pcre2_jit_stack_free(r->stack);
  pcre2_match_context_free(r->limits);
  pcre2_match_data_free(r->match);
  pcre2_code_free(r->code);
  pcre2_general_context_free(r->memory);
  tl_host_free(r);
}

static tl_status failed(int code, int64_t at) {
  if (code == PCRE2_ERROR_NOMEMORY) return TL_FAIL(TL_ERR_MEMORY, TL_BPE, "no memory to match a pattern");
  PCRE2_UCHAR message[128];
  pcre2_get_error_message(code, message, sizeof message);
  return TL_FAIL(TL_ERR_VALUE, TL_BPE, "the pattern gives up at byte %lld of a piece: %s", (long long)tl_position(at),
                 (const char *)message);
}

tl_status tl_regex_next(tl_regex *r, const char *text, int64_t n, int64_t from, int64_t *begin, int64_t *end) {
  *begin = -1;
  while (from < n) {
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int code = r->compiled
                   ? pcre2_jit_match(r->code, subject, (size_t)n, (size_t)from, 0, r->match, r->limits)
                   : pcre2_match(r->code, subject, (size_t)n, (size_t)from, PCRE2_NO_UTF_CHECK, r->match, r->limits);
    if (code == PCRE2_ERROR_NOMATCH) return TL_OK;
    if (code < 0) return failed(code, from);
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(r->match);
    if (place[1] > place[0] && (int64_t)place[0] >= from) {
      *begin = (int64_t)place[0];
      *end = (int64_t)place[1];
      return TL_OK;
    }
    /* an empty match, or one that \K moved: goes on behind the next character */
    from = (int64_t)place[1] > from ? (int64_t)place[1] : from;
    do from++;
    while (from < n && (text[from] & 0xC0) == 0x80);
  }
  return TL_OK;
}
