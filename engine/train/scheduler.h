/* scheduler.h: what a schedule is made of, for the files of this folder. */
#ifndef TL_TRAIN_SCHEDULER_H
#define TL_TRAIN_SCHEDULER_H

#include "train/optimizer.h"

/* How a step is taken. */
enum tl_advance {
  TL_ADVANCE_INITIAL, /* the one that comes with construction */
  TL_ADVANCE_STEP,
  TL_ADVANCE_RESTART /* t = 0 again, whatever the lr is: the formula's own value */
};

enum {
  TL_BASE_LR,
  TL_LAST_LR,
  TL_NEXT_LR,
  TL_NEXT_MOMENTUM,
  TL_FACTOR,
  TL_MAX_LR,
  TL_MIN_LR,
  TL_BASE_MOMENTUM,
  TL_MAX_MOMENTUM,
  TL_ROWS
};

struct tl_scheduler {
  int refs, kind, groups;
  tl_optimizer *o;        /* held */
  tl_schedule_options by; /* its arrays are not used: */
  double *row[TL_ROWS];   /* [groups] each, one block, owned by row[0] */
  double *milestones;     /* owned */
  int milestone_count;
  tl_schedule_progress at;
  tl_scheduler **parts; /* held */
  int part_count;
};

/* ---- schedules.c ---- */

tl_status tl_check_schedule(int kind, const tl_optimizer *o, const tl_schedule_options *options);
/* Fills row[TL_NEXT_LR] (and TL_NEXT_MOMENTUM, if the schedule cycles it) for t = epoch. */
void tl_schedule_values(tl_scheduler *s, double epoch, int how);
/* Does the optimizer have a momentum or a beta1 that can be cycled? NULL if not. */
double *tl_momentum_of(const tl_optimizer *o, int group);

#endif
