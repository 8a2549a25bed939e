/* fuzz_safetensors.c: tl_read_safetensors on any bytes. */
#include "fuzz.h"

FUZZ_ARCHIVE(tl_read_safetensors)
