/* nn.h: arguments of the fused kernels of normalisation, softmax, losses, embedding and attention.
 *
 * Every tensor is contiguous; (a, b, c) beside one is the shape it is to be read with. NULL where a line says "or NULL".
 * x, y, g (the gradient that arrives) and dx have one floating dtype; whatever is named "compute" is float64 for float64
 * and float32 for the others. Results do not depend on the number of threads. Gradients are overwritten, not added to;
 * a NULL one is not wanted. */
#ifndef TL_BACKEND_NN_H
#define TL_BACKEND_NN_H

#include "core/tensor.h"

/* Statistics over outer and inner, one a channel. x, y, g, dx (outer, channels, inner); the others (channels), compute.
 * batch_stats: mean and invstd come from x, and the running ones (any floating dtype, or both NULL) move by momentum:
 * run += momentum * (new - run), with the unbiased variance. Otherwise mean and invstd come from the running ones. */
typedef struct tl_batch_norm_args {
  int64_t outer, channels, inner;
  tl_tensor *x, *w, *b;                  /* w, b or NULL */
  tl_tensor *running_mean, *running_var; /* or NULL with batch_stats */
  bool batch_stats;
  double momentum, eps;
  tl_tensor *y, *mean, *invstd; /* written */
} tl_batch_norm_args;

typedef struct tl_batch_norm_grad_args {
  int64_t outer, channels, inner;
  tl_tensor *g, *x, *w, *mean, *invstd; /* w or NULL */
  bool batch_stats;                     /* mean and invstd depend on x */
  tl_tensor *dx, *dw, *db;              /* written; each or NULL */
} tl_batch_norm_grad_args;

/* Statistics of each row. x, y, g, dx (rows, channels, inner); row r belongs to group r % groups; w, b, dw, db (groups,
 * channels), compute; mean, invstd (rows), compute. centre false: the mean is 0 and stays unsubtracted (RMS norm). */
typedef struct tl_row_norm_args {
  int64_t rows, groups, channels, inner;
  tl_tensor *x, *w, *b; /* w, b or NULL */
  bool centre;
  double eps;
  tl_tensor *y, *mean, *invstd; /* written; mean NULL without centre */
} tl_row_norm_args;

typedef struct tl_row_norm_grad_args {
  int64_t rows, groups, channels, inner;
  tl_tensor *g, *x, *w, *mean, *invstd; /* w or NULL; mean NULL without centre */
  tl_tensor *dx, *dw, *db;              /* written; each or NULL */
} tl_row_norm_grad_args;

/* Over the middle dim of (outer, n, inner). A line that is all -inf: softmax 0, log-softmax -inf, gradients 0. */
typedef struct tl_softmax_args {
  int64_t outer, n, inner;
  bool log;
  tl_tensor *x, *y;
} tl_softmax_args;

typedef struct tl_softmax_grad_args {
  int64_t outer, n, inner;
  bool log;
  tl_tensor *g, *y, *dx;
} tl_softmax_grad_args;

/* Losses that compare element by element: the rows of ops/losses.def. x, t and the weights have numel elements. */
enum tl_loss_kind {
#define TL_LOSS(name, value, dx, dt) TL_LOSS_##name,
#include "ops/losses.def"
  TL_LOSS_KINDS
};

/* y: numel elements, or one with `reduce`: scale times their sum. unit: x and t outside 0..1 are an error (nan is not);
 * the kernel then sets *bad to the first one's place in the row-major order, else leaves it. */
typedef struct tl_loss_args {
  int kind;
  int64_t numel;
  double p;                  /* the row's parameter */
  tl_tensor *x, *t, *w, *pw; /* w, pw or NULL: 1 */
  bool reduce, unit;
  double scale;
  tl_tensor *y;
  int64_t *bad;
} tl_loss_args;

/* g as y above; scale as above */
typedef struct tl_loss_grad_args {
  int kind;
  int64_t numel;
  double p;
  tl_tensor *x, *t, *w, *pw, *g;
  double scale;
  tl_tensor *dx, *dt; /* each or NULL */
} tl_loss_grad_args;

