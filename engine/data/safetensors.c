/* safetensors.c: reading the safetensors format, strictly: u64 little-endian header length, a JSON object name ->
 * {dtype, shape, data_offsets}, then the bytes, which the tensors cover from 0 to the end without gap or overlap. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "data/archive.h"
#include "data/source.h"

#define OP "load"
#define MAX_HEADER 100000000

typedef struct item {
  const char *name;
  tl_element element;
  int ndim;
  int64_t shape[TL_MAX_DIMS];
  int64_t begin, end;
} item;

#define BAD(...) TL_FAIL(TL_ERR_FORMAT, OP, __VA_ARGS__)

static const char *shown(const char *name) { return tl_printable(name, strlen(name)); }

static tl_status parse_dtype(const tl_source *s, const json_t *value, item *it) {
  static const struct {
    const char *name;
    int element;
  } known[] = {{"F32", TL_ELEMENT_F32}, {"F16", TL_ELEMENT_F16}, {"BF16", TL_ELEMENT_BF16}, {"F64", TL_ELEMENT_F64},
               {"I64", TL_ELEMENT_I64}, {"I32", TL_ELEMENT_I32}, {"U8", TL_ELEMENT_U8},     {"BOOL", TL_ELEMENT_BOOL},
               {"I8", TL_ELEMENT_I8},   {"I16", TL_ELEMENT_I16}, {"U16", TL_ELEMENT_U16},   {"U32", TL_ELEMENT_U32}};
  if (!json_is_string(value)) return BAD("%s: tensor '%s' has no dtype", s->label, shown(it->name));
  const char *name = json_string_value(value);
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(name, known[i].name) == 0) return it->element = (tl_element)known[i].element, TL_OK;
  return TL_FAIL(TL_ERR_UNSUPPORTED, OP, "%s: tensor '%s' is of dtype '%s', which tensors here do not have", s->label,
                 shown(it->name), shown(name));
}

static tl_status parse_shape(const tl_source *s, const json_t *value, item *it) {
  if (!json_is_array(value)) return BAD("%s: tensor '%s' has no shape", s->label, shown(it->name));
  size_t n = json_array_size(value);
  if (n > TL_MAX_DIMS)
    return TL_FAIL(TL_ERR_UNSUPPORTED, OP, "%s: tensor '%s' has %zu dims, a tensor has 0 to %d", s->label,
                   shown(it->name), n, TL_MAX_DIMS);
  it->ndim = (int)n;
  for (int d = 0; d < it->ndim; d++) {
    const json_t *size = json_array_get(value, (size_t)d);
    if (!json_is_integer(size) || json_integer_value(size) < 0)
      return BAD("%s: the shape of tensor '%s' is not a list of sizes", s->label, shown(it->name));
    it->shape[d] = json_integer_value(size);
  }
  return TL_OK;
}

static tl_status parse_item(const tl_source *s, const char *name, const json_t *value, item *it) {
  it->name = name;
  if (!json_is_object(value)) return BAD("%s: the entry of tensor '%s' is not an object", s->label, shown(name));
  TL_TRY(parse_dtype(s, json_object_get(value, "dtype"), it));
  TL_TRY(parse_shape(s, json_object_get(value, "shape"), it));
  const json_t *offsets = json_object_get(value, "data_offsets");
  const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
  if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
    return BAD("%s: tensor '%s' has no data_offsets [begin, end]", s->label, shown(name));
  it->begin = json_integer_value(begin);
  it->end = json_integer_value(end);
  int64_t bytes, length;
  TL_TRY(tl_element_total(s, it->element, it->ndim, it->shape, &bytes));
  char text[TL_SHAPE_CHARS];
  if (it->begin < 0 || it->end < it->begin || __builtin_sub_overflow(it->end, it->begin, &length) || length != bytes)
    return BAD("%s: tensor '%s' of shape %s needs %lld bytes, its range is %lld to %lld", s->label, shown(name),
               tl_shape_text(it->ndim, it->shape, text), (long long)bytes, (long long)it->begin, (long long)it->end);
  return TL_OK;
}

static int by_range(const void *a, const void *b) {
  const item *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  if (x->end != y->end) return x->end < y->end ? -1 : 1;
  return strcmp(x->name, y->name);
}

/* Sorts by place and checks that the tensors cover the data exactly. */
static tl_status check_cover(const tl_source *s, item *items, int n) {
  int64_t at = 0, data = s->size - s->pos;
  qsort(items, (size_t)n, sizeof *items, by_range);
  for (int i = 0; i < n; i++) {
    if (items[i].begin < at)
      return BAD("%s: tensor '%s' starts at %lld and overlaps the one before, which ends at %lld", s->label,
                 shown(items[i].name), (long long)items[i].begin, (long long)at);
    if (items[i].begin > at)
      return BAD("%s: %lld bytes before tensor '%s' belong to no tensor", s->label, (long long)(items[i].begin - at),
                 shown(items[i].name));
    at = items[i].end;
    if (at > data)
      return BAD("%s: tensor '%s' ends at %lld, the file holds %lld bytes of data", s->label, shown(items[i].name),
                 (long long)at, (long long)data);
  }
  if (at != data)
    return BAD("%s: the tensors end at %lld, the file holds %lld bytes of data", s->label, (long long)at,
               (long long)data);
  return TL_OK;
}

