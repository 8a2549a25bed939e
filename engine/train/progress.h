/* progress.h: an optimizer's counts in the memory of the devices that keep them there (tl_kernels.plan). */
#ifndef TL_TRAIN_PROGRESS_H
#define TL_TRAIN_PROGRESS_H

#include "train/optimizer.h"

/* Does this parameter's device count by itself? */
bool tl_counts_itself(const tl_tensor *p);

/* The device's counts of o, made when they are not there yet. */
tl_status tl_counts_on(tl_optimizer *o, tl_device device, tl_counts **out);
/* Where the device leaves the coefficients of slot i. */
const tl_update_coefficients *tl_counts_by(const tl_counts *c, int i);
/* The coefficients of the next step of n slots, all on the device of c; found as in tl_plan. */
tl_status tl_counts_plan(tl_optimizer *o, tl_counts *c, int n, const int *slots, const float *found);
/* Slots learn what the devices have counted: waits for them if they have. */
tl_status tl_counts_pull(const tl_optimizer *o);
/* Slots were changed since: the devices learn that before their next step. */
void tl_counts_changed(const tl_optimizer *o);
/* What was changed on the host goes to the devices now: before a recorded step is replayed. */
tl_status tl_counts_refresh(tl_optimizer *o);
void tl_counts_free(tl_optimizer *o);

#endif
