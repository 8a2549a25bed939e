/* nccl_comm.h: what the files of the simulated NCCL share: shared memory, communicators, operations on their way.
 *
 *   nccl_comm.c    ids, communicators, who lives
 *   nccl_steps.c   one step of an operation
 *   nccl.c         groups, items of streams, the public operations */
#ifndef TLUA_SIM_NCCL_COMM_H
#define TLUA_SIM_NCCL_COMM_H

#include <nccl.h>
#include <stdatomic.h>

#include "library.h"
#include "runtime.h"

enum {
  MAX_RANKS = 16,
  CHUNK = 1 << 15,      /* bytes */
  PAIR_CHUNK = 1 << 12, /* of a pair's ring */
  DEPTH = 4,            /* chunks of a ring */
  HEADERS = 8,          /* a rank is ahead of others by fewer operations than this */
  MARK_COMM = 0x4e43434d,
  MAGIC = 0x746c6e63
};

/* ---- what lies in shared memory ---- */

typedef enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECEIVE } kind;

typedef struct header {
  _Atomic uint64_t number; /* of the operation, from 1; written last */
  int32_t kind, type, op, root;
  uint64_t count;
} header;

typedef enum state { ABSENT, JOINED, LEFT, ABORTED } state;

typedef struct slot {
  _Atomic int state;
  int device;
  header headers[HEADERS];
  _Atomic uint64_t published, done;     /* chunks; collective operations */
  _Atomic uint64_t consumed[MAX_RANKS]; /* chunks of others */
  unsigned char ring[DEPTH][CHUNK];
} slot;

typedef struct pair {
  header headers[HEADERS];
  _Atomic uint64_t published, consumed, done;
  unsigned char ring[DEPTH][PAIR_CHUNK];
} pair;

typedef struct segment {
  uint32_t magic;
  _Atomic int ranks, joined; /* ranks: 0 until the first one tells */
  slot slots[MAX_RANKS];
  pair pairs[MAX_RANKS][MAX_RANKS]; /* [from][to] */
} segment;
extern const char *const sim_nccl_names[];

/* ---- a communicator: nccl_comm.c ---- */

struct ncclComm {
  uint64_t mark;
  int rank, ranks, device, file;
  segment *shared;
  char name[64];
  bool ready;
  _Atomic int error; /* ncclResult_t of the asynchronous kind */
  _Atomic bool aborted;
  uint64_t issued;            /* group items that were enqueued */
  _Atomic uint64_t completed; /* and done, in this order */
  uint64_t collectives, sent[MAX_RANKS], received[MAX_RANKS];
  double looked_at; /* when peers were last seen alive */
  char text[256];   /* of the last error */
};

/* Keeps the sentence for ncclGetLastError. Returns result. */
ncclResult_t sim_nccl_refuse(ncclComm_t comm, ncclResult_t result, const char *function, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define REFUSE(comm, result, ...) sim_nccl_refuse((comm), (result), __func__, __VA_ARGS__)

ncclResult_t sim_nccl_check(ncclComm_t c, const char *function);
/* The second half of joining. */
ncclResult_t sim_nccl_wait_for_all(ncclComm_t c);
void sim_nccl_close(ncclComm_t c);
/* Whether a rank takes part no more, in a word, or NULL. */
const char *sim_nccl_gone(const struct ncclComm *c, int rank);
/* Every few milliseconds: is a rank dead or aborted? One that has left has perhaps given all that is still needed. */
void sim_nccl_look_at_peers(struct ncclComm *c);
double sim_nccl_seconds(void);
double sim_nccl_patience(void);

/* ---- operations: nccl_steps.c ---- */

typedef struct part {
  kind kind;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root; /* or the peer */
  const void *from;
  void *to;
  uint64_t count;
  /* progress */
  uint64_t number, published, consumed, chunks;
  bool started, done, matched[MAX_RANKS];
} part;

/* Bytes of an element; 0: no such type, or not modelled. */
size_t sim_nccl_type_size(int type);
void sim_nccl_describe(char *text, size_t bytes, int k, int type, int op, int root, uint64_t count);
/* Moves what can move, and says whether anything did. *waits_for: the rank that is needed next, or -1. */
bool sim_nccl_step(ncclComm_t c, part *p, int *waits_for);

/* ---- groups: nccl.c ---- */

typedef struct joining {
  ncclComm_t *place;
  ncclComm_t comm;
} joining;

typedef struct call {
  ncclComm_t comm;
  cudaStream_t stream;
  part part;
} call;

/* Of this thread. */
typedef struct group {
  int depth, calls, room, joins;
  call *call;
  joining join[MAX_RANKS];
  ncclResult_t error;
} group;
extern _Thread_local group sim_nccl_group;

#endif
