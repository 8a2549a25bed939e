/* shared.cpp: shared memory has the life of a block: every block finds garbage in it. */
#include <string.h>

#include "device.h"

void sim_shared_begin(const void *function, char *dynamic, size_t bytes) {
  (void)function;
  memset(dynamic, 0xff, bytes);
}

void sim_shared_end(const void *function, size_t dynamic) {
  (void)function;
  (void)dynamic;
}
