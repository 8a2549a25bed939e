/* report.c: how a fault is said. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

const char *sim_where(char *text, size_t bytes); /* device.cpp */

void sim_fault(const char *kind, const char *format, ...) {
  char text[512], where[160];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  fprintf(stderr, "tlua-sim: %s: %s%s\n", kind, text, sim_where(where, sizeof where));
  const char *faults = getenv("TLUA_SIM_FAULTS");
  if (faults != NULL && strcmp(faults, "count") == 0) return;
  fflush(stderr);
  _exit(66);
}
