/* linear_cross_entropy.c: the classifier of a language model and its loss in one: cross_entropy(x w^T + b, labels).
 *
 * With a vocabulary of tens of thousands the logits of all positions are the largest tensor of a model. Here they exist a
 * chunk of rows at a time. For a loss that is a number, forward turns a chunk's logits into their gradient at once, in
 * place, and adds what that gives for x, w and b: the logits are computed once, and backward only scales those gradients
 * (Hsu et al. 2024). The gradients of single losses have to wait for what arrives, so backward computes the logits again.
 *
 * Gradients are those of the sum of the losses until backward, which divides by the mean's divisor: half types would lose
 * probabilities to that division. w's and b's are added up in float32 (float64 for float64). */
#include "autograd/tape.h"
#include "backend/backend.h"
#include "ops/autocast.h"
#include "ops/matmul.h"
#include "ops/plain.h"

static const char *const OP = "linear_cross_entropy";

enum { X, W, B, TARGET, WEIGHT, OPERANDS };
enum { INPUTS = B + 1 }; /* those that get gradients */

typedef struct payload {
  int64_t rows, width, classes, chunk; /* chunk: rows of logits that exist at a time */
  int64_t ignore_index;
  double smoothing;
  int reduction;
  int low, loss_dtype; /* of the logits, of the loss */
  int dtypes[INPUTS];
} payload;

/* One run over all chunks. */
typedef struct job {
  const payload *p;
  int kernel_reduction;
  int64_t chunks;
  tl_tensor *in[OPERANDS];    /* plain: x (rows, width), w (classes, width), b (classes) or NULL in the low type, .. */
  tl_tensor *grad[INPUTS];    /* (rows, width), (classes, width), (classes); NULL: not wanted */
  tl_tensor *g;               /* what arrives for `losses`, where gradients are wanted */
  tl_tensor *losses, *totals; /* (rows), or (chunks) */
  tl_tensor *logits, *lse, *ones;
} job;

/* Rows first .. first + count - 1 of a plain t, as (count, width). */
static tl_status rows_of(tl_tensor *t, int64_t width, int64_t first, int64_t count, tl_tensor **out) {
  const int64_t shape[2] = {count, width}, strides[2] = {width, 1};
  return tl_alias_as(t, 2, shape, strides, t->offset + first * width, out);
}

static tl_status span_of(tl_tensor *t, int64_t first, int64_t count, tl_tensor **out) {
  const int64_t stride = 1;
  return tl_alias_as(t, 1, &count, &stride, t->offset + first, out);
}

/* ---- one chunk ---- */

typedef struct piece {
  int64_t first, count;
  tl_tensor *x, *logits, *target, *loss, *total, *g, *dx, *ones;
} piece;

static void piece_free(piece *c) {
  tl_tensor *all[] = {c->x, c->logits, c->target, c->loss, c->total, c->g, c->dx, c->ones};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tl_tensor_free(all[i]);
}

static tl_status piece_make(const job *j, int64_t k, piece *c) {
  const payload *p = j->p;
  const bool each = p->reduction == TL_REDUCE_NONE;
  c->first = k * p->chunk;
  c->count = p->rows - c->first < p->chunk ? p->rows - c->first : p->chunk;
  TL_TRY(rows_of(j->in[X], p->width, c->first, c->count, &c->x));
  TL_TRY(rows_of(j->logits, p->classes, 0, c->count, &c->logits));
  TL_TRY(span_of(j->in[TARGET], c->first, c->count, &c->target));
  TL_TRY(span_of(j->losses, each ? c->first : k, each ? c->count : 1, &c->loss));
  TL_TRY(span_of(j->totals, k, 1, &c->total));
  if (j->grad[X] != NULL) TL_TRY(rows_of(j->grad[X], p->width, c->first, c->count, &c->dx));
  if (j->ones != NULL) TL_TRY(rows_of(j->ones, c->count, 0, 1, &c->ones));
  return j->g == NULL ? TL_OK : span_of(j->g, each ? c->first : 0, each ? c->count : 1, &c->g);
}

