/* npy.c: NumPy's npy format, versions 1 to 3 (numpy/lib/format.py): magic, version, header length, a Python literal
 * {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, then the elements. The literal is parsed, never run. */
#include "data/npy.h"

#include <stdio.h>
#include <string.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "data/sink.h"

#define MAX_HEADER (1 << 20)
#define BAD(s, ...) TL_FAIL(TL_ERR_FORMAT, (s)->op, __VA_ARGS__)

/* ---- the literal ---- */

typedef struct cursor {
  const tl_source *s;
  const char *at, *end;
} cursor;

static tl_status unexpected(const cursor *c) {
  return BAD(c->s, "%s: the npy header is not a dictionary of descr, fortran_order and shape (at '%s')", c->s->label,
             tl_printable(c->at, (size_t)(c->end - c->at)));
}

static void skip_space(cursor *c) {
  while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t')) c->at++;
}

/* Takes `text` if it is next. */
static bool accept(cursor *c, const char *text) {
  size_t n = strlen(text);
  skip_space(c);
  if ((size_t)(c->end - c->at) < n || memcmp(c->at, text, n) != 0) return false;
  c->at += n;
  return true;
}

static tl_status parse_string(cursor *c, char *to, size_t room) {
  skip_space(c);
  if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return unexpected(c);
  char quote = *c->at;
  const char *first = c->at + 1, *last = memchr(first, quote, (size_t)(c->end - first));
  if (last == NULL || (size_t)(last - first) >= room || memchr(first, '\\', (size_t)(last - first)) != NULL)
    return unexpected(c);
  memcpy(to, first, (size_t)(last - first));
  to[last - first] = 0;
  c->at = last + 1;
  return TL_OK;
}

static tl_status parse_size(cursor *c, int64_t *size) {
  skip_space(c);
  const char *first = c->at;
  *size = 0;
  for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
    if (__builtin_mul_overflow(*size, 10, size) || __builtin_add_overflow(*size, *c->at - '0', size))
      return unexpected(c);
  return c->at == first ? unexpected(c) : TL_OK;
}

static tl_status parse_shape(cursor *c, tl_npy_header *h) {
  if (!accept(c, "(")) return unexpected(c);
  while (!accept(c, ")")) {
    if (h->ndim == TL_MAX_DIMS)
      return TL_FAIL(TL_ERR_UNSUPPORTED, c->s->op, "%s: more than %d dims", c->s->label, TL_MAX_DIMS);
    TL_TRY(parse_size(c, &h->shape[h->ndim++]));
    if (!accept(c, ",") && (h->ndim == 1 || c->at == c->end || *c->at != ')')) return unexpected(c);
  }
  return TL_OK;
}

static tl_status parse_descr(cursor *c, tl_npy_header *h) {
  skip_space(c);
  if (c->at < c->end && *c->at == '[')
    return TL_FAIL(TL_ERR_UNSUPPORTED, c->s->op,
                   "%s: the elements are records (a structured dtype), a tensor holds numbers", c->s->label);
  return parse_string(c, h->descr, sizeof h->descr);
}

static tl_status parse_fortran(cursor *c, tl_npy_header *h) {
  h->fortran = accept(c, "True");
  return h->fortran || accept(c, "False") ? TL_OK : unexpected(c);
}

static tl_status parse_header(const tl_source *s, const char *text, size_t length, tl_npy_header *h) {
  static const struct {
    const char *key;
    tl_status (*parse)(cursor *c, tl_npy_header *h);
  } keys[3] = {{"descr", parse_descr}, {"fortran_order", parse_fortran}, {"shape", parse_shape}};
  cursor c = {s, text, text + length};
  int seen = 0;
  *h = (tl_npy_header){.ndim = 0};
  if (!accept(&c, "{")) return unexpected(&c);
  while (!accept(&c, "}")) {
    char key[16];
    int k = 0;
    TL_TRY(parse_string(&c, key, sizeof key));
    while (k < 3 && strcmp(key, keys[k].key) != 0) k++;
    if (k == 3 || (seen & 1 << k) != 0 || !accept(&c, ":")) return unexpected(&c);
    seen |= 1 << k;
    TL_TRY(keys[k].parse(&c, h));
    if (!accept(&c, ",") && (c.at == c.end || *c.at != '}')) return unexpected(&c);
  }
  skip_space(&c);
  return seen == 7 && c.at == c.end ? TL_OK : unexpected(&c);
}

/* ---- element types ---- */

static const struct {
  const char *code;
  tl_element element;
} codes[] = {{"f4", TL_ELEMENT_F32}, {"f2", TL_ELEMENT_F16}, {"f8", TL_ELEMENT_F64},  {"i8", TL_ELEMENT_I64},
             {"i4", TL_ELEMENT_I32}, {"u1", TL_ELEMENT_U8},  {"b1", TL_ELEMENT_BOOL}, {"i1", TL_ELEMENT_I8},
             {"i2", TL_ELEMENT_I16}, {"u2", TL_ELEMENT_U16}, {"u4", TL_ELEMENT_U32}};

