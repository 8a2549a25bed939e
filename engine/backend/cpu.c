/* cpu.c: the CPU as a backend: host memory and the best kernel set this processor runs. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "core/error.h"
#include "core/memory.h"

#ifdef TL_X86
/* A quick build may leave sets out (TLUA_ISAS); the ones that are there stand in. */
#ifdef TL_HAS_v2
extern const tl_kernels tl_cpu_kernels_v2;
#endif
#ifdef TL_HAS_v3
extern const tl_kernels tl_cpu_kernels_v3;
#endif
#ifdef TL_HAS_v4
extern const tl_kernels tl_cpu_kernels_v4;
#endif
static const struct {
  int level;
  const char *name;
  const tl_kernels *kernels;
} sets[] = {
#ifdef TL_HAS_v4
    {4, "x86-64-v4", &tl_cpu_kernels_v4},
#endif
#ifdef TL_HAS_v3
    {3, "x86-64-v3", &tl_cpu_kernels_v3},
#endif
#ifdef TL_HAS_v2
    {2, "x86-64-v2", &tl_cpu_kernels_v2},
#endif
};
#else
extern const tl_kernels tl_cpu_kernels_generic;
#endif

static int device_count(void) { return 1; }
static void *alloc(int index, size_t bytes) { return (void)index, tl_cpu_alloc(bytes); }
static void release(int index, void *p, size_t bytes) { (void)index, tl_cpu_free(p, bytes); }
static void empty_cache(int index) { (void)index, tl_cpu_empty_cache(); }
static double cached_bytes(int index) { return (void)index, tl_cpu_cached_bytes(); }

static tl_status copy(int index, void *dst, const void *src, size_t bytes) {
  (void)index;
  memcpy(dst, src, bytes);
  return TL_OK;
}

static tl_status synchronize(int index) { return (void)index, TL_OK; }

/* The table is copied at start-up, so that every call is one load and one jump. */
static tl_kernels chosen;
static const char *chosen_name;

const tl_backend tl_cpu_backend = {
    .name = "cpu",
    .kind = 0,
    .device_count = device_count,
    .alloc = alloc,
    .free = release,
    .empty_cache = empty_cache,
    .cached_bytes = cached_bytes,
    .copy_in = copy,
    .copy_out = copy,
    .synchronize = synchronize,
    .kernels = &chosen,
};

/* TLUA_ISA=v2|v3|v4 lowers the choice: for tests and to compare. */
__attribute__((constructor)) static void choose(void) {
#ifdef TL_X86
  const char *wish = getenv("TLUA_ISA");
  int level = 2;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) level = 3;
  if (level == 3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))
    level = 4;
  if (wish != NULL && wish[0] == 'v' && wish[1] >= '2' && wish[1] - '0' < level) level = wish[1] - '0';
  const int count = sizeof sets / sizeof *sets;
  int i = 0;
  while (i < count - 1 && sets[i].level > level) i++;
  chosen = *sets[i].kernels;
  chosen_name = sets[i].name;
#else
  chosen = tl_cpu_kernels_generic;
  chosen_name = "generic";
#endif
}

const char *tl_cpu_kernel_set(void) { return chosen_name; }

tl_status tl_set_num_threads(int n) {
  if (n < 1) return TL_FAIL(TL_ERR_VALUE, "set_num_threads", "%d threads asked for, 1 is the least", n);
  omp_set_num_threads(n);
  return TL_OK;
}

int tl_get_num_threads(void) { return omp_get_max_threads(); }
