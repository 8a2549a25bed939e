/* kill.c: a library for LD_PRELOAD that kills the process (SIGKILL) at the n-th of certain calls: those that write files,
 * and those that make a training step. TLUA_TEST_KILL: n, or 0: the number of calls is written to the file TLUA_TEST_CALLS
 * at the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_long calls;
static long last = -1;

__attribute__((constructor)) static void begin(void) {
  const char *text = getenv("TLUA_TEST_KILL");
  last = text == NULL ? -1 : atol(text);
}

__attribute__((destructor)) static void end(void) {
  const char *path = getenv("TLUA_TEST_CALLS");
  if (last != 0 || path == NULL) return;
  FILE *f = fopen(path, "w");
  if (f == NULL) return;
  fprintf(f, "%ld\n", atomic_load(&calls));
  fclose(f);
}

static void count(void) {
  if (last < 0) return;
  if (atomic_fetch_add(&calls, 1) + 1 == last) kill(getpid(), SIGKILL);
}

/* The call happens before the count: what follows it does not. */
#define COUNTED(type, name, parameters, arguments)               \
  type name parameters {                                         \
    static type(*real) parameters;                               \
    if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, #name); \
    type result = real arguments;                                \
    count();                                                     \
    return result;                                               \
  }

COUNTED(size_t, fwrite, (const void *data, size_t size, size_t n, FILE *f), (data, size, n, f))
COUNTED(int, fflush, (FILE * f), (f))
COUNTED(int, fsync, (int fd), (fd))
COUNTED(int, rename, (const char *from, const char *to), (from, to))
COUNTED(int, remove, (const char *path), (path))
COUNTED(int, tl_loader_next, (void *l, void *out, bool *more), (l, out, more))
COUNTED(int, tl_scaler_step, (void *scaler, void *optimizer, bool *stepped), (scaler, optimizer, stepped))
COUNTED(int, tl_scheduler_step, (void *s, bool *early), (s, early))
