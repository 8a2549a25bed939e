/* tokens.c: a file of token ids, mapped into memory: only the pages that are read take part in it, so that a corpus may be
 * larger than the memory. A file starts with the first id (nanoGPT's train.bin), or with the header of an npy file or of
 * llm.c's data files. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "data/npy.h"
#include "data/sink.h"
#include "data/source.h"
#include "data/tokens.h"

#define OP "TokenDataset"
#define LLMC_HEADER 1024 /* 256 int32: magic, version, number of tokens */
#define BAD(...) TL_FAIL(TL_ERR_FORMAT, OP, __VA_ARGS__)

typedef struct element { /* what an id is in a file */
  const char *name;
  int bytes;
  int64_t most;
} element;

enum { UINT8, UINT16, INT32, UINT32, INT64, ELEMENTS };

static const element elements[ELEMENTS] = {[UINT8] = {"uint8", 1, UINT8_MAX},
                                           [UINT16] = {"uint16", 2, UINT16_MAX},
                                           [INT32] = {"int32", 4, INT32_MAX},
                                           [UINT32] = {"uint32", 4, UINT32_MAX},
                                           [INT64] = {"int64", 8, INT64_MAX}};

static int element_of(const char *name) {
  for (int e = 0; e < ELEMENTS; e++)
    if (strcmp(elements[e].name, name) == 0) return e;
  return ELEMENTS;
}

struct tl_tokens {
  atomic_int references;
  int fd, element;
  char label[TL_LABEL_CHARS];
  struct stat opened;
  void *map;        /* the file; NULL: it is empty */
  const char *data; /* the first id */
  int64_t count;
};

/* ---- the layout of a file ---- */

typedef struct layout {
  int element;    /* ELEMENTS: the file does not say */
  int64_t offset; /* of the first id */
  int64_t count;  /* -1: as many as follow */
} layout;

static tl_status read_npy(const char *path, layout *l) {
  static const int known[TL_ELEMENTS] = {[TL_ELEMENT_U8] = UINT8 + 1,
                                         [TL_ELEMENT_U16] = UINT16 + 1,
                                         [TL_ELEMENT_I32] = INT32 + 1,
                                         [TL_ELEMENT_U32] = UINT32 + 1,
                                         [TL_ELEMENT_I64] = INT64 + 1};
  tl_source s;
  tl_npy_header h;
  tl_status st = tl_source_open(&s, OP, path, false);
  if (st == TL_OK) st = tl_read_npy_header(&s, &h);
  tl_source_close(&s);
  TL_TRY(st);
  if (h.ndim != 1) return BAD("%s: holds an array of %d dims, token ids have one", s.label, h.ndim);
  if (known[h.element] == 0 || h.big_endian != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__))
    return TL_FAIL(TL_ERR_UNSUPPORTED, OP,
                   "%s: token ids are mapped as uint8, uint16, int32, uint32 or int64 of this machine's byte order",
                   s.label);
  *l = (layout){known[h.element] - 1, s.pos, h.shape[0]};
  return TL_OK;
}

/* llm.c's data files: magic 20240520, version 1 (GPT-2's ids, uint16); 20240801, version 7 (Llama 3's, uint32). A file
 * without a header that happens to start with these numbers does not have the right length. */
static bool is_llmc(const int32_t *head, int64_t size, layout *l) {
  int e = head[0] == 20240520 && head[1] == 1 ? UINT16 : head[0] == 20240801 && head[1] == 7 ? UINT32 : ELEMENTS;
  if (e == ELEMENTS || size < LLMC_HEADER || (size - LLMC_HEADER) / elements[e].bytes != head[2]) return false;
  *l = (layout){e, LLMC_HEADER, head[2]};
  return true;
}

static tl_status read_layout(const tl_tokens *t, const char *path, layout *l) {
  *l = (layout){ELEMENTS, 0, -1};
  int32_t head[3] = {0};
  if (pread(t->fd, head, sizeof head, 0) < 0) return TL_FAIL(TL_ERR_IO, OP, "%s: %s", t->label, strerror(errno));
  if (memcmp(head, "\x93NUMPY", 6) == 0) return read_npy(path, l);
  is_llmc(head, t->opened.st_size, l);
  return TL_OK;
}

