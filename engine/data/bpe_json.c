/* bpe_json.c: a tokenizer from the tree of a tokenizer.json, the file format of Hugging Face's tokenizers, as far as it is
 * byte-level BPE. What a file asks for beyond that is an error that names it. */
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "data/bpe.h"
#include "data/source.h"

#define OP TL_BPE
#define BAD(...) TL_FAIL(TL_ERR_FORMAT, OP, __VA_ARGS__)
#define LACKS(...) TL_FAIL(TL_ERR_UNSUPPORTED, OP, __VA_ARGS__)

/* How GPT-2 cuts text: endings as 's, words, numbers, other characters, white space. */
const char tl_gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef struct builder {
  const char *label; /* the file, for messages */
  tl_bpe *b;
  const json_t *vocab, *added;
  size_t used; /* of b->bytes */
} builder;

static const char *shown(const char *text) { return tl_printable(text, strlen(text)); }

static const char *type_of(const json_t *part) {
  const char *type = json_string_value(json_object_get(part, "type"));
  return type == NULL ? "of no type" : shown(type);
}

/* A boolean of an object that may lack it. */
static bool flag(const json_t *part, const char *key, bool otherwise) {
  const json_t *value = json_object_get(part, key);
  return json_is_boolean(value) ? json_boolean_value(value) : otherwise;
}

static bool is_absent(const json_t *value) {
  return value == NULL || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0);
}

/* ---- tokens ---- */

static tl_status read_id(const builder *r, const char *name, const json_t *value, int32_t *id) {
  if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) >= TL_MAX_ID)
    return BAD("%s: the id of token '%s' is not 0 to %d", r->label, shown(name), TL_MAX_ID - 1);
  *id = (int32_t)json_integer_value(value);
  return TL_OK;
}

/* The largest id and the bytes of all names. */
static tl_status measure(const builder *r, size_t *bytes) {
  const char *name;
  json_t *value;
  size_t i;
  int32_t id;
  *bytes = 1;
  json_object_foreach((json_t *)r->vocab, name, value) {
    TL_TRY(read_id(r, name, value, &id));
    if (id >= r->b->count) r->b->count = id + 1;
    *bytes += strlen(name);
  }
  json_array_foreach((json_t *)r->added, i, value) {
    const char *content = json_string_value(json_object_get(value, "content"));
    if (content == NULL || *content == 0) return BAD("%s: added token %zu has no content", r->label, i);
    TL_TRY(read_id(r, content, json_object_get(value, "id"), &id));
    if (id >= r->b->count) r->b->count = id + 1;
    *bytes += strlen(content);
  }
  return TL_OK;
}

static tl_status read_token(builder *r, const char *name, int32_t id) {
  tl_token *t = &r->b->tokens[id];
  size_t n = strlen(name);
  if (t->bytes != NULL) return BAD("%s: tokens '%s' and another have the id %d", r->label, shown(name), id);
  char *to = r->b->bytes + r->used;
  t->flags = TL_TOKEN_MODEL;
  if (!tl_name_bytes(name, n, to, &t->length)) {
    memcpy(to, name, n);
    t->length = (int32_t)n;
    t->flags |= TL_TOKEN_RAW;
  }
  t->bytes = to;
  r->used += (size_t)t->length;
  if (t->length == 1 && !(t->flags & TL_TOKEN_RAW)) r->b->byte_ids[(unsigned char)*to] = id;
  return TL_OK;
}

static tl_status read_added(builder *r, const json_t *value) {
  static const char *const unknown[] = {"single_word", "lstrip", "rstrip"};
  const char *content = json_string_value(json_object_get(value, "content"));
  int32_t id = (int32_t)json_integer_value(json_object_get(value, "id"));
  tl_token *t = &r->b->tokens[id];
  size_t n = strlen(content);
  for (int i = 0; i < 3; i++)
    if (flag(value, unknown[i], false))
      return LACKS("%s: added token '%s' has '%s', which is not built", r->label, shown(content), unknown[i]);
  const json_t *same = json_object_get(r->vocab, content);
  if (t->flags & TL_TOKEN_ADDED ||
      (t->bytes != NULL || same != NULL) != (same != NULL && json_integer_value(same) == id))
    return BAD("%s: added token '%s' has the id %d, which is another's", r->label, shown(content), id);
  char *to = r->b->bytes + r->used;
  memcpy(to, content, n);
  r->used += n;
  t->bytes = to;
  t->length = (int32_t)n;
  t->flags |= TL_TOKEN_ADDED | (flag(value, "special", false) ? TL_TOKEN_SPECIAL : 0) |
              (flag(value, "normalized", true) ? TL_TOKEN_NORMALIZED : 0);
  return TL_OK;
}