/* The label that the kernel stumbled over, with its place in the target. */
static tl_status bad_label(const job *j, int64_t at) {
  double label = 0;
  tl_tensor *one = NULL;
  TL_TRY(span_of(j->in[TARGET], at, 1, &one));
  const tl_status st = tl_get(one, 1, &(int64_t){0}, &label);
  tl_tensor_free(one);
  TL_TRY(st);
  return TL_FAIL(TL_ERR_INDEX, OP, "label %.0f (element %lld of the target) is outside 0..%lld", label,
                 (long long)tl_position(at), (long long)j->p->classes - 1);
}

static tl_status piece_losses(const job *j, const piece *c) {
  int64_t bad = -1;
  tl_class_loss_args a = {.outer = c->count,
                          .classes = j->p->classes,
                          .inner = 1,
                          .logits = true,
                          .x = c->logits,
                          .target = c->target,
                          .weight = j->in[WEIGHT],
                          .ignore_index = j->p->ignore_index,
                          .smoothing = j->p->smoothing,
                          .reduction = j->kernel_reduction,
                          .first = c->first,
                          .y = c->loss,
                          .lse = j->lse,
                          .total = c->total,
                          .bad = &bad};
  TL_TRY(tl_kernels_of(c->logits)->class_loss(&a));
  return bad < 0 ? TL_OK : bad_label(j, c->first + bad);
}

/* The logits become their gradient. */
static tl_status piece_logit_grads(const job *j, const piece *c) {
  tl_class_loss_grad_args a = {.outer = c->count,
                               .classes = j->p->classes,
                               .inner = 1,
                               .logits = true,
                               .x = c->logits,
                               .target = c->target,
                               .weight = j->in[WEIGHT],
                               .lse = j->lse,
                               .total = c->total,
                               .g = c->g,
                               .ignore_index = j->p->ignore_index,
                               .smoothing = j->p->smoothing,
                               .reduction = j->kernel_reduction,
                               .dx = c->logits};
  return tl_kernels_of(c->logits)->class_loss_grad(&a);
}

static tl_status piece_grads(const job *j, const piece *c) {
  TL_TRY(piece_logit_grads(j, c));
  const tl_matrices x = tl_matrices_of(c->x, false), w = tl_matrices_of(j->in[W], false),
                    d = tl_matrices_of(c->logits, false), dt = tl_matrices_transposed(d);
  const double add = c->first > 0;
  if (c->dx != NULL) TL_TRY(tl_gemm_into(OP, &d, &w, NULL, 1, 0, c->dx));
  if (j->grad[W] != NULL) TL_TRY(tl_gemm_into(OP, &dt, &x, NULL, 1, add, j->grad[W]));
  if (j->grad[B] == NULL) return TL_OK;
  const tl_matrices ones = tl_matrices_of(c->ones, false);
  return tl_gemm_into(OP, &ones, &d, NULL, 1, add, j->grad[B]);
}

static tl_status run_piece(const job *j, int64_t k) {
  piece c = {0};
  tl_status st = piece_make(j, k, &c);
  if (st == TL_OK) {
    const tl_matrices x = tl_matrices_of(c.x, false), wt = tl_matrices_transposed(tl_matrices_of(j->in[W], false));
    st = tl_gemm_into(OP, &x, &wt, j->in[B], 1, 0, c.logits);
  }
  if (st == TL_OK) st = piece_losses(j, &c);
  if (st == TL_OK && j->g != NULL) st = piece_grads(j, &c);
  piece_free(&c);
  return st;
}

/* ---- all of them ---- */

static void job_free(job *j) {
  for (int i = 0; i < OPERANDS; i++) tl_tensor_free(j->in[i]);
  for (int i = 0; i < INPUTS; i++) tl_tensor_free(j->grad[i]);
  tl_tensor *all[] = {j->g, j->losses, j->totals, j->logits, j->lse, j->ones};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tl_tensor_free(all[i]);
}

