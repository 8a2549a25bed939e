/* loader.c: batches of samples, gathered ahead by threads.
 *
 * The consumer allocates the tensors of every batch, workers only copy rows into them: nothing can fail in a thread, and
 * handles stay with the thread that made them. Batch b lives in slot b % slots; a worker takes the lowest batch that
 * nobody took, so batches are ready in about the order they are asked for, and given out in exactly that order. */
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "backend/backend.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "data/tokens.h"

#define OP "DataLoader"

/* Where one tensor of a batch comes from: rows of a tensor, or windows of a token file. */
typedef struct source {
  tl_tensor *rows; /* each is contiguous; NULL: windows */
  tl_tokens *tokens;
  int64_t stride, shift; /* window i starts at token i * stride + shift */
  int dtype, ndim;
  int64_t shape[TL_MAX_DIMS]; /* of a batch; shape[0] is its rows */
} source;

typedef struct slot {
  tl_tensor **tensors; /* [n], NULL while the slot is empty */
  int64_t batch;       /* which one it holds */
  bool ready;
} slot;

struct tl_loader {
  int n;
  source *sources; /* [n] */
  int64_t *order;
  int64_t count, batch, batches;
  int64_t next_out;   /* the batch to give out next */
  int64_t scheduled;  /* batches below it have a slot */
  int64_t next_take;  /* the batch a worker takes next */
  int slots, workers; /* workers: threads that run */
  slot *ring;
  bool stop, pinned;
  pthread_t *threads;
  pthread_mutex_t lock;
  pthread_cond_t work, done;
};

/* ---- gathering ---- */

static int64_t rows_of(const tl_loader *l, int64_t batch) {
  int64_t left = l->count - batch * l->batch;
  return left < l->batch ? left : l->batch;
}

static void gather_rows(const tl_tensor *from, const int64_t *ids, int64_t rows, tl_tensor *to) {
  size_t size = tl_dtype_size(from->dtype);
  size_t row = (size_t)(to->numel / rows) * size;
  size_t step = (size_t)from->strides[0] * size;
  const char *first = tl_data(from);
  char *place = tl_data(to);
  if (row == 0) return;
  for (int64_t r = 0; r < rows; r++) memcpy(place + (size_t)r * row, first + (size_t)ids[r] * step, row);
}

static void gather_windows(const source *s, const int64_t *ids, int64_t rows, tl_tensor *to) {
  int64_t *place = tl_data(to), n = s->shape[1];
  for (int64_t r = 0; r < rows; r++) tl_tokens_copy(s->tokens, ids[r] * s->stride + s->shift, n, place + r * n);
}

static void gather(const tl_loader *l, int64_t batch, tl_tensor *const *out) {
  int64_t rows = rows_of(l, batch);
  const int64_t *ids = l->order + batch * l->batch;
  for (int i = 0; i < l->n; i++) {
    const source *s = &l->sources[i];
    if (s->rows != NULL) gather_rows(s->rows, ids, rows, out[i]);
    else gather_windows(s, ids, rows, out[i]);
  }
}

static void free_tensors(int n, tl_tensor **tensors) {
  if (tensors == NULL) return;
  for (int i = 0; i < n; i++) tl_tensor_free(tensors[i]);
  tl_small_free(tensors, (size_t)n * sizeof *tensors);
}

/* Uninitialised tensors for a batch. */
static tl_status allocate(const tl_loader *l, int64_t batch, tl_tensor ***out) {
  if (l->sources[0].tokens != NULL) TL_TRY(tl_tokens_check(l->sources[0].tokens));
  size_t bytes = (size_t)l->n * sizeof(tl_tensor *);
  tl_tensor **tensors = tl_small_alloc(bytes);
  if (tensors == NULL) return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for a batch");
  memset(tensors, 0, bytes);
  for (int i = 0; i < l->n; i++) {
    const source *s = &l->sources[i];
    int64_t shape[TL_MAX_DIMS];
    memcpy(shape, s->shape, sizeof shape);
    shape[0] = rows_of(l, batch);
    tl_status st = l->pinned ? tl_empty_pinned(s->ndim, shape, s->dtype, &tensors[i])
                             : tl_empty(s->ndim, shape, s->dtype, TL_CPU, &tensors[i]);
    if (st != TL_OK) {
      free_tensors(l->n, tensors);
      return st;
    }
  }
  *out = tensors;
  return TL_OK;
}

/* ---- threads ---- */

static void *work(void *argument) {
  tl_loader *l = argument;
  pthread_mutex_lock(&l->lock);
  for (;;) {
    while (!l->stop && l->next_take == l->scheduled && l->next_take < l->batches) pthread_cond_wait(&l->work, &l->lock);
    if (l->stop || l->next_take >= l->batches) break;
    slot *s = &l->ring[l->next_take++ % l->slots];
    pthread_mutex_unlock(&l->lock);
    gather(l, s->batch, s->tensors);
    pthread_mutex_lock(&l->lock);
    s->ready = true;
    pthread_cond_signal(&l->done);
  }
  pthread_mutex_unlock(&l->lock);
  return NULL;
}

