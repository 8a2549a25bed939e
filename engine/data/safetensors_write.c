/* safetensors_write.c: writing the safetensors format. Wide elements come first, so that every tensor is aligned. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "data/sink.h"
#include "data/source.h"

#define OP "save"
#define TL_MAX_HEADER 100000000 /* the format's */

typedef struct part {
  const char *name;
  tl_tensor *t;
} part;

static const char *const dtype_names[TL_DTYPES] = {
    [TL_FLOAT32] = "F32", [TL_FLOAT16] = "F16", [TL_BFLOAT16] = "BF16", [TL_FLOAT64] = "F64",
    [TL_INT64] = "I64",   [TL_INT32] = "I32",   [TL_UINT8] = "U8",      [TL_BOOL] = "BOOL"};

static size_t bytes_of(const tl_tensor *t) { return (size_t)t->numel * tl_dtype_size(t->dtype); }

static int by_width(const void *a, const void *b) {
  const part *x = a, *y = b;
  size_t wx = tl_dtype_size(x->t->dtype), wy = tl_dtype_size(y->t->dtype);
  if (wx != wy) return wx > wy ? -1 : 1;
  return strcmp(x->name, y->name);
}

static json_t *describe(const tl_tensor *t, uint64_t begin) {
  json_t *shape = json_array();
  for (int d = 0; d < t->ndim && shape != NULL; d++)
    if (json_array_append_new(shape, json_integer(t->shape[d])) != 0) {
      json_decref(shape);
      return NULL;
    }
  if (shape == NULL) return NULL;
  return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_names[t->dtype], "shape", shape, "data_offsets",
                   (json_int_t)begin, (json_int_t)(begin + bytes_of(t)));
}

static tl_status put_new(json_t *object, const char *key, json_t *value) {
  if (json_object_get(object, key) != NULL) {
    json_decref(value);
    return TL_FAIL(TL_ERR_VALUE, OP, "the name '%s' is used twice", tl_printable(key, strlen(key)));
  }
  /* Jansson refuses text that is not UTF-8; it takes the reference in any case. */
  if (value == NULL || json_object_set_new(object, key, value) != 0)
    return TL_FAIL(TL_ERR_VALUE, OP, "'%s' or its value is not valid UTF-8 (or there is no memory)",
                   tl_printable(key, strlen(key)));
  return TL_OK;
}

static tl_status build(json_t *root, int n, const part *parts, int notes, const char *const *keys,
                       const char *const *values) {
  if (notes > 0) {
    json_t *meta = json_object();
    TL_TRY(put_new(root, "__metadata__", meta));
    for (int i = 0; i < notes; i++) TL_TRY(put_new(meta, keys[i], json_string(values[i])));
  }
  uint64_t at = 0;
  for (int i = 0; i < n; i++) {
    if (strcmp(parts[i].name, "__metadata__") == 0)
      return TL_FAIL(TL_ERR_VALUE, OP, "'__metadata__' cannot be a tensor's name");
    TL_TRY(put_new(root, parts[i].name, describe(parts[i].t, at)));
    at += bytes_of(parts[i].t);
  }
  return TL_OK;
}

static tl_status write_all(const char *path, const char *json, int n, const part *parts) {
  static const char spaces[8] = "        ";
  size_t length = strlen(json), pad = (8 - length % 8) % 8;
  if (length + pad > TL_MAX_HEADER)
    return TL_FAIL(TL_ERR_VALUE, OP, "a header of %zu bytes is more than the format has", length);
  unsigned char head[8];
  for (int i = 0; i < 8; i++) head[i] = (unsigned char)((uint64_t)(length + pad) >> 8 * i);
  tl_sink s;
  TL_TRY(tl_sink_open(&s, OP, path));
  tl_status st = tl_sink_write(&s, head, sizeof head);
  if (st == TL_OK) st = tl_sink_write(&s, json, length);
  if (st == TL_OK) st = tl_sink_write(&s, spaces, pad);
  for (int i = 0; i < n && st == TL_OK; i++) st = tl_sink_tensor(&s, parts[i].t);
  return tl_sink_close(&s, st);
}

tl_status tl_write_safetensors(const char *path, int n, const char *const *names, tl_tensor *const *tensors, int notes,
                               const char *const *keys, const char *const *values) {
  part *parts = tl_host_alloc((size_t)n * sizeof *parts);
  json_t *root = json_object();
  tl_status st =
      parts == NULL || root == NULL ? TL_FAIL(TL_ERR_MEMORY, OP, "no memory for a header of %d tensors", n) : TL_OK;
  if (st == TL_OK) {
    for (int i = 0; i < n; i++) parts[i] = (part){names[i], tensors[i]};
    qsort(parts, (size_t)n, sizeof *parts, by_width);
    st = build(root, n, parts, notes, keys, values);
  }
  if (st == TL_OK) {
    char *json = json_dumps(root, JSON_COMPACT);
    st = json == NULL ? TL_FAIL(TL_ERR_MEMORY, OP, "no memory for a header of %d tensors", n)
                      : write_all(path, json, n, parts);
    free(json);
  }
  json_decref(root);
  tl_host_free(parts);
  return st;
}
