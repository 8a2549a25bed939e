/* tcp.h: collectives over TCP, for ranks that a launcher without MPI started (torchrun's variables). */
#ifndef TL_DIST_TCP_H
#define TL_DIST_TCP_H

#include "dist/transport.h"

const tl_transport *tl_tcp_transport(void);

/* A connection between every two ranks (mesh.c): sockets by rank, non-blocking; this rank's own is -1. */
typedef struct tl_mesh {
  int rank, size;
  int *sockets;
} tl_mesh;

/* Rank 0 listens at `port` of `address`, the others come to it and learn where everybody is. All within `seconds`. */
tl_status tl_mesh_open(const char *address, int port, int rank, int size, double seconds, tl_mesh *out);
/* Says that nothing more is sent; with `seconds` > 0 waits so long for the others to say it. */
void tl_mesh_close(tl_mesh *m, double seconds);

/* out[i] = parts[0][i] op parts[1][i] op ..., by rank, for n elements (fold.c). float16 and bfloat16 are folded in float32
 * and rounded once. out may be one of the parts. */
void tl_fold(int dtype, int op, int64_t n, int parts_count, const void *const *parts, void *out);

#endif
