/* optimizer.h: what an optimizer is made of, for the files of this folder. */
#ifndef TL_TRAIN_OPTIMIZER_H
#define TL_TRAIN_OPTIMIZER_H

#include "backend/update.h"
#include "core/tensor.h"

enum { TL_MASTER = TL_UPDATE_STATES, TL_ABSMAX, TL_SLOT_TENSORS = TL_ABSMAX + TL_SMALL_STATES };

typedef struct tl_counts tl_counts; /* progress.h */

/* One parameter and its state. */
typedef struct tl_slot {
  tl_tensor *param;                  /* held */
  tl_tensor *state[TL_SLOT_TENSORS]; /* held; NULL until needed; then master copy, absmax of codes */
  tl_device counted_on;              /* not TL_CPU: the three numbers below are that device's, see tl_counts_pull */
  int64_t step;                      /* updates so far */
  double mu_product;                 /* NAdam's, and what it becomes when the step succeeds */
  double next_mu_product;
  bool primed;                       /* SGD's momentum buffer has its first value */
  tl_tensor *param_copy, *grad_copy; /* contiguous stand-ins during a step */
} tl_slot;

typedef struct tl_group {
  tl_param_group options;
  int first, count; /* its slots */
} tl_group;

struct tl_optimizer {
  int refs, kind;
  int group_count, slot_count;
  tl_group **groups; /* each in its own block: hosts keep pointers to the options */
  tl_slot *slots;
  tl_update *updates;            /* [slot_count] scratch of a step */
  tl_update_coefficients *coefs; /* [slot_count] likewise */
  int *updated;                  /* [slot_count] the slot of each update */
  tl_counts *counts;             /* of the devices that count by themselves */
  int64_t calls;                 /* of step, skipped ones included: the schedules ask */
  bool warned;                   /* a schedule has told that it was stepped first */
};

/* ---- optimizer.c ---- */

/* A gradient scaler's flag in the memory of a device: not 0: a gradient was not finite. */
typedef struct tl_found {
  tl_device device;
  const float *flag;
} tl_found;

/* tl_optimizer_step, but nothing moves on a device whose flag is set. */
tl_status tl_optimizer_step_unless(tl_optimizer *o, int n, const tl_found *found);

/* ---- state.c ---- */

/* Of a parameter's state in such a group. */
int tl_state_dtype(const tl_tensor *param, const tl_param_group *g);
/* Slot i has the state tensors `states` (bits) and the master that it needs now, and they fit the parameter. */
tl_status tl_state_ensure(const tl_optimizer *o, int i, const tl_param_group *g, unsigned states);

/* ---- rules.c ---- */

/* Options in their domain? The failure names the option. */
tl_status tl_check_options(int kind, const tl_param_group *options);
/* How the slot moves in its next step: the rule, its coefficients, and (bits) the state tensors it needs, which the
 * rule takes in this order. *mu_product is what NAdam's becomes. */
int tl_choose_rule(int kind, const tl_param_group *g, const tl_slot *s, tl_update_coefficients *c, unsigned *states,
                   double *mu_product);
/* A rule of the group on the same states, whatever step it is. */
int tl_group_rule(int kind, const tl_param_group *g, unsigned *states);

#endif
