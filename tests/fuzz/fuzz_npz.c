/* fuzz_npz.c: tl_read_npz on any bytes. */
#include "fuzz.h"

FUZZ_ARCHIVE(tl_read_npz)