static tl_status parse_type(const tl_source *s, tl_npy_header *h) {
  const char *descr = h->descr;
  if (descr[0] != 0 && descr[1] == 'O')
    return TL_FAIL(TL_ERR_UNSUPPORTED, s->op,
                   "%s: the elements are Python objects (dtype '%s'), which are never loaded", s->label,
                   tl_printable(descr, strlen(descr)));
  h->big_endian = descr[0] == '>';
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
    if (descr[0] != 0 && strchr("<>|", descr[0]) != NULL && strcmp(descr + 1, codes[i].code) == 0)
      return h->element = codes[i].element, TL_OK;
  return TL_FAIL(TL_ERR_UNSUPPORTED, s->op, "%s: the elements are of dtype '%s', which tensors here do not have",
                 s->label, tl_printable(descr, strlen(descr)));
}

/* ---- the file ---- */

tl_status tl_read_npy_header(tl_source *s, tl_npy_header *h) {
  unsigned char head[12];
  TL_TRY(tl_source_read(s, head, 8, "the npy header"));
  if (memcmp(head, "\x93NUMPY", 6) != 0) return BAD(s, "%s: not an npy file", s->label);
  int version = head[6];
  if (version < 1 || version > 3) return BAD(s, "%s: there is no npy version %d.%d", s->label, head[6], head[7]);
  int width = version == 1 ? 2 : 4;
  TL_TRY(tl_source_read(s, head, width, "the npy header"));
  uint32_t length = 0;
  for (int i = width - 1; i >= 0; i--) length = length << 8 | head[i];
  if (length > MAX_HEADER) return BAD(s, "%s: an npy header of %u bytes", s->label, length);
  TL_TRY(tl_source_promise(s, length, "the npy header"));
  char *text = tl_host_alloc(length);
  if (text == NULL) return TL_FAIL(TL_ERR_MEMORY, s->op, "no memory for a header of %u bytes", length);
  tl_status st = tl_source_read(s, text, length, "the npy header");
  if (st == TL_OK) st = parse_header(s, text, length, h);
  tl_host_free(text);
  return st == TL_OK ? parse_type(s, h) : st;
}

/* Column-major elements were read into a tensor of the reversed shape: its transpose, row-major. */
static tl_status from_fortran(tl_tensor *reversed, tl_tensor **out) {
  int dims[TL_MAX_DIMS];
  for (int d = 0; d < reversed->ndim; d++) dims[d] = reversed->ndim - 1 - d;
  tl_tensor *view;
  TL_TRY(tl_permute(reversed, reversed->ndim, dims, &view));
  tl_status st = tl_contiguous(view, out);
  tl_tensor_free(view);
  return st;
}

tl_status tl_parse_npy(tl_source *s, tl_tensor **out) {
  tl_npy_header h;
  TL_TRY(tl_read_npy_header(s, &h));
  bool reversed = h.fortran && h.ndim > 1;
  int64_t shape[TL_MAX_DIMS];
  for (int d = 0; d < h.ndim; d++) shape[d] = h.shape[reversed ? h.ndim - 1 - d : d];
  tl_tensor *t;
  TL_TRY(tl_source_tensor(s, h.element, h.big_endian, h.ndim, shape, &t));
  tl_status st = tl_source_finish(s);
  if (st != TL_OK || !reversed) return tl_give(st, t, out);
  st = from_fortran(t, out);
  tl_tensor_free(t);
  return st;
}

tl_status tl_read_npy(const char *path, tl_tensor **out) {
  tl_source s;
  tl_status st = tl_source_open(&s, "npy", path, true);
  if (st == TL_OK) st = tl_parse_npy(&s, out);
  tl_source_close(&s);
  return st;
}

/* ---- writing ---- */

static const char *const written[TL_DTYPES] = {
    [TL_FLOAT32] = "f4", [TL_FLOAT16] = "f2", [TL_FLOAT64] = "f8", [TL_INT64] = "i8",
    [TL_INT32] = "i4",   [TL_UINT8] = "u1",   [TL_BOOL] = "b1"};

static tl_status write_header(tl_sink *s, const tl_tensor *t) {
  char text[512] = "\x93NUMPY\1\0\0\0";
  bool wide = tl_dtype_size(t->dtype) > 1, big = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
  int n = 10;
  n += snprintf(text + n, sizeof text - (size_t)n, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                !wide ? '|'
                : big ? '>'
                      : '<',
                written[t->dtype]);
  for (int d = 0; d < t->ndim; d++)
    n += snprintf(text + n, sizeof text - (size_t)n, d == 0 ? "%lld%s" : " %lld%s", (long long)t->shape[d],
                  d == t->ndim - 1 && d > 0 ? "" : ",");
  n += snprintf(text + n, sizeof text - (size_t)n, "), }");
  while (n % 64 != 63) text[n++] = ' ';
  text[n++] = '\n';
  text[8] = (char)((n - 10) & 255);
  text[9] = (char)((n - 10) >> 8);
  return tl_sink_write(s, text, (size_t)n);
}

tl_status tl_write_npy(const char *path, tl_tensor *t) {
  if (written[t->dtype] == NULL)
    return TL_FAIL(TL_ERR_DTYPE, "save_npy", "NumPy has no %s; convert to float32 first", tl_dtype_name(t->dtype));
  tl_sink s;
  TL_TRY(tl_sink_open(&s, "save_npy", path));
  tl_status st = write_header(&s, t);
  if (st == TL_OK) st = tl_sink_tensor(&s, t);
  return tl_sink_close(&s, st);
}
