/* bpe_file.c: the files of tokenizers: tokenizer.json, and GPT-2's vocab.json and merges.txt. */
#include <string.h>

#include "core/tensor.h"
#include "data/bpe.h"
#include "data/source.h"

#define OP TL_BPE
#define MAX_FILE 1e9
#define BAD(...) TL_FAIL(TL_ERR_FORMAT, OP, __VA_ARGS__)

/* ---- tokenizer.json ---- */

static tl_status parse(const char *label, const char *text, size_t n, json_t **root) {
  json_error_t error;
  *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
  return *root != NULL
             ? TL_OK
             : BAD("%s: is not JSON: %s (line %d)", label, tl_printable(error.text, strlen(error.text)), error.line);
}

tl_status tl_bpe_parse(const char *text, int64_t bytes, tl_bpe **out) {
  json_t *root;
  TL_TRY(parse("a tokenizer's state", text, (size_t)bytes, &root));
  tl_status st = tl_bpe_build("a tokenizer's state", root, out);
  json_decref(root);
  return st;
}

static tl_status parse_file(const char *path, char label[TL_LABEL_CHARS], json_t **root) {
  tl_tensor *text;
  tl_path_label(label, path);
  TL_TRY(tl_read_bytes(path, MAX_FILE, &text));
  tl_status st = parse(label, tl_data(text), (size_t)text->numel, root);
  tl_tensor_free(text);
  return st;
}

tl_status tl_bpe_load(const char *path, tl_bpe **out) {
  char label[TL_LABEL_CHARS];
  json_t *root;
  TL_TRY(parse_file(path, label, &root));
  tl_status st = tl_bpe_build(label, root, out);
  json_decref(root);
  return st;
}

/* ---- GPT-2's files ---- */

/* Lines "a b" as a list of strings; a first line that starts with "#version" is a comment. */
static json_t *read_lines(const char *text, size_t n) {
  json_t *list = json_array();
  const char *end = text + n;
  for (const char *line = text; line < end;) {
    const char *stop = memchr(line, '\n', (size_t)(end - line));
    size_t length = (size_t)((stop == NULL ? end : stop) - line);
    if (length > 0 && line[length - 1] == '\r') length--;
    bool comment = line == text && length >= 8 && memcmp(line, "#version", 8) == 0;
    if (length > 0 && !comment && json_array_append_new(list, json_stringn(line, length)) != 0) {
      json_decref(list);
      return NULL;
    }
    line = stop == NULL ? end : stop + 1;
  }
  return list;
}

static tl_status read_merges_file(const char *path, json_t **merges) {
  char label[TL_LABEL_CHARS];
  tl_tensor *text;
  tl_path_label(label, path);
  TL_TRY(tl_read_bytes(path, MAX_FILE, &text));
  *merges = read_lines(tl_data(text), (size_t)text->numel);
  tl_tensor_free(text);
  return *merges != NULL ? TL_OK : BAD("%s: is not UTF-8 text", label);
}

json_t *tl_bpe_special(const char *content, int32_t id) {
  return json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (int)id, "content", content, "single_word", 0, "lstrip",
                   0, "rstrip", 0, "normalized", 0, "special", 1);
}

static json_t *byte_level(bool use_regex) {
  return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex",
                   use_regex);
}

json_t *tl_bpe_parts(const char *pattern, json_t *special) {
  json_t *split = pattern == NULL ? byte_level(true)
                                  : json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence",
                                              "pretokenizers", "type", "Split", "pattern", "Regex", pattern, "behavior",
                                              "Isolated", "invert", 0, byte_level(false));
  return json_pack("{s:s, s:n, s:n, s:o, s:n, s:o, s:n, s:o}", "version", "1.0", "truncation", "padding",
                   "added_tokens", special, "normalizer", "pre_tokenizer", split, "post_processor", "decoder",
                   byte_level(true));
}

/* GPT-2's end of text is a special token where the vocabulary has it. */
static json_t *gpt2_tree(json_t *vocab, json_t *merges) {
  const json_t *id = json_object_get(vocab, "<|endoftext|>");
  json_t *special = json_array();
  if (id != NULL) json_array_append_new(special, tl_bpe_special("<|endoftext|>", (int32_t)json_integer_value(id)));
  json_t *root = tl_bpe_parts(NULL, special);
  json_t *model = json_pack("{s:s, s:O, s:O}", "type", "BPE", "vocab", vocab, "merges", merges);
  if (json_object_set_new(root, "model", model) == 0) return root;
  json_decref(root);
  return NULL;
}

tl_status tl_bpe_load_gpt2(const char *vocab_path, const char *merges_path, tl_bpe **out) {
  char label[TL_LABEL_CHARS];
  json_t *vocab, *merges;
  TL_TRY(parse_file(vocab_path, label, &vocab));
  tl_status st = read_merges_file(merges_path, &merges);
  if (st == TL_OK) {
    json_t *root = gpt2_tree(vocab, merges);
    st = root == NULL ? TL_FAIL(TL_ERR_MEMORY, OP, "no memory for a tokenizer") : tl_bpe_build(label, root, out);
    json_decref(root);
    json_decref(merges);
  }
  json_decref(vocab);
  return st;
}