static tl_status choose(tl_tokens *t, const char *dtype, layout *l) {
  int wanted = dtype == NULL ? ELEMENTS : element_of(dtype);
  if (dtype != NULL && wanted == ELEMENTS)
    return TL_FAIL(TL_ERR_DTYPE, OP, "token ids are stored as uint8, uint16, int32, uint32 or int64, not as '%s'",
                   tl_printable(dtype, strlen(dtype)));
  if (l->element == ELEMENTS) l->element = wanted == ELEMENTS ? UINT16 : wanted;
  if (wanted != ELEMENTS && wanted != l->element)
    return BAD("%s: its header says %s, not %s", t->label, elements[l->element].name, dtype);
  int64_t left = t->opened.st_size - l->offset, bytes = elements[l->element].bytes;
  if (left % bytes != 0 && l->count < 0)
    return BAD("%s: has %lld bytes, which are no whole number of %s ids: it is cut off, or of another dtype", t->label,
               (long long)left, elements[l->element].name);
  if (l->count < 0) l->count = left / bytes;
  if (l->count != left / bytes || left % bytes != 0)
    return BAD("%s: its header promises %lld ids (%s), %lld bytes follow", t->label, (long long)l->count,
               elements[l->element].name, (long long)left);
  t->element = l->element;
  t->count = l->count;
  return TL_OK;
}

/* ---- mapping ---- */

static tl_status map(tl_tokens *t, const char *path, const char *dtype) {
  t->fd = open(path, O_RDONLY | O_CLOEXEC);
  if (t->fd < 0 || fstat(t->fd, &t->opened) != 0) return TL_FAIL(TL_ERR_IO, OP, "%s: %s", t->label, strerror(errno));
  if (!S_ISREG(t->opened.st_mode)) return TL_FAIL(TL_ERR_IO, OP, "%s: not a regular file", t->label);
  layout l;
  TL_TRY(read_layout(t, path, &l));
  TL_TRY(choose(t, dtype, &l));
  if (t->opened.st_size == 0) return TL_OK;
  void *p = mmap(NULL, (size_t)t->opened.st_size, PROT_READ, MAP_SHARED, t->fd, 0);
  if (p == MAP_FAILED) return TL_FAIL(TL_ERR_IO, OP, "%s: cannot be mapped: %s", t->label, strerror(errno));
  t->map = p;
  t->data = (const char *)p + l.offset;
  /* Windows are drawn from anywhere: what lies behind one is not what is wanted next. Only a hint. */
  (void)madvise(p, (size_t)t->opened.st_size, MADV_RANDOM);
  return TL_OK;
}

tl_status tl_tokens_open(const char *path, const char *dtype, tl_tokens **out) {
  tl_tokens *t = tl_host_calloc(1, sizeof *t);
  if (t == NULL) return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for a token file");
  atomic_init(&t->references, 1);
  t->fd = -1;
  tl_path_label(t->label, path);
  tl_status st = map(t, path, dtype);
  if (st == TL_OK) *out = t;
  else tl_tokens_free(t);
  return st;
}

tl_tokens *tl_tokens_retain(tl_tokens *t) {
  atomic_fetch_add(&t->references, 1);
  return t;
}

void tl_tokens_free(tl_tokens *t) {
  if (t == NULL || atomic_fetch_sub(&t->references, 1) > 1) return;
  if (t->map != NULL) munmap(t->map, (size_t)t->opened.st_size);
  if (t->fd >= 0) close(t->fd);
  tl_host_free(t);
}

double tl_tokens_count(const tl_tokens *t) { return (double)t->count; }
const char *tl_tokens_dtype(const tl_tokens *t) { return elements[t->element].name; }

/* ---- reading ---- */

/* Reading beyond the end of a file that was shortened would end the process. */
tl_status tl_tokens_check(const tl_tokens *t) {
  struct stat now;
  if (fstat(t->fd, &now) != 0) return TL_FAIL(TL_ERR_IO, OP, "%s: %s", t->label, strerror(errno));
  if (now.st_size == t->opened.st_size && now.st_mtim.tv_sec == t->opened.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == t->opened.st_mtim.tv_nsec)
    return TL_OK;
  return BAD("%s: was changed while it was in use (%lld bytes, now %lld)", t->label, (long long)t->opened.st_size,
             (long long)now.st_size);
}

#define WIDEN(type)                                        \
  for (int64_t i = 0; i < n; i++) {                        \
    type id;                                               \
    memcpy(&id, from + i * (int64_t)sizeof id, sizeof id); \
    to[i] = id;                                            \
  }                                                        \
  break;

void tl_tokens_copy(const tl_tokens *t, int64_t first, int64_t n, int64_t *to) {
  const char *from = t->data + first * elements[t->element].bytes;
  switch (t->element) {
    case UINT8: WIDEN(uint8_t)
    case UINT16: WIDEN(uint16_t)
    case INT32: WIDEN(int32_t)
    case UINT32: WIDEN(uint32_t)
    default: WIDEN(int64_t)
  }
}