static tl_status read_tokens(builder *r) {
  tl_bpe *b = r->b;
  const char *name;
  json_t *value;
  size_t bytes, i;
  TL_TRY(measure(r, &bytes));
  b->tokens = tl_host_calloc((size_t)b->count + 1, sizeof *b->tokens);
  b->bytes = tl_host_alloc(bytes);
  if (b->tokens == NULL || b->bytes == NULL) return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for %d tokens", b->count);
  memset(b->byte_ids, 0xff, sizeof b->byte_ids);
  json_object_foreach((json_t *)r->vocab, name, value) {
    TL_TRY(read_token(r, name, (int32_t)json_integer_value(value)));
  }
  TL_TRY(tl_index_new(&b->model, (int32_t)json_object_size(r->vocab)));
  for (int32_t id = 0; id < b->count; id++)
    if (b->tokens[id].flags & TL_TOKEN_MODEL) tl_index_add(&b->model, b->tokens, id);
  json_array_foreach((json_t *)r->added, i, value) { TL_TRY(read_added(r, value)); }
  TL_TRY(tl_index_new(&b->added, (int32_t)json_array_size(r->added)));
  for (int32_t id = 0; id < b->count; id++)
    if (b->tokens[id].flags & TL_TOKEN_ADDED) tl_index_add(&b->added, b->tokens, id);
  return TL_OK;
}

/* ---- how added tokens are found ---- */

static int compare_lengths(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x < y) - (x > y);
}

static tl_status prepare_search(builder *r, int pass) {
  tl_bpe *b = r->b;
  tl_added *s = &b->search[pass];
  s->lengths = tl_host_alloc(json_array_size(r->added) * sizeof *s->lengths + 1);
  if (s->lengths == NULL) return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for the added tokens");
  int32_t n = 0;
  for (int32_t id = 0; id < b->count; id++) {
    const tl_token *t = &b->tokens[id];
    if (!(t->flags & TL_TOKEN_ADDED) || !(t->flags & TL_TOKEN_NORMALIZED) != !pass) continue;
    s->first[(unsigned char)t->bytes[0]] = true;
    s->lengths[n++] = t->length;
  }
  qsort(s->lengths, (size_t)n, sizeof *s->lengths, compare_lengths);
  for (int32_t i = 0; i < n; i++)
    if (i == 0 || s->lengths[i] != s->lengths[i - 1]) s->lengths[s->count++] = s->lengths[i];
  return TL_OK;
}

/* ---- merges ---- */

/* "a b" or ["a", "b"]; the parts are not copied. */
static bool read_pair(const json_t *value, const char *part[2], size_t length[2]) {
  if (json_is_array(value) && json_array_size(value) == 2) {
    for (size_t i = 0; i < 2; i++) {
      part[i] = json_string_value(json_array_get(value, i));
      if (part[i] == NULL) return false;
      length[i] = strlen(part[i]);
    }
    return length[0] > 0 && length[1] > 0;
  }
  const char *text = json_string_value(value), *space = text == NULL ? NULL : strchr(text, ' ');
  if (space == NULL || strchr(space + 1, ' ') != NULL) return false;
  part[0] = text;
  part[1] = space + 1;
  length[0] = (size_t)(space - text);
  length[1] = strlen(space + 1);
  return length[0] > 0 && length[1] > 0;
}

static tl_status read_merge(builder *r, size_t m, const json_t *value, int32_t *id) {
  const char *part[2];
  char joined[512], *whole = joined;
  size_t length[2];
  if (!read_pair(value, part, length)) return BAD("%s: merge %zu is not a pair of tokens", r->label, m);
  size_t n = length[0] + length[1];
  if (n > sizeof joined) whole = tl_host_alloc(n);
  if (whole == NULL) return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for a merge");
  memcpy(whole, part[0], length[0]);
  memcpy(whole + length[0], part[1], length[1]);
  const json_t *ids[3] = {json_object_getn(r->vocab, part[0], length[0]),
                          json_object_getn(r->vocab, part[1], length[1]), json_object_getn(r->vocab, whole, n)};
  if (whole != joined) tl_host_free(whole);
  for (int i = 0; i < 3; i++)
    if (ids[i] == NULL)
      return BAD("%s: merge %zu: '%s' + '%s': %s is not in the vocabulary", r->label, m,
                 tl_printable(part[0], length[0]), tl_printable(part[1], length[1]),
                 i == 0   ? "the first"
                 : i == 1 ? "the second"
                          : "what they become");
  r->b->merge[m][0] = (int32_t)json_integer_value(ids[0]);
  r->b->merge[m][1] = (int32_t)json_integer_value(ids[1]);
  *id = (int32_t)json_integer_value(ids[2]);
  return TL_OK;
}