/* needs[i]: is input i's gradient wanted? */
static tl_status make_gradients(job *j, const bool *needs) {
  const payload *p = j->p;
  const int stats = tl_compute_dtype(p->low);
  const tl_device device = j->in[X]->device;
  const int64_t x[2] = {p->rows, p->width}, w[2] = {p->classes, p->width}, *const shape[INPUTS] = {x, w, w};
  for (int i = 0; i < INPUTS; i++)
    if (needs[i])
      TL_TRY(tl_empty(i == B ? 1 : 2, shape[i], i != X || p->dtypes[X] == stats ? stats : p->low, device, &j->grad[i]));
  const int64_t ones[1] = {p->chunk};
  return needs[B] ? tl_full(1, ones, 1, p->low, device, &j->ones) : TL_OK;
}

/* in[]: the user's operands. The loss' dtype is that of the logits or of the statistics. */
static tl_status job_make(job *j, const payload *p, tl_tensor *const *in) {
  const int stats = tl_compute_dtype(p->low);
  const tl_device device = in[X]->device;
  const bool each = p->reduction == TL_REDUCE_NONE;
  j->p = p;
  j->chunks = p->rows == 0 ? 1 : (p->rows + p->chunk - 1) / p->chunk;
  /* with one chunk of a wide type nothing is gained by dividing late */
  const bool whole = j->chunks == 1 && p->low == stats;
  j->kernel_reduction = each || whole ? p->reduction : TL_REDUCE_SUM;
  for (int i = X; i <= B; i++) {
    tl_tensor *low = NULL;
    if (in[i] == NULL) continue;
    TL_TRY(tl_to(in[i], p->low, device, &low));
    tl_status st = tl_plain(low, p->low, &j->in[i]);
    tl_tensor_free(low);
    TL_TRY(st);
  }
  TL_TRY(tl_plain(in[TARGET], TL_INT64, &j->in[TARGET]));
  TL_TRY(tl_plain(in[WEIGHT], stats, &j->in[WEIGHT]));
  const int64_t losses = each ? p->rows : j->chunks, logits[2] = {p->chunk, p->classes}, lse = 2 * p->chunk;
  TL_TRY(tl_empty(1, &losses, each ? p->loss_dtype : stats, device, &j->losses));
  TL_TRY(tl_empty(1, &j->chunks, stats, device, &j->totals));
  TL_TRY(tl_empty(2, logits, p->low, device, &j->logits));
  return tl_empty(1, &lse, stats, device, &j->lse);
}

static tl_status job_run(const job *j) {
  for (int64_t k = 0; k < j->chunks; k++) {
    TL_CHECK_INTERRUPT(OP);
    TL_TRY(run_piece(j, k));
  }
  return TL_OK;
}

/* ---- backward ---- */

enum { SAVED_DIVISOR = INPUTS, SAVED_OF_NUMBER }; /* saved by a loss that is a number: gradients, 1 / divisor or NULL */

static tl_status scaled(tl_tensor *t, tl_tensor *scale, int dtype, tl_tensor **out) {
  tl_tensor *y = NULL;
  tl_status st;
  if (scale == NULL) st = tl_tensor_retain(t, &y);
  else if (tl_walk_retains()) st = tl_mul(t, scale, &y);
  else if ((st = tl_mul_(t, scale)) == TL_OK) st = tl_tensor_retain(t, &y);
  if (st == TL_OK) st = tl_to(y, dtype, y->device, out);
  tl_tensor_free(y);
  return st;
}

/* g / divisor; NULL where the CPU sees that it is 1. */
static tl_status scale_of(tl_tensor *g, tl_tensor *inverse, int stats, tl_tensor **out) {
  tl_tensor *wide = NULL, *scale = NULL;
  double value = 0;
  TL_TRY(tl_to(g, stats, g->device, &wide));
  tl_status st = inverse == NULL ? tl_tensor_retain(wide, &scale) : tl_mul(wide, inverse, &scale);
  tl_tensor_free(wide);
  if (st == TL_OK && g->device == TL_CPU) st = tl_item(scale, &value);
  if (st == TL_OK && value != 1) *out = scale;
  else tl_tensor_free(scale);
  return st;
}

