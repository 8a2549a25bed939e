/* npy.h: one npy file or member. */
#ifndef TL_DATA_NPY_H
#define TL_DATA_NPY_H

#include "data/source.h"

/* Reads all of s as one npy file, to its end. */
tl_status tl_parse_npy(tl_source *s, tl_tensor **out);

#endif
