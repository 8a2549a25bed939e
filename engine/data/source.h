/* source.h: where the bytes of a data file come from: a plain file, a gzip file or a member of a zip archive. */
#ifndef TL_DATA_SOURCE_H
#define TL_DATA_SOURCE_H

#include "core/error.h"

#define TL_LABEL_CHARS 160
#define TL_BUFFERED 65536

typedef struct tl_source {
  const char *op;
  char label[TL_LABEL_CHARS]; /* the file, for messages: its path, shortened at the front when it is long */
  int64_t pos;                /* bytes read so far (inflated) */
  int64_t size;               /* inflated bytes in all, -1 when only reading tells (gzip) */
  int64_t ceiling;            /* no honest file of this length inflates to more: allocations are checked against it */
  void *handle;
  int64_t (*read)(struct tl_source *s, void *buffer, size_t bytes); /* bytes read, 0 at the end, < 0 after TL_FAIL */
  void (*close)(void *handle);
  unsigned char *ahead; /* for tl_source_byte */
  int ahead_pos, ahead_length;
} tl_source;

/* Opens a regular file. `inflate`: gzip content is recognised and read as what it holds. */
tl_status tl_source_open(tl_source *s, const char *op, const char *path, bool inflate);
void tl_source_close(tl_source *s);

/* Exactly `bytes` bytes; TL_ERR_FORMAT when the file ends before: "PATH: ends inside WHAT". */
tl_status tl_source_read(tl_source *s, void *buffer, int64_t bytes, const char *what);
/* Could `bytes` more bytes be there? Ask before allocating what a header promises. */
tl_status tl_source_promise(const tl_source *s, int64_t bytes, const char *what);
/* Fails when anything follows. Also makes gzip and zip check their checksums. */
tl_status tl_source_finish(tl_source *s);
/* One byte through a buffer of its own (not to be mixed with tl_source_read); *byte = -1 at the end. */
tl_status tl_source_byte_slow(tl_source *s, int *byte);
static inline tl_status tl_source_byte(tl_source *s, int *byte) {
  if (s->ahead_pos < s->ahead_length) return *byte = s->ahead[s->ahead_pos++], TL_OK;
  return tl_source_byte_slow(s, byte);
}

/* The tail of a path, and text from a file made fit for a message (shortened, control characters replaced; a rotating
 * per-thread buffer of 4). */
void tl_path_label(char label[TL_LABEL_CHARS], const char *path);
const char *tl_printable(const char *text, size_t length);

/* What stored elements are. Types that a tensor does not have are widened without loss when they are read. */
typedef enum tl_element {
  TL_ELEMENT_F32,
  TL_ELEMENT_F16,
  TL_ELEMENT_BF16,
  TL_ELEMENT_F64,
  TL_ELEMENT_I64,
  TL_ELEMENT_I32,
  TL_ELEMENT_U8,
  TL_ELEMENT_BOOL,
  TL_ELEMENT_I8,  /* -> int32 */
  TL_ELEMENT_I16, /* -> int32 */
  TL_ELEMENT_U16, /* -> int32 */
  TL_ELEMENT_U32, /* -> int64 */
  TL_ELEMENTS
} tl_element;

/* numel * stored size, checked: "PATH: shape (..) of X is too big to address". */
tl_status tl_element_total(const tl_source *s, tl_element e, int ndim, const int64_t *shape, int64_t *bytes);
/* Reads a contiguous tensor of that shape; `big_endian` is how it is stored. */
tl_status tl_source_tensor(tl_source *s, tl_element e, bool big_endian, int ndim, const int64_t *shape,
                           tl_tensor **out);

#endif