/* Classification: x (outer, classes, inner); target int64 (outer, inner) labels, or probabilities of x's shape and dtype.
 * logits: x goes through log-softmax first (cross entropy), else it holds log-probabilities (nll). y has one element, or
 * (outer, inner) with TL_REDUCE_NONE. Mean divides by total: the sum of weight[label] over labels that are not ignored,
 * or the number of positions; total 0 gives 0. A label outside the classes that is not ignore_index: *bad becomes the
 * smallest such position (outer * inner), else it stays; a device that reports it later adds `first`. y and the gradient
 * that arrives for it may be "compute" instead of x's dtype, and dx may be x. */
typedef struct tl_class_loss_args {
  int64_t outer, classes, inner;
  bool logits;
  tl_tensor *x, *target, *weight; /* weight (classes), compute, or NULL */
  int64_t ignore_index;
  double smoothing;
  int reduction;
  int64_t first;    /* the position of x's first line, where x is a part of what the user sees */
  tl_tensor *y;     /* written */
  tl_tensor *lse;   /* written, compute: (2, outer, inner): maximum, log of the sum of exp(x - maximum); NULL for nll */
  tl_tensor *total; /* written, compute: (1) */
  int64_t *bad;
} tl_class_loss_args;

typedef struct tl_class_loss_grad_args {
  int64_t outer, classes, inner;
  bool logits;
  tl_tensor *x, *target, *weight, *lse, *total, *g; /* g as y above */
  int64_t ignore_index;
  double smoothing;
  int reduction;
  tl_tensor *dx, *dt; /* each or NULL; dt only for probabilities */
} tl_class_loss_grad_args;

/* out (n, width) = rows ids[i] of w (rows, width). An id outside 0..rows-1: *bad becomes its smallest place, else stays. */
typedef struct tl_embedding_args {
  int64_t n, rows, width;
  tl_tensor *w, *ids, *out; /* ids int64 */
  int64_t *bad;
} tl_embedding_args;

/* dw (rows, width) = sums of the rows of g (n, width) by id, in the order of ids; row `padding` (-1: none) stays 0.
 * add: they are added to what dw holds. */
typedef struct tl_embedding_grad_args {
  int64_t n, rows, width, padding;
  bool add;
  tl_tensor *g, *ids, *dw;
} tl_embedding_grad_args;

/* Pairs of elements of each row turn by an angle, or back by it: the first of a pair becomes a cos - b sin, the second
 * b cos + a sin. x (.., T, D) with rows anywhere, each contiguous, and not empty; y of its shape; cos, sin (T, R), compute:
 * pairs are (i, i + R), or (2i, 2i + 1) when interleaved; elements from 2R on stay. */
typedef struct tl_rope_args {
  tl_tensor *x, *cos, *sin;
  bool interleaved, back;
  tl_tensor *y; /* written */
} tl_rope_args;

/* out = softmax(scale q k^T + mask) v. q (B, H, T, D), k (B, Hk, S, D), v (B, Hk, S, V), out (B, H, T, V), mask (B, H, T,
 * S): 4-d, any strides, no dim of q or v but D and V is 0; H is a multiple of Hk, and head h reads key head h / (H / Hk).
 * mask is bool (true: takes part) or compute (added). causal: query t sees keys 0..t. A row that sees nothing gives 0. A
 * weight is dropped where number offset + its place in (B, H, T, S) of the stream `seed` is below `dropout`, and divided
 * by 1 - dropout elsewhere. */
typedef struct tl_attention_args {
  tl_tensor *q, *k, *v, *mask; /* mask or NULL */
  bool causal;
  double scale, dropout;
  uint64_t seed, offset;
  tl_tensor *out; /* written */
  tl_tensor *lse; /* written, compute: (B, H, T), contiguous: log of the sum of exp(scores), -inf for none; or NULL */
} tl_attention_args;

typedef struct tl_attention_grad_args {
  tl_attention_args in;    /* as above; out and lse are read */
  tl_tensor *g;            /* as out */
  tl_tensor *dq, *dk, *dv; /* written, as q, k, v; each or NULL */
} tl_attention_grad_args;

#endif