static tl_status number_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const payload *p = n->payload;
  tl_tensor *s[SAVED_OF_NUMBER], *scale = NULL;
  for (int i = 0; i < SAVED_OF_NUMBER; i++) TL_TRY(tl_node_saved(n, i, &s[i]));
  TL_TRY(scale_of(grad_out[0], s[SAVED_DIVISOR], tl_compute_dtype(p->low), &scale));
  tl_status st = TL_OK;
  for (int i = 0; i < n->inputs && st == TL_OK; i++)
    if (tl_node_needs(n, i)) st = scaled(s[i], scale, p->dtypes[i], &grad_in[i]);
  tl_tensor_free(scale);
  return st;
}

static tl_status each_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const payload *p = n->payload;
  tl_tensor *in[OPERANDS];
  bool needs[INPUTS] = {false};
  job j = {0};
  for (int i = 0; i < OPERANDS; i++) TL_TRY(tl_node_saved(n, i, &in[i]));
  for (int i = 0; i < n->inputs; i++) needs[i] = tl_node_needs(n, i);
  tl_status st = job_make(&j, p, in);
  if (st == TL_OK) st = make_gradients(&j, needs);
  if (st == TL_OK) st = tl_plain(grad_out[0], p->loss_dtype, &j.g);
  if (st == TL_OK) st = job_run(&j);
  for (int i = 0; i < INPUTS && st == TL_OK; i++) {
    tl_tensor *shaped = NULL;
    if (!needs[i]) continue;
    st = tl_view(j.grad[i], in[i]->ndim, in[i]->shape, &shaped);
    if (st == TL_OK) st = tl_to(shaped, p->dtypes[i], shaped->device, &grad_in[i]);
    tl_tensor_free(shaped);
  }
  job_free(&j);
  return st;
}

static const tl_node_class number_class = {"linear_cross_entropy", number_backward, NULL};
static const tl_node_class each_class = {"linear_cross_entropy", each_backward, NULL};

/* ---- checks ---- */

static tl_status check_factors(tl_tensor *const *in, bool casts) {
  for (int i = X; i <= B; i++) {
    if (in[i] == NULL) continue;
    TL_TRY(tl_check_floating(OP, in[i]));
    TL_TRY(tl_check_same_device(OP, in[X], in[i]));
    if (!casts) TL_TRY(tl_check_factors(OP, in[X], in[i]));
  }
  const tl_tensor *x = in[X], *w = in[W], *b = in[B];
  if (w->ndim != 2) return TL_FAIL(TL_ERR_SHAPE, OP, "the weight is (classes x in), got %s", tl_shape_of(w));
  if (x->ndim == 0) return TL_FAIL(TL_ERR_SHAPE, OP, "the input is (.., in), got a number");
  if (x->shape[x->ndim - 1] != w->shape[1])
    return TL_FAIL(TL_ERR_SHAPE, OP, "%s into a weight of %s: %lld input features, %lld expected", tl_shape_of(x),
                   tl_shape_of(w), (long long)x->shape[x->ndim - 1], (long long)w->shape[1]);
  if (b != NULL && (b->ndim != 1 || b->shape[0] != w->shape[0]))
    return TL_FAIL(TL_ERR_SHAPE, OP, "a bias of %s for a weight of %s: (%lld) expected", tl_shape_of(b), tl_shape_of(w),
                   (long long)w->shape[0]);
  return TL_OK;
}

