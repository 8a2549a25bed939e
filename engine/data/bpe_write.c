/* bpe_write.c: a tokenizer as a tokenizer.json, which Hugging Face's tokenizers load. */
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "data/bpe.h"
#include "data/sink.h"

/* What a token is called in files. */
static json_t *name_of(const tl_token *t) {
  char small[512], *name = small;
  if (t->flags & TL_TOKEN_RAW || t->flags & TL_TOKEN_ADDED) return json_stringn(t->bytes, (size_t)t->length);
  if (2 * (size_t)t->length > sizeof small) name = tl_host_alloc(2 * (size_t)t->length);
  json_t *text = name == NULL ? NULL : json_stringn(name, tl_bytes_name(t->bytes, t->length, name));
  if (name != small) tl_host_free(name);
  return text;
}

static bool write_vocab(const tl_bpe *b, json_t *vocab) {
  for (int32_t id = 0; id < b->count; id++) {
    if (!(b->tokens[id].flags & TL_TOKEN_MODEL)) continue;
    json_t *name = name_of(&b->tokens[id]);
    bool fine = name != NULL && json_object_set_new(vocab, json_string_value(name), json_integer(id)) == 0;
    json_decref(name);
    if (!fine) return false;
  }
  return true;
}

static bool write_merges(const tl_bpe *b, json_t *merges) {
  for (int32_t m = 0; m < b->merges; m++) {
    int32_t left = b->merge[m][0], right = b->merge[m][1];
    if (tl_find_pair(b, left, right)->rank != m) continue; /* named again later, which counts */
    json_t *pair = json_pack("[o, o]", name_of(&b->tokens[left]), name_of(&b->tokens[right]));
    if (json_array_append_new(merges, pair) != 0) return false;
  }
  return true;
}

static char *write_text(const tl_bpe *b) {
  json_t *vocab = json_object(), *merges = json_array(), *root = json_object();
  char *text = NULL;
  bool fine = write_vocab(b, vocab) && write_merges(b, merges);
  json_object_set_new(root, "version", json_string("1.0"));
  json_object_set_new(root, "truncation", json_null());
  json_object_set_new(root, "padding", json_null());
  fine = fine && json_object_update(root, b->parts) == 0;
  json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
                            "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                            "ignore_merges", b->ignore_merges, "vocab", vocab, "merges", merges);
  fine = json_object_set_new(root, "model", model) == 0 && fine;
  if (fine) text = json_dumps(root, JSON_COMPACT);
  json_decref(root);
  if (text == NULL) (void)TL_FAIL(TL_ERR_MEMORY, TL_BPE, "no memory for the text of a tokenizer");
  return text;
}

tl_status tl_bpe_text(const tl_bpe *b, tl_tensor **out) {
  char *text = write_text(b);
  if (text == NULL) return TL_ERR_MEMORY;
  int64_t n = (int64_t)strlen(text);
  tl_status st = tl_from_memory(1, &n, TL_UINT8, TL_CPU, text, out);
  free(text);
  return st;
}

tl_status tl_bpe_save(const tl_bpe *b, const char *path) {
  char *text = write_text(b);
  if (text == NULL) return TL_ERR_MEMORY;
  tl_status st = tl_write_bytes(path, text, (int64_t)strlen(text));
  free(text);
  return st;
}
