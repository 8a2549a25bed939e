/* nccl.h: collectives of device memory (nccl.c), as tl_accelerator has them. */
#ifndef TL_BACKEND_CUDA_NCCL_H
#define TL_BACKEND_CUDA_NCCL_H

#include <stdatomic.h>

#include "backend/collective.h"

/* An exchange between ranks was given up: streams went on with what is no result. The host gets no values any more. */
extern atomic_bool tl_cuda_lost;

tl_status tl_cuda_comm_id(void *id);
tl_status tl_cuda_comm_new(int index, const void *id, int rank, int size, void **comm);
tl_status tl_cuda_comm_launch(void *comm, const tl_collective *c, void **request);
tl_status tl_cuda_comm_order(void *comm, void *request);
tl_status tl_cuda_comm_done(void *comm, void *request, bool *done);
void tl_cuda_comm_free(void *comm, bool abort);

#endif
