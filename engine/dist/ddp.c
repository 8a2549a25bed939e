/* ddp.c: gradients averaged over the ranks while backward runs (Li et al., "PyTorch Distributed", VLDB 2020).
 *
 * Parameters are packed into buckets in reverse order: the order in which backward mostly computes gradients. A leaf's
 * complete gradient is copied into its bucket; buckets are launched in their order as soon as they and all before them are
 * full, so that every rank launches the same sequence. The end of the walk launches what is left, waits, and copies the
 * averages back. */
#include <string.h>

#include "autograd/watch.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "dist/group.h"

typedef struct member {
  tl_tensor *param;
  tl_tensor *slot; /* its part of the bucket, in param's shape */
  int bucket;
  bool ready;
} member;

typedef struct bucket {
  tl_tensor *flat;
  int members, ready;
  int launch; /* parameters without a gradient when it was launched, -1: not launched */
  tl_work *work;
} bucket;

struct tl_ddp {
  tl_watch watch; /* first: the watch is the object */
  int n, buckets, next, left;
  bool on, find_unused, freed; /* freed: by the host, while a walk goes on that has seen it */
  member *members;
  bucket *list;
};

/* ---- making buckets ---- */

static bool same_bucket(const tl_tensor *a, const tl_tensor *b) {
  return a->dtype == b->dtype && a->device == b->device;
}

/* Which bucket each parameter is in. Returns how many there are. */
static int assign(tl_ddp *d, double first_bytes, double bucket_bytes) {
  int count = 0;
  double filled = 0;
  for (int i = d->n - 1; i >= 0; i--) {
    const tl_tensor *p = d->members[i].param;
    double bytes = (double)p->numel * (double)tl_dtype_size(p->dtype), limit = count <= 1 ? first_bytes : bucket_bytes;
    bool opens = count == 0 || filled + bytes > limit || !same_bucket(p, d->members[i + 1].param);
    if (opens) {
      count++;
      filled = 0;
    }
    filled += bytes;
    d->members[i].bucket = count - 1;
  }
  return count;
}

static tl_status make_bucket(tl_ddp *d, int b) {
  int64_t count = 0, at = 0;
  const tl_tensor *like = NULL;
  for (int i = 0; i < d->n; i++)
    if (d->members[i].bucket == b) {
      like = d->members[i].param;
      count += like->numel;
      d->list[b].members++;
    }
  TL_TRY(tl_empty(1, &count, like->dtype, like->device, &d->list[b].flat));
  for (int i = 0; i < d->n; i++) {
    member *m = &d->members[i];
    if (m->bucket != b) continue;
    int64_t strides[TL_MAX_DIMS];
    tl_contiguous_strides(m->param->ndim, m->param->shape, strides);
    TL_TRY(tl_alias_as(d->list[b].flat, m->param->ndim, m->param->shape, strides, at, &m->slot));
    at += m->param->numel;
  }
  return TL_OK;
}

static void reset(tl_ddp *d) {
  d->next = 0;
  d->left = d->n;
  for (int i = 0; i < d->n; i++) d->members[i].ready = false;
  for (int b = 0; b < d->buckets; b++) d->list[b].ready = 0;
}

/* ---- during backward ---- */

static tl_status launch(tl_ddp *d, bucket *b) {
  b->launch = d->left;
  return tl_all_reduce_(b->flat, TL_MEAN, &b->work);
}

/* The member's gradient, or zeros, is in its bucket from now on. */
static tl_status fill(tl_ddp *d, member *m) {
  if (m->param->grad != NULL) TL_TRY(tl_copy_(m->slot, m->param->grad));
  else TL_TRY(tl_fill_(m->slot, 0));
  m->ready = true;
  d->list[m->bucket].ready++;
  d->left--;
  TL_TRY(tl_queue_progress());
  while (d->next < d->buckets && d->list[d->next].ready == d->list[d->next].members)
    TL_TRY(launch(d, &d->list[d->next++]));
  return TL_OK;
}

static tl_status ready(tl_watch *w, int index) {
  tl_ddp *d = (tl_ddp *)w;
  member *m = &d->members[index];
  if (!d->on) return TL_OK;
  if (m->ready)
    return TL_FAIL(TL_ERR_STATE, "DistributedDataParallel", "parameter %d got its gradient twice in one backward",
                   index);
  if (d->left == d->n)
    for (int b = 0; b < d->buckets; b++) d->list[b].launch = -1;
  return fill(d, m);
}

/* Which parameters some rank had a gradient for. */
static tl_status used_anywhere(tl_ddp *d, const bool *used_here, tl_tensor **out) {
  const int64_t n = d->n;
  TL_TRY(tl_empty(1, &n, TL_UINT8, TL_CPU, out));
  memcpy(tl_data(*out), used_here, (size_t)n);
  return tl_all_reduce_(*out, TL_MAX, NULL);
}

static tl_status take_back(tl_ddp *d, const tl_tensor *used) {
  for (int i = 0; i < d->n; i++) {
    member *m = &d->members[i];
    if (!m->param->requires_grad) continue;                             /* frozen since: it stays as it is */
    if (used != NULL && !((const uint8_t *)tl_data(used))[i]) continue; /* nobody has one: it stays as it was */
    if (m->param->grad == NULL) TL_TRY(tl_empty_like(m->param, m->param->dtype, &m->param->grad));
    TL_TRY(tl_copy_(m->param->grad, m->slot));
  }
  return TL_OK;
}