/* Gives free slots their batches. On failure the batches so far are still good. */
static tl_status schedule(tl_loader *l) {
  while (l->scheduled < l->batches && l->scheduled < l->next_out + l->slots) {
    slot *s = &l->ring[l->scheduled % l->slots];
    TL_TRY(allocate(l, l->scheduled, &s->tensors));
    s->batch = l->scheduled;
    s->ready = false;
    pthread_mutex_lock(&l->lock);
    l->scheduled++;
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->lock);
  }
  return TL_OK;
}

/* Signals belong to the host's threads: workers block them all. */
static tl_status start(tl_loader *l, int workers) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int code = 0;
  while (l->workers < workers && code == 0) {
    code = pthread_create(&l->threads[l->workers], NULL, work, l);
    if (code == 0) l->workers++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return code == 0 ? TL_OK
                   : TL_FAIL(TL_ERR_IO, OP, "worker thread %d does not start: %s", l->workers + 1, strerror(code));
}

void tl_loader_free(tl_loader *l) {
  if (l == NULL) return;
  pthread_mutex_lock(&l->lock);
  l->stop = true;
  pthread_cond_broadcast(&l->work);
  pthread_mutex_unlock(&l->lock);
  for (int i = 0; i < l->workers; i++) pthread_join(l->threads[i], NULL);
  for (int i = 0; i < l->slots && l->ring != NULL; i++) free_tensors(l->n, l->ring[i].tensors);
  for (int i = 0; i < l->n && l->sources != NULL; i++) {
    tl_tensor_free(l->sources[i].rows);
    tl_tokens_free(l->sources[i].tokens);
  }
  pthread_mutex_destroy(&l->lock);
  pthread_cond_destroy(&l->work);
  pthread_cond_destroy(&l->done);
  tl_host_free(l->sources);
  tl_host_free(l->order);
  tl_host_free(l->ring);
  tl_host_free(l->threads);
  tl_host_free(l);
}

/* ---- making one ---- */

static tl_status check_arguments(const tl_tensor *order, int64_t batch, int workers, int prefetch) {
  if (batch < 1) return TL_FAIL(TL_ERR_VALUE, OP, "the batch size is %lld, it must be at least 1", (long long)batch);
  if (workers < 0 || workers > 1024)
    return TL_FAIL(TL_ERR_VALUE, OP, "num_workers is %d, it must be 0 to 1024", workers);
  if (prefetch < 1 || prefetch > 1024)
    return TL_FAIL(TL_ERR_VALUE, OP, "prefetch is %d, it must be 1 to 1024", prefetch);
  if (order->ndim != 1 || order->dtype != TL_INT64 || order->device != TL_CPU)
    return TL_FAIL(TL_ERR_DTYPE, OP, "the order must be a 1-d int64 tensor on the CPU, got %s %s", tl_shape_of(order),
                   tl_dtype_name(order->dtype));
  return TL_OK;
}

static tl_status check_tensors(int n, tl_tensor *const *tensors) {
  if (n < 1) return TL_FAIL(TL_ERR_VALUE, OP, "needs at least one tensor");
  for (int i = 0; i < n; i++) {
    if (tensors[i]->device != TL_CPU)
      return TL_FAIL(TL_ERR_DEVICE, OP, "tensor %lld is not on the CPU", (long long)tl_position(i));
    if (tensors[i]->ndim == 0)
      return TL_FAIL(TL_ERR_SHAPE, OP, "tensor %lld is 0-d: it has no samples", (long long)tl_position(i));
    if (tensors[i]->shape[0] != tensors[0]->shape[0])
      return TL_FAIL(TL_ERR_SHAPE, OP, "%s and %s hold different numbers of samples", tl_shape_of(tensors[0]),
                     tl_shape_of(tensors[i]));
  }
  return TL_OK;
}

/* Rows must be contiguous each; their distance is free (a batch of narrowed rows needs no copy of the whole). */
static tl_status rows_of_tensor(tl_tensor *t, tl_tensor **out) {
  int64_t step = 1;
  bool rows = true;
  for (int d = t->ndim - 1; d >= 1; d--) {
    if (t->shape[d] != 1 && t->strides[d] != step) rows = false;
    step *= t->shape[d];
  }
  if (rows || t->numel == 0) return tl_alias(t, out);
  bool grad = tl_set_grad_enabled(false);
  tl_status st = tl_contiguous(t, out);
  tl_set_grad_enabled(grad);
  return st;
}

static tl_status copy_order(tl_loader *l, const tl_tensor *order, int64_t samples) {
  const int64_t *ids = tl_data(order);
  for (int64_t i = 0; i < l->count; i++) {
    int64_t id = ids[i * order->strides[0]];
    if (id < 0 || id >= samples)
      return TL_FAIL(TL_ERR_INDEX, OP, "the order names sample %lld at place %lld, there are %lld (from 0)",
                     (long long)id, (long long)tl_position(i), (long long)samples);
    l->order[i] = id;
  }
  return TL_OK;
}

