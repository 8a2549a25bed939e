/* update.h: what tl_kernels.update is given: parameters, gradients and state, and the rule that moves them. */
#ifndef TL_BACKEND_UPDATE_H
#define TL_BACKEND_UPDATE_H

#include <stdint.h>

#define TL_UPDATE_STATES 3
#define TL_SMALL_STATES 2  /* of the rule (adam) whose states may be bfloat16 or 8-bit codes: kernels/quantise.h */
#define TL_QUANT_BLOCK 256 /* elements that share a largest value */

/* The rules and how many state tensors each one reads and writes; formulas in kernels/update.h. */
#define TL_UPDATE_RULES(X)                           \
  X(sgd, 0)                                          \
  X(sgd_first, 1) /* fills the momentum buffer */    \
  X(sgd_momentum, 1)                                 \
  X(nesterov_first, 1)                               \
  X(nesterov, 1)                                     \
  X(adam, 2)                                         \
  X(amsgrad, 3)                                      \
  X(rmsprop, 1)                                      \
  X(rmsprop_momentum, 2)                             \
  X(rmsprop_centered, 2)                             \
  X(rmsprop_centered_momentum, 3)                    \
  X(adagrad, 1)                                      \
  X(nadam, 2)                                        \
  X(radam, 2) /* before the variance is tractable */ \
  X(radam_rectified, 2)

enum tl_update_rule {
#define TL_UPDATE_ENUM(name, states) TL_UPDATE_##name,
  TL_UPDATE_RULES(TL_UPDATE_ENUM)
#undef TL_UPDATE_ENUM
      TL_UPDATE_COUNT
};

/* Every rule's numbers, computed once a step in double (kernels/step.h). */
#define TL_UPDATE_COEFFICIENTS(X)                                \
  X(sign)  /* -1 to maximize */                                  \
  X(decay) /* g += decay * p */                                  \
  X(keep)  /* p *= keep */                                       \
  X(rate)                                                        \
  X(rate2) /* nadam: of the gradient; rate is of the momentum */ \
  X(beta1)                                                       \
  X(rest1) /* the new value's weight */                          \
  X(beta2)                                                       \
  X(rest2)                                                       \
  X(eps)                                                         \
  X(scale)

typedef struct tl_update_coefficients {
#define TL_UPDATE_FIELD(name) double name;
  TL_UPDATE_COEFFICIENTS(TL_UPDATE_FIELD)
#undef TL_UPDATE_FIELD
  int32_t rule;
  int32_t skip; /* 1: nothing moves, because a gradient scaler found a gradient that is not finite */
  int64_t step; /* taken before this one */
} tl_update_coefficients;

/* One parameter: n contiguous elements of everything. param and grad are of `dtype`; state is float64 for float64
 * parameters, else float32. master: float32, for float16 and bfloat16 parameters only. A bfloat16 parameter without a
 * master is rounded stochastically: element i takes number offset + i of the Philox stream `seed`.
 *
 * state_dtype TL_BFLOAT16 or TL_UINT8 (rule adam only, no float64 parameter): state is of that dtype, absmax[k] has a
 * float32 for each TL_QUANT_BLOCK codes of state[k]. Both are rounded stochastically, by `key` and by->step.
 *
 * Where tl_kernels.plan is there, `by` lies in the device's memory and plan has written it just before, in stream order:
 * the kernel reads it there. by->skip is to be honoured, and the rule that runs is by->rule: the same as `rule`, or
 * another of the same states (sgd_first, sgd_momentum; nesterov_first, nesterov; radam, radam_rectified), because how
 * many steps were taken is known on the device only. */
typedef struct tl_update {
  int rule, dtype;
  int64_t n;
  void *param;
  const void *grad;
  float *master;
  void *state[TL_UPDATE_STATES];
  const tl_update_coefficients *by;
  uint64_t seed, offset;
  int state_dtype;
  uint32_t key;
  float *absmax[TL_SMALL_STATES];
} tl_update;

/* How far a parameter is, in the memory of a device that has tl_kernels.plan. */
typedef struct tl_progress {
  double step, mu_product; /* as in tl_optimizer_progress */
  int32_t primed;          /* SGD's momentum buffer has its first value */
  int32_t unused;
} tl_progress;

/* One step's coefficients for n parameters: parameter i is in group group[i], -1: it takes no part. All pointers are to
 * the device's memory. found (may be NULL): the step is skipped where *found != 0. */
struct tl_param_group;
typedef struct tl_plan {
  int kind, n; /* a tl_optimizer_kind */
  const struct tl_param_group *groups;
  const int32_t *group;
  tl_progress *progress; /* moves on unless the step is skipped */
  tl_update_coefficients *by;
  const float *found;
} tl_plan;

/* A gradient scaler's state in a device's memory. */
typedef struct tl_scale {
  float scale, inverse; /* 1 / scale */
  int32_t tracker, unused;
} tl_scale;

/* The rule of tl_scaler_update: *at from n found flags, which become 0. */
typedef struct tl_scale_update {
  double growth_factor, backoff_factor, growth_interval;
  tl_scale *at;
  float *found; /* [n] */
  int n;
} tl_scale_update;

/* n contiguous elements of a floating dtype: what the kernels over lists of gradients are given. */
typedef struct tl_span {
  void *data;
  int64_t n;
  int dtype;
} tl_span;

#endif
