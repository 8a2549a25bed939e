/* ranges.c: see ranges.h. NVTX is headers only; without a profiler a call is a test of a pointer. */
#include "backend/cuda/ranges.h"

#include <nvtx3/nvToolsExt.h>

void tl_cuda_range_push(const char *name) { nvtxRangePushA(name); }
void tl_cuda_range_pop(void) { nvtxRangePop(); }
