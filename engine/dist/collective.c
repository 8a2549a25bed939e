/* collective.c: collectives on tensors: checks, contiguous copies where the layout asks for them, the queue. */
#include "backend/backend.h"
#include "core/error.h"
#include "core/tensor.h"
#include "dist/group.h"

static tl_status check(const char *op, const tl_tensor *t) {
  TL_CHECK_INTERRUPT(op);
  if (!tl_dist_initialized()) return TL_FAIL(TL_ERR_STATE, op, "dist.init comes first");
  const tl_accelerator *a = tl_backend_of(t->device)->accelerator;
  if (a != NULL && a->comm_new == NULL)
    return TL_FAIL(TL_ERR_UNSUPPORTED, op, "this build of the CUDA plug-in has no NCCL: exchange copies on the CPU");
  return TL_OK;
}

static tl_status check_reduce(const char *op, const tl_tensor *t, int reduce) {
  if (reduce < TL_SUM || reduce > TL_MIN) return TL_FAIL(TL_ERR_VALUE, op, "there is no reduction number %d", reduce);
  if (reduce == TL_MEAN && !tl_is_floating(t->dtype))
    return TL_FAIL(TL_ERR_DTYPE, op, "a mean needs a floating dtype, got %s", tl_dtype_name(t->dtype));
  return TL_OK;
}

/* Hands the work out, or waits for it. */
static tl_status answer(tl_status st, tl_work *w, tl_work **out) {
  if (st != TL_OK) return st;
  if (out == NULL) return tl_work_wait(w);
  *out = w;
  return TL_OK;
}

/* Queues c, whose memory lies in a and b (one may be NULL); `flat` scaled and copied to `target` ends it. */
static tl_status queue(const tl_collective *c, tl_tensor *a, tl_tensor *b, tl_tensor *flat, double scale,
                       tl_tensor *target, tl_work **out) {
  tl_work *w = NULL;
  tl_storage *storages[2];
  int n = 0;
  if (a != NULL) storages[n++] = a->storage;
  if (b != NULL) storages[n++] = b->storage;
  tl_status st = tl_the_group.transport == NULL
                     ? tl_queue_done(&w)
                     : tl_queue_add(n > 0 ? storages[0]->device : TL_CPU, c, n, storages, &w);
  if (st == TL_OK) tl_work_finish(w, flat, scale, target);
  return answer(st, w, out);
}

static double scale_of(int op) { return op == TL_MEAN ? 1.0 / tl_the_group.size : 1; }

/* A contiguous tensor with t's values: t itself if it is one. */
static tl_status flat_of(tl_tensor *t, tl_tensor **out) {
  bool before = tl_set_grad_enabled(false);
  tl_status st = tl_contiguous(t, out);
  tl_set_grad_enabled(before);
  return st;
}

/* all_reduce and broadcast: t changes. */
static tl_status in_place(const char *op, tl_collective *c, tl_tensor *t, double scale, tl_work **work) {
  tl_tensor *flat;
  if (tl_overlaps_itself(t)) return TL_FAIL(TL_ERR_VALUE, op, "elements of the tensor share memory (it is expanded)");
  TL_TRY(flat_of(t, &flat));
  c->dtype = t->dtype;
  c->count = t->numel;
  c->recv = tl_data(flat);
  t->storage->version++;
  tl_status st = queue(c, flat, NULL, flat, scale, t->contiguous ? NULL : t, work);
  tl_tensor_free(flat);
  return st;
}

tl_status tl_all_reduce_(tl_tensor *t, int op, tl_work **work) {
  TL_TRY(check("all_reduce", t));
  TL_TRY(check_reduce("all_reduce", t, op));
  tl_collective c = {.kind = TL_COLLECTIVE_ALL_REDUCE, .op = op};
  return in_place("all_reduce", &c, t, scale_of(op), work);
}

tl_status tl_broadcast_(tl_tensor *t, int root, tl_work **work) {
  TL_TRY(check("broadcast", t));
  if (root < 0 || root >= tl_the_group.size)
    return TL_FAIL(TL_ERR_VALUE, "broadcast", "rank %d was named, there are 0..%d", root, tl_the_group.size - 1);
  tl_collective c = {.kind = TL_COLLECTIVE_BROADCAST, .root = root};
  return in_place("broadcast", &c, t, 1, work);
}

tl_status tl_all_gather(tl_tensor *t, tl_tensor **out, tl_work **work) {
  int64_t shape[TL_MAX_DIMS] = {tl_the_group.size};
  tl_tensor *flat, *y;
  TL_TRY(check("all_gather", t));
  if (t->ndim >= TL_MAX_DIMS)
    return TL_FAIL(TL_ERR_SHAPE, "all_gather", "the result would have more than %d dims", TL_MAX_DIMS);
  for (int d = 0; d < t->ndim; d++) shape[d + 1] = t->shape[d];
  TL_TRY(flat_of(t, &flat));
  tl_status st = tl_empty(t->ndim + 1, shape, t->dtype, t->device, &y);
  if (st != TL_OK) {
    tl_tensor_free(flat);
    return st;
  }
  tl_collective c = {.kind = TL_COLLECTIVE_ALL_GATHER,
                     .dtype = t->dtype,
                     .count = t->numel,
                     .send = tl_data(flat),
                     .recv = tl_data(y)};
  if (tl_the_group.transport == NULL) st = tl_copy_(y, flat);
  if (st == TL_OK) st = queue(&c, flat, y, NULL, 1, NULL, work);
  tl_tensor_free(flat);
  return tl_give(st, y, out);
}

tl_status tl_reduce_scatter(tl_tensor *t, int op, tl_tensor **out, tl_work **work) {
  int64_t shape[TL_MAX_DIMS];
  tl_tensor *flat, *y;
  TL_TRY(check("reduce_scatter", t));
  TL_TRY(check_reduce("reduce_scatter", t, op));
  if (t->ndim == 0 || t->shape[0] % tl_the_group.size != 0)
    return TL_FAIL(TL_ERR_SHAPE, "reduce_scatter", "the first dim of %s cannot be divided among %d ranks",
                   tl_shape_of(t), tl_the_group.size);
  for (int d = 0; d < t->ndim; d++) shape[d] = t->shape[d];
  shape[0] /= tl_the_group.size;
  TL_TRY(flat_of(t, &flat));
  tl_status st = tl_empty(t->ndim, shape, t->dtype, t->device, &y);
  if (st != TL_OK) {
    tl_tensor_free(flat);
    return st;
  }
  tl_collective c = {.kind = TL_COLLECTIVE_REDUCE_SCATTER,
                     .op = op,
                     .dtype = t->dtype,
                     .count = y->numel,
                     .send = tl_data(flat),
                     .recv = tl_data(y)};
  if (tl_the_group.transport == NULL) st = tl_copy_(y, flat);
  if (st == TL_OK) st = queue(&c, flat, y, y, scale_of(op), NULL, work);
  tl_tensor_free(flat);
  return tl_give(st, y, out);
}

tl_status tl_dist_barrier(void) {
  TL_CHECK_INTERRUPT("barrier");
  if (!tl_dist_initialized()) return TL_FAIL(TL_ERR_STATE, "barrier", "dist.init comes first");
  tl_collective c = {.kind = TL_COLLECTIVE_BARRIER, .dtype = TL_UINT8};
  return queue(&c, NULL, NULL, NULL, 1, NULL, NULL);
}
