/* sink.h: atomic writing: a temporary file beside the target, synced, then renamed over it. */
#ifndef TL_DATA_SINK_H
#define TL_DATA_SINK_H

#include <stdio.h>

#include "core/error.h"

typedef struct tl_sink {
  const char *op;
  FILE *file;
  char *target; /* the path with symbolic links resolved */
  char *temporary;
} tl_sink;

/* Fails when the target exists and is not a regular file. */
tl_status tl_sink_open(tl_sink *s, const char *op, const char *path);
tl_status tl_sink_write(tl_sink *s, const void *data, size_t bytes);
/* The elements of t, row-major, in the host's byte order. */
tl_status tl_sink_tensor(tl_sink *s, tl_tensor *t);
/* With TL_OK: puts the file in place. With a failure: removes it and passes the failure on. Frees everything. */
tl_status tl_sink_close(tl_sink *s, tl_status status);

#endif
