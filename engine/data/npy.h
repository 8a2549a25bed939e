/* npy.h: one npy file or member. */
#ifndef TL_DATA_NPY_H
#define TL_DATA_NPY_H

#include "data/source.h"

typedef struct tl_npy_header {
  char descr[16];
  bool fortran; /* column-major */
  int ndim;
  int64_t shape[TL_MAX_DIMS];
  tl_element element;
  bool big_endian;
} tl_npy_header;

/* s stands at the first element afterwards. */
tl_status tl_read_npy_header(tl_source *s, tl_npy_header *h);
/* Reads all of s as one npy file, to its end. */
tl_status tl_parse_npy(tl_source *s, tl_tensor **out);

#endif
