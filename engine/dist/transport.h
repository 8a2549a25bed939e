/* transport.h: what carries collectives between ranks: a plug-in over MPI, or TCP. All calls come from one thread. */
#ifndef TL_DIST_TRANSPORT_H
#define TL_DIST_TRANSPORT_H

#include "backend/backend.h"
#include "backend/collective.h"
#include "tlua.h"

typedef struct tl_transport {
  const char *name;
  tl_status (*open)(int *rank, int *size);
  /* wait: for the other ranks to close, too. */
  void (*close)(bool wait);
  void (*abort)(int code);
  /* Every rank's `bytes` bytes, by rank, into `all`. */
  tl_status (*exchange)(const void *mine, size_t bytes, void *all, void **request);
  /* Ranks that an exchange still waits for: sets missing[rank]; returns how many. */
  int (*missing)(void *request, bool *missing);
  tl_status (*start)(const tl_collective *c, void **request);
  /* Is it done? Then the request is freed. */
  tl_status (*test)(void *request, bool *done);
  void (*cancel)(void *request); /* after a failure */
} tl_transport;

/* A plug-in's one symbol, "tl_transport_plugin". */
typedef const tl_transport *tl_transport_plugin_fn(int abi, const tl_plugin_host *host, const char **why);

#endif
