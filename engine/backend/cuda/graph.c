/* graph.c: CUDA graphs: a step's launches recorded once and started again with one call.
 *
 * Recorded kernels hold addresses: what they allocate comes from the graph's own pool (memory.c), and what was in use
 * when they were recorded stays as long as the graph. */
#include "backend/cuda/graph.h"

#include <stdlib.h>

#include "backend/cuda/memory.h"
#include "backend/cuda/stream.h"

typedef struct tl_cuda_graph {
  int index;
  cudaStream_t stream;
  tl_cuda_pool *pool;
  tl_cuda_random_base *random; /* in the device's memory */
  tl_cuda_random_base current; /* what it holds */
  cudaGraphExec_t exec;
} tl_cuda_graph;

static _Thread_local tl_cuda_graph *recording;

bool tl_cuda_recording(void) { return recording != NULL; }

void tl_cuda_graph_free(void *graph) {
  tl_cuda_graph *g = graph;
  if (g == NULL) return;
  if (g->exec != NULL) cudaGraphExecDestroy(g->exec); /* one that still runs goes when it is through */
  if (g->pool != NULL) tl_cuda_pool_free(g->pool);
  if (g->random != NULL) tl_cuda_free(g->index, g->random);
  free(g);
}

static tl_status prepare(tl_cuda_graph *g) {
  g->random = tl_cuda_alloc(g->index, sizeof *g->random);
  if (g->random == NULL) return TL_FAIL(TL_ERR_MEMORY, "graph", "no memory for a graph");
  TL_CUDA_TRY("graph", cudaMemsetAsync(g->random, 0, sizeof *g->random, g->stream));
  g->pool = tl_cuda_pool_begin(g->index);
  if (g->pool == NULL) return TL_FAIL(TL_ERR_STATE, "graph", "another thread records a step on this device");
  cudaError_t e = cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal);
  if (e != cudaSuccess) tl_cuda_pool_end(g->pool);
  TL_CUDA_TRY("graph", e);
  return TL_OK;
}

tl_status tl_cuda_graph_begin(int index, void **graph) {
  if (recording != NULL) return TL_FAIL(TL_ERR_STATE, "graph", "a step is being recorded already");
  tl_cuda_use(index);
  tl_cuda_graph *g = calloc(1, sizeof *g);
  if (g == NULL) return TL_FAIL(TL_ERR_MEMORY, "graph", "no memory for a graph");
  g->index = index;
  g->stream = tl_cuda_here()->stream;
  tl_status st = prepare(g);
  if (st != TL_OK) {
    tl_cuda_graph_free(g);
    return st;
  }
  tl_cuda_here()->random = g->random;
  recording = g;
  *graph = g;
  return TL_OK;
}

static tl_status instantiate(tl_cuda_graph *g, cudaGraph_t recorded) {
  size_t nodes = 0;
  TL_CUDA_TRY("graph", cudaGraphGetNodes(recorded, NULL, &nodes));
  if (nodes == 0) return TL_FAIL(TL_ERR_STATE, "graph", "the step gave the device no work: there is nothing to replay");
  TL_CUDA_TRY("graph", cudaGraphInstantiate(&g->exec, recorded, 0));
  return TL_OK;
}

tl_status tl_cuda_graph_end(bool keep, void **graph) {
  tl_cuda_graph *g = *graph;
  cudaGraph_t recorded = NULL;
  cudaError_t e = cudaStreamEndCapture(g->stream, &recorded);
  recording = NULL;
  tl_cuda_pool_end(g->pool);
  tl_cuda_context *c = tl_cuda_context_of(g->index);
  c->random = (const tl_cuda_random_base *)(c->fault + 1);
  tl_status st = TL_OK;
  if (e != cudaSuccess && keep) st = tl_cuda_failed(e, "graph", __FILE__, __LINE__);
  else if (e != cudaSuccess) cudaGetLastError();
  else if (keep) st = instantiate(g, recorded);
  if (recorded != NULL) cudaGraphDestroy(recorded);
  if (keep && st == TL_OK) return TL_OK;
  tl_cuda_graph_free(g);
  *graph = NULL;
  return st;
}

tl_status tl_cuda_graph_replay(void *graph, uint64_t seed, uint64_t offset) {
  tl_cuda_graph *g = graph;
  if (recording != NULL)
    return TL_FAIL(TL_ERR_STATE, "graph", "a recorded step cannot be replayed inside of another one");
  tl_cuda_use(g->index);
  tl_cuda_context *c = tl_cuda_here();
  cudaStream_t current = c->stream;
  TL_TRY(tl_cuda_order(g->index, current, g->stream));
  if (g->current.seed != seed || g->current.offset != offset) {
    g->current = (tl_cuda_random_base){seed, offset};
    c->stream = g->stream;
    tl_status st = tl_cuda_copy_in(g->index, g->random, &g->current, sizeof g->current);
    c->stream = current;
    TL_TRY(st);
  }
  TL_CUDA_TRY("graph", cudaGraphLaunch(g->exec, g->stream));
  return tl_cuda_order(g->index, g->stream, current);
}
