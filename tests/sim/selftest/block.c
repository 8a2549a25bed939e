/* blocks.c: blocks that a caching allocator cuts from its segments. */
#include <string.h>

#include "selftest.h"
#include "sim.h"

enum { SEGMENT = 1 << 16, BYTES = 1000, ROOM = 1024 };

static cudaStream_t first, second;

static char *a_segment(void) {
  void *p;
  SIM_OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  SIM_OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  SIM_OK(cudaMalloc(&p, SEGMENT));
  sim_block(p, SEGMENT, 0, first);
  return p;
}

SIM_FAULT(block_never_handed_out, "use-after-free", "nothing is allocated") {
  char *p = a_segment();
  sim_block(p, ROOM, BYTES, first);
  SIM_OK(cudaMemsetAsync(p + ROOM, 0, BYTES, first));
  SIM_OK(cudaStreamSynchronize(first));
}
SIM_FAULT(block_was_taken_back, "use-after-free", "nothing is allocated") {
  char *p = a_segment();
  sim_block(p, ROOM, BYTES, first);
  sim_block(p, ROOM, 0, first);
  SIM_OK(cudaMemsetAsync(p, 0, BYTES, first));
  SIM_OK(cudaStreamSynchronize(first));
}
SIM_FAULT(block_overrun, "out-of-bounds", "the end of the 1000 bytes") {
  char *p = a_segment();
  sim_block(p, ROOM, BYTES, first);
  SIM_OK(cudaMemsetAsync(p, 0, BYTES + 1, first));
  SIM_OK(cudaStreamSynchronize(first));
}
SIM_FAULT(block_taken_back_while_another_stream_uses_it, "stream-race", "") {
  char *p = a_segment();
  sim_block(p, ROOM, BYTES, first);
  SIM_OK(cudaStreamSynchronize(first));
  SIM_OK(cudaMemsetAsync(p, 0, BYTES, second));
  sim_block(p, ROOM, 0, first);
  SIM_OK(cudaStreamSynchronize(second));
  SIM_OK(cudaStreamSynchronize(first));
}
SIM_CLEAN(blocks_in_stream_order) {
  static char host[BYTES];
  char *p = a_segment();
  for (int i = 0; i < 3; i++) {
    sim_block(p, ROOM, BYTES, first);
    SIM_OK(cudaMemsetAsync(p, i, BYTES, first));
    SIM_OK(cudaMemcpyAsync(host, p, BYTES, cudaMemcpyDeviceToHost, first));
    SIM_EXPECT(host[0] == i && host[BYTES - 1] == i);
    sim_block(p, ROOM, 0, first);
    sim_block(p, ROOM, BYTES - i, first); /* what lay here is gone */
    SIM_OK(cudaMemcpyAsync(host, p, BYTES - i, cudaMemcpyDeviceToHost, first));
    SIM_EXPECT(host[0] == -1 && host[BYTES - 3] == -1);
    sim_block(p, ROOM, 0, first);
  }
  SIM_OK(cudaFree(p));
}
SIM_CLEAN(blocks_in_a_graph) {
  static char host[BYTES];
  char *p = a_segment();
  cudaGraph_t g;
  cudaGraphExec_t x;
  SIM_OK(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
  sim_block(p, ROOM, BYTES, first);
  SIM_OK(cudaMemsetAsync(p, 5, BYTES, first));
  sim_block(p + ROOM, ROOM, BYTES, first);
  SIM_OK(cudaMemcpyAsync(p + ROOM, p, BYTES, cudaMemcpyDeviceToDevice, first));
  sim_block(p, ROOM, 0, first);
  SIM_OK(cudaStreamEndCapture(first, &g));
  SIM_OK(cudaGraphInstantiate(&x, g, 0));
  for (int i = 0; i < 3; i++) {
    SIM_OK(cudaGraphLaunch(x, first));
    SIM_OK(cudaMemcpyAsync(host, p + ROOM, BYTES, cudaMemcpyDeviceToHost, first));
    SIM_EXPECT(host[0] == 5 && host[BYTES - 1] == 5);
  }
}
SIM_FAULT_WITH(leaks_a_block, "leak", "a block of 1000 bytes of device 0", "TLUA_SIM_LEAKS=1") {
  char *p = a_segment();
  sim_block(p, ROOM, BYTES, first);
  SIM_OK(cudaStreamDestroy(first));
  SIM_OK(cudaStreamDestroy(second));
}
SIM_CLEAN_WITH(leaks_no_block, "TLUA_SIM_LEAKS=1") {
  char *p = a_segment();
  sim_block(p, ROOM, BYTES, first);
  sim_block(p, ROOM, 0, first); /* the segment stays, as a cache */
  SIM_OK(cudaStreamSynchronize(first));
  SIM_OK(cudaStreamDestroy(first));
  SIM_OK(cudaStreamDestroy(second));
}