/* A loader without its sources: start_with() follows. */
static tl_status make(int n, const tl_tensor *order, int64_t batch, bool drop_last, int workers, int prefetch,
                      tl_loader **out) {
  TL_TRY(check_arguments(order, batch, workers, prefetch));
  tl_loader *l = tl_host_calloc(1, sizeof *l);
  if (l == NULL) return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for a loader");
  pthread_mutex_init(&l->lock, NULL);
  pthread_cond_init(&l->work, NULL);
  pthread_cond_init(&l->done, NULL);
  l->n = n;
  l->count = order->numel;
  l->batch = batch;
  l->batches = drop_last ? l->count / batch : l->count / batch + (l->count % batch != 0);
  l->slots = workers == 0 ? 1 : workers * prefetch;
  l->sources = tl_host_calloc((size_t)n, sizeof *l->sources);
  l->order = tl_host_alloc((size_t)l->count * sizeof *l->order);
  l->ring = tl_host_calloc((size_t)l->slots, sizeof *l->ring);
  l->threads = tl_host_calloc((size_t)workers, sizeof *l->threads);
  if (l->sources != NULL && l->order != NULL && l->ring != NULL && l->threads != NULL) return *out = l, TL_OK;
  tl_loader_free(l);
  return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for a loader of %lld samples", (long long)order->numel);
}

/* The sources are there: checks the order against them and begins. Frees the loader when it cannot. */
static tl_status start_with(tl_loader *l, const tl_tensor *order, int64_t samples, int workers, tl_loader **out) {
  tl_status st = copy_order(l, order, samples);
  if (st == TL_OK && workers > 0) st = schedule(l);
  if (st == TL_OK) st = start(l, workers);
  if (st == TL_OK) *out = l;
  else tl_loader_free(l);
  return st;
}

tl_status tl_loader_new(int n, tl_tensor *const *tensors, tl_tensor *order, int64_t batch, bool drop_last, int workers,
                        int prefetch, tl_loader **out) {
  TL_TRY(check_tensors(n, tensors));
  tl_loader *l;
  TL_TRY(make(n, order, batch, drop_last, workers, prefetch, &l));
  for (int i = 0; i < n; i++) {
    source *s = &l->sources[i];
    tl_status st = rows_of_tensor(tensors[i], &s->rows);
    if (st != TL_OK) {
      tl_loader_free(l);
      return st;
    }
    s->dtype = tensors[i]->dtype;
    s->ndim = tensors[i]->ndim;
    memcpy(s->shape, tensors[i]->shape, sizeof s->shape);
  }
  return start_with(l, order, tensors[0]->shape[0], workers, out);
}

double tl_window_count(const tl_tokens *t, int64_t context, int64_t stride) {
  int64_t last = (int64_t)tl_tokens_count(t) - context - 1; /* where the last window may start */
  return last < 0 ? 0 : (double)(last / stride + 1);
}

tl_status tl_loader_windows(tl_tokens *t, int64_t context, int64_t stride, tl_tensor *order, int64_t batch,
                            bool drop_last, int workers, int prefetch, tl_loader **out) {
  if (context < 1 || stride < 1)
    return TL_FAIL(TL_ERR_VALUE, OP, "windows of %lld tokens, %lld apart: both must be at least 1", (long long)context,
                   (long long)stride);
  tl_loader *l;
  TL_TRY(make(2, order, batch, drop_last, workers, prefetch, &l));
  for (int i = 0; i < 2; i++)
    l->sources[i] = (source){.tokens = tl_tokens_retain(t),
                             .stride = stride,
                             .shift = i,
                             .dtype = TL_INT64,
                             .ndim = 2,
                             .shape = {0, context}};
  return start_with(l, order, (int64_t)tl_window_count(t, context, stride), workers, out);
}

/* ---- batches ---- */

tl_status tl_loader_pin(tl_loader *l) {
  const tl_backend *b;
  TL_TRY(tl_backend_open(TL_CUDA, &b));
  l->pinned = true;
  return TL_OK;
}

tl_status tl_loader_next(tl_loader *l, tl_tensor **out, bool *more) {
  *more = l->next_out < l->batches;
  if (!*more) return TL_OK;
  slot *s = &l->ring[l->next_out % l->slots];
  if (l->next_out == l->scheduled) TL_TRY(schedule(l)); /* no workers, or no memory last time */
  if (l->workers == 0) {
    gather(l, s->batch, s->tensors);
  } else {
    pthread_mutex_lock(&l->lock);
    while (!s->ready) pthread_cond_wait(&l->done, &l->lock);
    pthread_mutex_unlock(&l->lock);
  }
  memcpy(out, s->tensors, (size_t)l->n * sizeof *out);
  tl_small_free(s->tensors, (size_t)l->n * sizeof *out);
  s->tensors = NULL;
  l->next_out++;
  /* Refill now: workers gather while the caller computes. A failure is reported when that batch is asked for. */
  tl_status st = l->workers > 0 ? schedule(l) : TL_OK;
  if (st == TL_ERR_INTERRUPT) tl_interrupt();
  if (st != TL_OK) tl_clear_error();
  return TL_OK;
}