static tl_status read_notes(const tl_source *s, json_t *meta, tl_archive *a) {
  const char *key;
  json_t *value;
  json_object_foreach(meta, key, value) {
    if (!json_is_string(value)) return BAD("%s: __metadata__ '%s' is not a string", s->label, shown(key));
    TL_TRY(tl_archive_add_note(OP, a, key, json_string_value(value)));
  }
  return TL_OK;
}

static tl_status read_items(tl_source *s, json_t *root, item *items, tl_archive *a) {
  json_t *meta = json_object_get(root, "__metadata__"), *value;
  if (meta != NULL && !json_is_object(meta)) return BAD("%s: __metadata__ is not an object", s->label);
  TL_TRY(read_notes(s, meta, a));
  const char *key;
  int n = 0;
  json_object_foreach(root, key, value) {
    if (value != meta) TL_TRY(parse_item(s, key, value, &items[n++]));
  }
  TL_TRY(check_cover(s, items, n));
  for (int i = 0; i < n; i++) {
    tl_tensor *t;
    TL_TRY(tl_source_tensor(s, items[i].element, false, items[i].ndim, items[i].shape, &t));
    TL_TRY(tl_archive_add(OP, a, items[i].name, t));
  }
  return TL_OK;
}

static tl_status read_root(tl_source *s, json_t *root, tl_archive **out) {
  size_t n = json_object_size(root);
  tl_archive *a;
  TL_TRY(tl_archive_new(OP, (int)n, (int)json_object_size(json_object_get(root, "__metadata__")), &a));
  item *items = tl_host_calloc(n, sizeof *items);
  tl_status st =
      items == NULL ? TL_FAIL(TL_ERR_MEMORY, OP, "no memory for %zu entries", n) : read_items(s, root, items, a);
  tl_host_free(items);
  if (st == TL_OK) *out = a;
  else tl_archive_free(a);
  return st;
}

static tl_status parse_header(tl_source *s, char *header, int64_t length, tl_archive **out) {
  TL_TRY(tl_source_read(s, header, length, "the header"));
  if (header[0] != '{') return BAD("%s: the header does not start with '{'", s->label);
  if (memchr(header, 0, (size_t)length) != NULL) return BAD("%s: the header holds NUL bytes", s->label);
  json_error_t error;
  json_t *root = json_loadb(header, (size_t)length, JSON_REJECT_DUPLICATES, &error);
  if (root == NULL) return BAD("%s: the header is not JSON: %s", s->label, shown(error.text));
  tl_status st = read_root(s, root, out);
  json_decref(root);
  return st;
}

static tl_status parse(tl_source *s, tl_archive **out) {
  unsigned char bytes[8];
  TL_TRY(tl_source_read(s, bytes, 8, "the header's length"));
  uint64_t length = 0;
  for (int i = 7; i >= 0; i--) length = length << 8 | bytes[i];
  if (length < 2 || length > MAX_HEADER)
    return BAD("%s: a header of %llu bytes: not a safetensors file", s->label, (unsigned long long)length);
  TL_TRY(tl_source_promise(s, (int64_t)length, "the header"));
  char *header = tl_host_alloc((size_t)length);
  if (header == NULL)
    return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for a header of %llu bytes", (unsigned long long)length);
  tl_status st = parse_header(s, header, (int64_t)length, out);
  tl_host_free(header);
  return st;
}

tl_status tl_read_safetensors(const char *path, tl_archive **out) {
  tl_source s;
  tl_status st = tl_source_open(&s, OP, path, false);
  if (st == TL_OK) st = parse(&s, out);
  tl_source_close(&s);
  return st;
}
