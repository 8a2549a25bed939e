/* fuzz_npy.c: tl_read_npy on any bytes. */
#include "fuzz.h"

FUZZ_TENSOR(tl_read_npy)