tl_status tl_tokens_read(const tl_tokens *t, int64_t first, int64_t n, tl_tensor **out) {
  if (first < 0 || n < 0 || n > t->count || first > t->count - n)
    return TL_FAIL(TL_ERR_INDEX, OP, "%s: there are no %lld ids from %lld on, it has %lld", t->label, (long long)n,
                   (long long)tl_position(first), (long long)t->count);
  TL_TRY(tl_tokens_check(t));
  tl_tensor *ids;
  TL_TRY(tl_empty(1, &n, TL_INT64, TL_CPU, &ids));
  if (n > 0) tl_tokens_copy(t, first, n, tl_data(ids));
  *out = ids;
  return TL_OK;
}

/* ---- writing ---- */

struct tl_token_writer {
  tl_sink sink;
  int element;
  bool open;
};

tl_status tl_token_writer_new(const char *path, const char *dtype, tl_token_writer **out) {
  int e = element_of(dtype);
  if (e == ELEMENTS)
    return TL_FAIL(TL_ERR_DTYPE, "write_tokens",
                   "ids are written as uint8, uint16, int32, uint32 or int64, not as '%s'",
                   tl_printable(dtype, strlen(dtype)));
  tl_token_writer *w = tl_host_calloc(1, sizeof *w);
  if (w == NULL) return TL_FAIL(TL_ERR_MEMORY, "write_tokens", "no memory for a writer");
  tl_status st = tl_sink_open(&w->sink, "write_tokens", path);
  w->element = e;
  w->open = st == TL_OK;
  if (st == TL_OK) *out = w;
  else tl_host_free(w);
  return st;
}

/* n ids as they are stored, in `to`; the place of the first that is too big or negative, n if all fit. */
static int64_t narrow(int e, const int64_t *ids, int64_t n, char *to) {
  for (int64_t i = 0; i < n; i++) {
    if (ids[i] < 0 || ids[i] > elements[e].most) return i;
    uint8_t byte = (uint8_t)ids[i];
    uint16_t two = (uint16_t)ids[i];
    uint32_t four = (uint32_t)ids[i];
    const void *from = e == UINT8 ? (void *)&byte : e == UINT16 ? (void *)&two : e == INT64 ? (void *)&ids[i] : &four;
    memcpy(to + i * elements[e].bytes, from, (size_t)elements[e].bytes);
  }
  return n;
}

static tl_status write_ids(tl_token_writer *w, const tl_tensor *rows) {
  char buffer[8192];
  const int64_t *ids = tl_data(rows);
  int64_t step = (int64_t)sizeof buffer / 8;
  for (int64_t done = 0; done < rows->numel; done += step) {
    int64_t n = rows->numel - done < step ? rows->numel - done : step, fine = narrow(w->element, ids + done, n, buffer);
    if (fine < n)
      return TL_FAIL(TL_ERR_VALUE, "write_tokens", "id %lld at place %lld is not 0 to %lld, what %s holds",
                     (long long)ids[done + fine], (long long)tl_position(done + fine),
                     (long long)elements[w->element].most, elements[w->element].name);
    TL_TRY(tl_sink_write(&w->sink, buffer, (size_t)(n * elements[w->element].bytes)));
  }
  return TL_OK;
}

tl_status tl_token_writer_add(tl_token_writer *w, tl_tensor *ids) {
  if (!w->open) return TL_FAIL(TL_ERR_STATE, "write_tokens", "the file is closed");
  int dtype = tl_dtype_of(ids);
  if (dtype != TL_INT64 && dtype != TL_INT32 && dtype != TL_UINT8)
    return TL_FAIL(TL_ERR_DTYPE, "write_tokens", "ids are integers, got %s", tl_dtype_name(dtype));
  tl_tensor *wide = NULL, *rows = NULL;
  tl_status st = tl_to(ids, TL_INT64, TL_CPU, &wide);
  if (st == TL_OK) st = tl_contiguous(wide, &rows);
  if (st == TL_OK) st = write_ids(w, rows);
  tl_tensor_free(wide);
  tl_tensor_free(rows);
  return st;
}

tl_status tl_token_writer_close(tl_token_writer *w) {
  if (!w->open) return TL_OK;
  w->open = false;
  return tl_sink_close(&w->sink, TL_OK);
}

void tl_token_writer_free(tl_token_writer *w) {
  if (w == NULL) return;
  if (w->open) (void)tl_sink_close(&w->sink, TL_ERR_STATE);
  tl_host_free(w);
}