static tl_status check_target(const tl_tensor *x, const tl_tensor *target) {
  if (tl_is_floating(target->dtype) || target->dtype == TL_BOOL)
    return TL_FAIL(TL_ERR_DTYPE, OP, "labels are integers (int64), got %s: cross_entropy takes probabilities",
                   tl_dtype_name(target->dtype));
  bool fits = target->ndim == x->ndim - 1;
  for (int d = 0; d < target->ndim && fits; d++) fits = target->shape[d] == x->shape[d];
  if (!fits)
    return TL_FAIL(TL_ERR_SHAPE, OP,
                   "labels of %s do not belong to an input of %s: they have its shape without the last dim",
                   tl_shape_of(target), tl_shape_of(x));
  return tl_check_same_device(OP, x, target);
}

static tl_status check_options(const tl_tensor *w, tl_tensor *weight, const payload *p) {
  if (p->reduction < TL_REDUCE_NONE || p->reduction > TL_REDUCE_SUM)
    return TL_FAIL(TL_ERR_VALUE, OP, "there is no reduction number %d here", p->reduction);
  if (!(p->smoothing >= 0 && p->smoothing <= 1))
    return TL_FAIL(TL_ERR_VALUE, OP, "label_smoothing is a number from 0 to 1, got %g", p->smoothing);
  if (p->chunk < 0) return TL_FAIL(TL_ERR_VALUE, OP, "a chunk of %lld rows", (long long)p->chunk);
  if (weight == NULL) return TL_OK;
  if (weight->ndim != 1 || weight->shape[0] != w->shape[0])
    return TL_FAIL(TL_ERR_SHAPE, OP, "the class weight is %s, there are %lld classes", tl_shape_of(weight),
                   (long long)w->shape[0]);
  if (tl_records(1, &weight)) return TL_FAIL(TL_ERR_UNSUPPORTED, OP, "no gradient goes to weight: pass it detached");
  return tl_check_same_device(OP, w, weight);
}

/* ---- forward ---- */

/* Rows whose logits take no more memory than x does, or on the CPU a quarter of the weight: there short chunks cost
 * nothing, while on an accelerator the weight's gradient would be read and written too often. All chunks get about one
 * size. */
static int64_t choose_chunk(const payload *p, tl_device device) {
  if (p->chunk > 0) return p->chunk < p->rows ? p->chunk : p->rows;
  int64_t most = device != TL_CPU ? 1024 : p->width < 256 ? 64 : p->width / 4;
  const int64_t of_x = p->classes == 0 ? p->rows : p->rows * p->width / p->classes;
  if (most < of_x) most = of_x;
  const int64_t chunks = (p->rows + most - 1) / most;
  return chunks <= 1 ? p->rows : (p->rows + chunks - 1) / chunks;
}

/* y = the chunks' losses together; *inverse = 1 / the mean's divisor, by which the gradients are still to be multiplied.
 * A divisor of 0 gives 0, as the sum of no losses is 0. */
static tl_status combine(const job *j, tl_tensor **inverse, tl_tensor **y) {
  const payload *p = j->p;
  if (p->reduction == TL_REDUCE_NONE) return tl_tensor_retain(j->losses, y);
  tl_tensor *sum = NULL, *total = NULL, *none = NULL, *divisor = NULL, *mean = NULL;
  tl_status st = tl_sum(j->losses, 0, NULL, false, &sum);
  if (st == TL_OK && j->kernel_reduction != p->reduction) {
    st = tl_sum(j->totals, 0, NULL, false, &total);
    if (st == TL_OK) st = tl_eq_scalar(total, 0, &none);
    if (st == TL_OK) st = tl_add(total, none, &divisor);
    if (st == TL_OK) st = tl_reciprocal(divisor, inverse);
    if (st == TL_OK) st = tl_mul(sum, *inverse, &mean);
  } else if (st == TL_OK) {
    st = tl_tensor_retain(sum, &mean);
  }
  if (st == TL_OK) st = tl_to(mean, p->loss_dtype, mean->device, y);
  tl_tensor *all[] = {sum, total, none, divisor, mean};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tl_tensor_free(all[i]);
  return st;
}

