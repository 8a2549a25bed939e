/* meta.c: a device that has shapes but no bytes: what a computation needs is counted, nothing is computed.
 *
 * Operations check their arguments, make results and record the tape as on any device, so live and peak bytes are those of
 * a real run. Whatever would hand an element to the host is an error. */
#include <stdatomic.h>
#include <string.h>

#include "backend/backend.h"
#include "core/memory.h"

static int device_count(void) { return 1; }

/* Addresses that no machine maps, so that an access faults; each is given once, so that nothing seems to overlap. */
static void *alloc(int index, size_t bytes) {
  static atomic_ullong next = 1ull << 60;
  (void)index;
  if (tl_allocation_fails()) return NULL;
  return (void *)(uintptr_t)atomic_fetch_add(&next, (bytes + 255) / 256 * 256);
}

static void release(int index, void *p, size_t bytes) { (void)index, (void)p, (void)bytes; }
static void empty_cache(int index) { (void)index; }
static double cached_bytes(int index) { return (void)index, 0; }
static tl_status synchronize(int index) { return (void)index, TL_OK; }

static tl_status copy_in(int index, void *dst, const void *host, size_t bytes) {
  (void)index, (void)dst, (void)host, (void)bytes;
  return TL_OK;
}

static tl_status no_data(const char *op) {
  return TL_FAIL(TL_ERR_DEVICE, op, "a tensor on \"meta\" has a shape, but no data");
}

static tl_status copy_out(int index, void *host, const void *src, size_t bytes) {
  (void)index, (void)host, (void)src, (void)bytes;
  return no_data("copy");
}

/* ---- kernels ---- */

/* Without a prototype: it stands for every kernel whose results stay on the device. */
static tl_status nothing() { return TL_OK; }

static tl_status span_norm(int n, const tl_span *list, double p, double *result) {
  (void)n, (void)list, (void)p;
  *result = 0;
  return TL_OK;
}

static tl_status find_bad_id(const int64_t *ids, int64_t n, int64_t limit, int64_t *at) {
  (void)ids, (void)n, (void)limit;
  *at = -1;
  return TL_OK;
}

static tl_status multinomial(const double *weights, int64_t rows, int64_t c, int64_t n, bool replacement, uint64_t seed,
                             uint64_t offset, int64_t *out) {
  (void)weights, (void)rows, (void)c, (void)n, (void)replacement, (void)seed, (void)offset, (void)out;
  return no_data("multinomial");
}

static tl_kernels kernels;

const tl_backend tl_meta_backend = {
    .name = "meta",
    .kind = TL_META >> 8,
    .device_count = device_count,
    .alloc = alloc,
    .free = release,
    .empty_cache = empty_cache,
    .cached_bytes = cached_bytes,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .synchronize = synchronize,
    .kernels = &kernels,
};

/* Entries that the CPU does without are absent here, too: the same paths are taken. */
__attribute__((constructor)) static void fill(void) {
  tl_status (*const none)() = nothing;
  _Static_assert(sizeof none == sizeof kernels.copy && sizeof kernels % sizeof none == 0, "a table of functions");
  for (size_t at = 0; at < sizeof kernels; at += sizeof none) memcpy((char *)&kernels + at, &none, sizeof none);
  kernels.gemm_sums = NULL;
  kernels.gemm_gelu = NULL;
  kernels.plan = NULL;
  kernels.scale_update = NULL;
  kernels.span_clip = NULL;
  kernels.sparse_linear = NULL;
  kernels.span_norm = span_norm;
  kernels.find_bad_id = find_bad_id;
  kernels.multinomial = multinomial;
}
