/* fuzz_idx.c: tl_read_idx on any bytes. */
#include "fuzz.h"

FUZZ_TENSOR(tl_read_idx)