static tl_status read_merges(builder *r, const json_t *merges) {
  size_t n = json_array_size(merges), m;
  const json_t *value;
  if (!json_is_array(merges) || n >= INT32_MAX) return BAD("%s: the model has no list of merges", r->label);
  int32_t *ids = tl_host_alloc(n * sizeof *ids + 1);
  r->b->merge = tl_host_alloc(n * sizeof *r->b->merge + 1);
  r->b->merges = (int32_t)n;
  tl_status st = ids == NULL || r->b->merge == NULL ? TL_FAIL(TL_ERR_MEMORY, OP, "no memory for %zu merges", n) : TL_OK;
  json_array_foreach((json_t *)merges, m, value) {
    if (st == TL_OK) st = read_merge(r, m, value, &ids[m]);
  }
  if (st == TL_OK) st = tl_pairs_fill(r->b, ids);
  tl_host_free(ids);
  return st;
}

static tl_status read_model(builder *r, const json_t *model) {
  static const char *const absent[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "unk_token"};
  const json_t *type = json_object_get(model, "type");
  if (!json_is_object(model)) return BAD("%s: has no model", r->label);
  if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
    return LACKS("%s: the model is %s, only BPE is built", r->label, type_of(model));
  for (int i = 0; i < 4; i++)
    if (!is_absent(json_object_get(model, absent[i])))
      return LACKS("%s: the model has '%s', which byte-level BPE does not take here", r->label, absent[i]);
  if (flag(model, "byte_fallback", false))
    return LACKS("%s: the model has 'byte_fallback' (SentencePiece's), only byte-level BPE is built", r->label);
  r->vocab = json_object_get(model, "vocab");
  if (!json_is_object(r->vocab)) return BAD("%s: the model has no vocabulary", r->label);
  r->b->ignore_merges = flag(model, "ignore_merges", false);
  TL_TRY(read_tokens(r));
  TL_TRY(read_merges(r, json_object_get(model, "merges")));
  TL_TRY(prepare_search(r, 0));
  return prepare_search(r, 1);
}

/* ---- from text to pieces ---- */

static tl_status read_normalizer(builder *r, const json_t *part) {
  size_t i;
  const json_t *each;
  if (is_absent(part)) return TL_OK;
  const char *type = type_of(part);
  if (strcmp(type, "NFC") == 0) return r->b->splitter.nfc = true, TL_OK;
  if (strcmp(type, "Sequence") != 0) return LACKS("%s: the normalizer %s is not built, only NFC is", r->label, type);
  json_array_foreach(json_object_get(part, "normalizers"), i, each) {
    if (strcmp(type_of(each), "NFC") != 0)
      return LACKS("%s: the normalizer %s is not built, only NFC is", r->label, type_of(each));
    r->b->splitter.nfc = true;
  }
  return TL_OK;
}

static tl_status add_step(builder *r, const char *pattern, size_t n, bool drop) {
  tl_splitter *s = &r->b->splitter;
  if (s->steps == TL_MAX_STEPS) return LACKS("%s: the pre_tokenizer has more than %d steps", r->label, TL_MAX_STEPS);
  TL_TRY(tl_regex_new(pattern, n, &s->step[s->steps]));
  s->drop[s->steps++] = drop;
  return TL_OK;
}

static tl_status read_split(builder *r, const json_t *part) {
  const json_t *pattern = json_object_get(json_object_get(part, "pattern"), "Regex");
  const char *behavior = json_string_value(json_object_get(part, "behavior"));
  bool isolated = behavior != NULL && strcmp(behavior, "Isolated") == 0;
  bool drop = behavior != NULL && strcmp(behavior, "Removed") == 0 && flag(part, "invert", false);
  if (!json_is_string(pattern)) return LACKS("%s: a Split without a Regex is not built", r->label);
  if (!isolated && !drop)
    return LACKS("%s: Split's behavior '%s' is not built, only Isolated is (and Removed with invert)", r->label,
                 behavior == NULL ? "" : shown(behavior));
  return add_step(r, json_string_value(pattern), json_string_length(pattern), drop);
}

static tl_status read_byte_level(builder *r, const json_t *part) {
  if (flag(part, "add_prefix_space", false)) {
    if (r->b->splitter.steps > 0)
      return LACKS("%s: add_prefix_space behind other pre_tokenizers is not built", r->label);
    r->b->prefix_space = true;
  }
  if (!flag(part, "use_regex", true)) return TL_OK;
  return add_step(r, tl_gpt2_pattern, strlen(tl_gpt2_pattern), false);
}

static tl_status read_pre_tokenizer(builder *r, const json_t *part, bool last) {
  const char *type = type_of(part);
  bool level = strcmp(type, "ByteLevel") == 0;
  if (level != last)
    return LACKS("%s: the pre_tokenizer ends with %s: only byte-level BPE is built, which ends with ByteLevel",
                 r->label, is_absent(part) ? "nothing" : type);
  if (level) return read_byte_level(r, part);
  if (strcmp(type, "Split") == 0) return read_split(r, part);
  if (strcmp(type, "Digits") == 0) {
    bool each = flag(part, "individual_digits", false);
    return add_step(r, each ? "\\p{N}" : "\\p{N}+", each ? 5 : 6, false);
  }
  return LACKS("%s: the pre_tokenizer %s is not built", r->label, type);
}

