/* graph.h: recording work and replaying it (graph.c). */
#ifndef TL_BACKEND_CUDA_GRAPH_H
#define TL_BACKEND_CUDA_GRAPH_H

#include "backend/cuda/cuda.h"

/* From here to tl_cuda_graph_end, what this thread gives to its current stream of the device is recorded instead of run. */
tl_status tl_cuda_graph_begin(int index, void **graph);
/* keep = false, or a failure: the recording is thrown away and *graph becomes NULL. */
tl_status tl_cuda_graph_end(bool keep, void **graph);
/* Runs on the stream it was recorded on, in order with the current one. seed, offset: what random kernels add to the
 * numbers they were recorded with (cuda.h). */
tl_status tl_cuda_graph_replay(void *graph, uint64_t seed, uint64_t offset);
void tl_cuda_graph_free(void *graph);

#endif