/* Gradients off, autocast paused. */
static tl_status compute(job *j, const payload *p, tl_tensor *const *in, const bool *needs, tl_tensor **inverse,
                         tl_tensor **y) {
  TL_TRY(job_make(j, p, in));
  if (p->reduction != TL_REDUCE_NONE && (needs[X] || needs[W] || needs[B])) {
    TL_TRY(make_gradients(j, needs));
    TL_TRY(tl_full(0, NULL, 1, tl_compute_dtype(p->low), in[X]->device, &j->g));
  }
  TL_TRY(job_run(j));
  return combine(j, inverse, y);
}

/* The losses of single rows keep the operands, a number the gradients. */
static tl_status record(job *j, tl_tensor *const *in, tl_tensor *inverse, tl_tensor *y) {
  tl_tensor *save[SAVED_OF_NUMBER] = {NULL, NULL, NULL, inverse};
  if (j->p->reduction == TL_REDUCE_NONE)
    return tl_record1(&each_class, y, INPUTS, in, OPERANDS, in, j->p, sizeof *j->p);
  tl_status st = TL_OK;
  for (int i = 0; i < INPUTS && st == TL_OK; i++)
    if (j->grad[i] != NULL) st = tl_view(j->grad[i], in[i]->ndim, in[i]->shape, &save[i]);
  if (st == TL_OK) st = tl_record1(&number_class, y, INPUTS, in, SAVED_OF_NUMBER, save, j->p, sizeof *j->p);
  for (int i = 0; i < INPUTS; i++) tl_tensor_free(save[i]);
  return st;
}

static tl_status shaped_loss(tl_tensor *y, const tl_tensor *target, tl_tensor **out) {
  return y->ndim == 0 ? tl_tensor_retain(y, out) : tl_view(y, target->ndim, target->shape, out);
}

tl_status tl_linear_cross_entropy(tl_tensor *x, tl_tensor *linear_weight, tl_tensor *target, tl_tensor *linear_bias,
                                  tl_tensor *weight, int64_t ignore_index, double label_smoothing, int reduction,
                                  int64_t chunk, tl_tensor **out) {
  tl_tensor *in[OPERANDS] = {x, linear_weight, linear_bias, target, weight};
  const int kind = x->device >> 8;
  const bool casts =
      tl_autocast_on && tl_autocast_enabled(kind) && x->dtype != TL_FLOAT64 && linear_weight->dtype != TL_FLOAT64;
  TL_TRY(check_factors(in, casts));
  TL_TRY(check_target(x, target));
  TL_KERNEL(x, class_loss, OP);
  TL_KERNEL(x, class_loss_grad, OP);
  payload p = {.rows = target->numel,
               .width = linear_weight->shape[1],
               .classes = linear_weight->shape[0],
               .chunk = chunk,
               .ignore_index = ignore_index,
               .smoothing = label_smoothing,
               .reduction = reduction,
               .low = casts ? tl_autocast_dtype(kind) : x->dtype,
               .loss_dtype = casts ? TL_FLOAT32 : x->dtype,
               .dtypes = {x->dtype, linear_weight->dtype, linear_bias == NULL ? 0 : linear_bias->dtype}};
  TL_TRY(check_options(linear_weight, weight, &p));
  p.chunk = choose_chunk(&p, x->device);
  bool needs[INPUTS];
  for (int i = 0; i < INPUTS; i++) needs[i] = tl_records(1, &in[i]);
  job j = {0};
  tl_tensor *inverse = NULL, *flat = NULL, *y = NULL;
  const bool grads = tl_set_grad_enabled(false), paused = tl_autocast_pause();
  tl_status st = compute(&j, &p, in, needs, &inverse, &flat);
  if (st == TL_OK) st = shaped_loss(flat, target, &y);
  tl_autocast_on = paused;
  tl_set_grad_enabled(grads);
  if (st == TL_OK) st = record(&j, in, inverse, y);
  tl_tensor_free(inverse);
  tl_tensor_free(flat);
  job_free(&j);
  return tl_give(st, y, out);
}