static tl_status read_pre_tokenizers(builder *r, const json_t *part) {
  size_t i;
  const json_t *each, *list = json_object_get(part, "pretokenizers");
  if (strcmp(type_of(part), "Sequence") != 0) return read_pre_tokenizer(r, part, true);
  if (json_array_size(list) == 0) return read_pre_tokenizer(r, NULL, true);
  json_array_foreach(list, i, each) { TL_TRY(read_pre_tokenizer(r, each, i + 1 == json_array_size(list))); }
  return TL_OK;
}

/* ---- special tokens around a text ---- */

static tl_status read_template(builder *r, const json_t *part) {
  size_t i, k;
  const json_t *piece, *id;
  bool behind = false;
  json_array_foreach(json_object_get(part, "single"), i, piece) {
    const json_t *special = json_object_get(piece, "SpecialToken");
    if (special == NULL) {
      behind = true;
      continue;
    }
    const char *name = json_string_value(json_object_get(special, "id"));
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(part, "special_tokens"), name == NULL ? "" : name), "ids");
    if (json_array_size(ids) == 0)
      return BAD("%s: the template's token '%s' has no id", r->label, name == NULL ? "" : shown(name));
    json_array_foreach(ids, k, id) {
      int *count = behind ? &r->b->after_count : &r->b->before_count;
      int32_t *list = behind ? r->b->after : r->b->before;
      TL_TRY(read_id(r, name == NULL ? "" : name, id, &list[*count]));
      if (list[*count] >= r->b->count || r->b->tokens[list[*count]].bytes == NULL)
        return BAD("%s: the template's token '%s' is not in the vocabulary", r->label, name == NULL ? "" : shown(name));
      if (++*count == TL_MAX_AROUND) return LACKS("%s: the template has %d tokens or more", r->label, TL_MAX_AROUND);
    }
  }
  return TL_OK;
}

static tl_status read_post_processor(builder *r, const json_t *part) {
  size_t i;
  const json_t *each;
  if (is_absent(part)) return TL_OK;
  const char *type = type_of(part);
  if (strcmp(type, "ByteLevel") == 0) return TL_OK; /* it moves offsets, which are not asked for */
  if (strcmp(type, "TemplateProcessing") == 0) return read_template(r, part);
  if (strcmp(type, "Sequence") != 0) return LACKS("%s: the post_processor %s is not built", r->label, type);
  json_array_foreach(json_object_get(part, "processors"), i, each) {
    if (strcmp(type_of(each), "Sequence") == 0) return LACKS("%s: post_processors are nested", r->label);
    TL_TRY(read_post_processor(r, each));
  }
  return TL_OK;
}

/* ---- the whole ---- */

static tl_status keep_parts(builder *r, const json_t *root) {
  static const char *const kept[] = {"added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"};
  r->b->parts = json_object();
  for (int i = 0; i < 5; i++) {
    json_t *part = json_object_get(root, kept[i]);
    if (json_object_set_new(r->b->parts, kept[i], part == NULL ? json_null() : json_incref(part)) != 0)
      return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for a tokenizer");
  }
  return TL_OK;
}

static tl_status build(builder *r, const json_t *root) {
  if (!json_is_object(root)) return BAD("%s: is not a tokenizer", r->label);
  r->added = json_object_get(root, "added_tokens");
  if (!is_absent(r->added) && !json_is_array(r->added)) return BAD("%s: added_tokens is not a list", r->label);
  const json_t *decoder = json_object_get(root, "decoder");
  /* What a file is not is told first: the pieces say it more plainly than the vocabulary. */
  TL_TRY(read_normalizer(r, json_object_get(root, "normalizer")));
  TL_TRY(read_pre_tokenizers(r, json_object_get(root, "pre_tokenizer")));
  if (strcmp(type_of(decoder), "ByteLevel") != 0)
    return LACKS("%s: the decoder is %s, only ByteLevel is built", r->label,
                 is_absent(decoder) ? "absent" : type_of(decoder));
  TL_TRY(read_model(r, json_object_get(root, "model")));
  TL_TRY(read_post_processor(r, json_object_get(root, "post_processor")));
  return keep_parts(r, root);
}

tl_status tl_bpe_build(const char *label, const json_t *root, tl_bpe **out) {
  builder r = {.label = label, .b = tl_host_calloc(1, sizeof *r.b)};
  if (r.b == NULL) return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for a tokenizer");
  tl_status st = build(&r, root);
  if (st == TL_OK) *out = r.b;
  else tl_bpe_free(r.b);
  return st;
}
