/* fuzz_image.c: tl_read_image on any bytes. */
#include "fuzz.h"

FUZZ_TENSOR(tl_read_image)