static tl_status wait_all(tl_ddp *d, tl_status st) {
  for (int b = 0; b < d->buckets; b++) {
    if (d->list[b].work == NULL) continue;
    tl_status one = tl_work_wait(d->list[b].work);
    d->list[b].work = NULL;
    if (st == TL_OK) st = one;
  }
  return st;
}

/* ---- the end of a walk ---- */

static void release(tl_ddp *d) {
  for (int i = 0; i < d->n; i++) {
    if (d->members[i].param == NULL) continue;
    tl_unwatch_leaf(d->members[i].param, &d->watch);
    tl_tensor_free(d->members[i].slot);
    tl_tensor_free(d->members[i].param);
  }
  for (int b = 0; b < d->buckets; b++) tl_tensor_free(d->list[b].flat);
  tl_host_free(d->list);
  tl_host_free(d->members);
  tl_host_free(d);
}

static tl_status average(tl_ddp *d) {
  tl_tensor *used = NULL;
  tl_status st = TL_OK;
  bool *here = tl_host_alloc((size_t)d->n * sizeof *here);
  if (here == NULL)
    st = TL_FAIL(TL_ERR_MEMORY, "DistributedDataParallel", "no memory for the flags of used parameters");
  for (int i = 0; i < d->n && st == TL_OK; i++) here[i] = d->members[i].ready || d->members[i].param->grad != NULL;
  for (int i = d->n - 1; i >= 0 && st == TL_OK; i--)
    if (!d->members[i].ready) st = fill(d, &d->members[i]);
  st = wait_all(d, st);
  if (st == TL_OK && d->find_unused) st = used_anywhere(d, here, &used);
  if (st == TL_OK) st = take_back(d, used);
  tl_tensor_free(used);
  tl_host_free(here);
  reset(d);
  return st;
}

static tl_status end(tl_watch *w) {
  tl_ddp *d = (tl_ddp *)w;
  tl_status st = d->on ? average(d) : TL_OK;
  if (d->freed) release(d);
  return st;
}

/* A walk that failed or was left: what was launched is waited for. */
static void left(tl_watch *w) {
  tl_ddp *d = (tl_ddp *)w;
  wait_all(d, TL_OK);
  reset(d);
  if (d->freed) release(d);
}

/* ---- life ---- */

void tl_ddp_free(tl_ddp *d) {
  if (d == NULL) return;
  if (d->watch.seen) d->freed = true; /* the walk's end releases it */
  else release(d);
}

static tl_status build(tl_ddp *d, tl_tensor *const *parameters, double first_bytes, double bucket_bytes) {
  for (int i = 0; i < d->n; i++) {
    tl_tensor *p = parameters[i];
    if (p->node != NULL || !p->requires_grad)
      return TL_FAIL(TL_ERR_VALUE, "DistributedDataParallel", "parameter %d is no leaf that requires gradients", i);
    d->members[i].param = tl_hold(p);
  }
  int count = assign(d, first_bytes, bucket_bytes);
  d->list = tl_host_calloc((size_t)count, sizeof *d->list);
  if (d->list == NULL) return TL_FAIL(TL_ERR_MEMORY, "DistributedDataParallel", "no memory for %d buckets", count);
  d->buckets = count;
  for (int b = 0; b < count; b++) TL_TRY(make_bucket(d, b));
  for (int i = 0; i < d->n; i++) TL_TRY(tl_watch_leaf(d->members[i].param, &d->watch, i));
  reset(d);
  return TL_OK;
}

tl_status tl_ddp_new(int n, tl_tensor *const *parameters, double first_bytes, double bucket_bytes, bool find_unused,
                     tl_ddp **out) {
  if (n < 1)
    return TL_FAIL(TL_ERR_VALUE, "DistributedDataParallel", "the model has no parameters that require gradients");
  if (!tl_dist_initialized()) return TL_FAIL(TL_ERR_STATE, "DistributedDataParallel", "dist.init comes first");
  tl_ddp *d = tl_host_calloc(1, sizeof *d);
  if (d != NULL) d->members = tl_host_calloc((size_t)n, sizeof *d->members);
  if (d == NULL || d->members == NULL) {
    tl_host_free(d);
    return TL_FAIL(TL_ERR_MEMORY, "DistributedDataParallel", "no memory for %d parameters", n);
  }
  d->watch = (tl_watch){.ready = ready, .end = end, .left = left};
  d->n = n;
  d->on = true;
  d->find_unused = find_unused;
  tl_status st = build(d, parameters, first_bytes, bucket_bytes);
  if (st == TL_OK) *out = d;
  else tl_ddp_free(d);
  return st;
}

void tl_ddp_sync(tl_ddp *d, bool on) { d->on = on; }
int tl_ddp_buckets(const tl_ddp *d) { return d->buckets; }
int tl_ddp_launch(const tl_ddp *d, int b) { return b >= 0 && b < d->buckets ? d->list[b].launch : -1; }
