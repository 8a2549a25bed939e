/* train.h: optimizers, learning-rate schedules and the choice of what to prune (a part of tlua.h). */

/* ---- optimizers (engine/train/optimizer.c, rules.c) ------------------------------------------------------------ */

typedef enum tl_optimizer_kind {
  TL_SGD = 0, /* Sutskever et al. 2013 */
  TL_ADAM,    /* Kingma & Ba 2015; amsgrad: Reddi et al. 2018 */
  TL_ADAMW,   /* Loshchilov & Hutter 2019 */
  TL_RMSPROP, /* Hinton's lecture 6e; centered: Graves 2013 */
  TL_ADAGRAD, /* Duchi et al. 2011 */
  TL_NADAM,   /* Dozat 2016 */
  TL_RADAM,   /* Liu et al. 2020 */
  TL_OPTIMIZERS
} tl_optimizer_kind;

/* The options of one group of parameters. An optimizer reads the ones of its kind; the host may change them between
 * steps (the address never changes while the optimizer lives). */
typedef struct tl_param_group {
  double lr, initial_lr; /* initial_lr: what the schedules start from; nan until one was made */
  double momentum, dampening, weight_decay;
  double beta1, beta2, eps;
  double alpha;                               /* RMSprop's smoothing */
  double lr_decay, initial_accumulator_value; /* Adagrad's */
  double momentum_decay;                      /* NAdam's */
  int state_dtype; /* Adam's and AdamW's: TL_FLOAT32, TL_BFLOAT16, or TL_UINT8: 8-bit codes by blocks of 256 elements */
  bool nesterov, maximize, amsgrad, centered, decoupled_weight_decay;
  /* bfloat16 parameters do without a master copy: the update rounds up or down at random, such that the mean is right
   * (numbers of this thread's default generator). Others round as always. */
  bool stochastic_rounding;
} tl_param_group;

typedef struct tl_optimizer tl_optimizer;

TL_API const char *tl_optimizer_name(int kind);                            /* "SGD"; NULL if there is no such kind */
TL_API tl_status tl_optimizer_defaults(int kind, tl_param_group *options); /* PyTorch's defaults */
TL_API tl_status tl_optimizer_new(int kind, tl_optimizer **out);           /* without parameters */
TL_API void tl_optimizer_free(tl_optimizer *o);                            /* drops one reference; NULL is fine */
/* n floating leaves become a group; the optimizer keeps references. One that is listed twice is taken once; one that
 * another group has is an error. *group (may be NULL) points to the group's own options, a copy of `options`. */
TL_API tl_status tl_optimizer_add_group(tl_optimizer *o, int n, tl_tensor *const *params, const tl_param_group *options,
                                        tl_param_group **group);
TL_API int tl_optimizer_groups(const tl_optimizer *o);
TL_API tl_param_group *tl_optimizer_group(const tl_optimizer *o, int group); /* NULL when out of range */
TL_API int tl_optimizer_group_size(const tl_optimizer *o, int group);        /* parameters, without repetitions */
/* Updates every parameter that has a gradient, all of them by one kernel call a device. Nothing is recorded. float16
 * and bfloat16 parameters keep a float32 master copy (see stochastic_rounding), which an outside change of the
 * parameter overrides. */
TL_API tl_status tl_optimizer_step(tl_optimizer *o);
TL_API tl_status tl_optimizer_zero_grad(tl_optimizer *o, bool set_to_nil);
TL_API tl_device tl_optimizer_device(const tl_optimizer *o); /* of its first parameter; TL_CPU without one */
/* Somebody decided not to step (a gradient scaler): for the schedules it counts as a call, for the parameters not. */
TL_API void tl_optimizer_skip(tl_optimizer *o);

/* State, by the parameter's position over all groups. Tensors: name k of a kind (NULL past the last), e.g. "exp_avg";
 * *out = NULL where there is none yet. set_state copies; a float16 parameter's state is float32. */
TL_API const char *tl_optimizer_state_name(int kind, int k);
TL_API tl_status tl_optimizer_state(const tl_optimizer *o, int i, int k, tl_tensor **out);
TL_API tl_status tl_optimizer_set_state(tl_optimizer *o, int i, int k, tl_tensor *value); /* NULL forgets it */
/* 8-bit state, where state() gives the codes: the largest |x| of each block (ceil(n / 256), float32); *out = NULL for any
 * other state. set_codes restores such a pair exactly, or converts it where the group wants another dtype; set_state
 * takes plain numbers and converts them, too. Parameters of less than 4096 elements keep float32 state. */
TL_API tl_status tl_optimizer_absmax(const tl_optimizer *o, int i, int k, tl_tensor **out);
TL_API tl_status tl_optimizer_set_codes(tl_optimizer *o, int i, int k, tl_tensor *codes, tl_tensor *absmax);
/* Numbers: steps taken, and NAdam's product of momenta (1 for the others). */
TL_API tl_status tl_optimizer_progress(const tl_optimizer *o, int i, double *step, double *mu_product);
TL_API tl_status tl_optimizer_set_progress(tl_optimizer *o, int i, double step, double mu_product);

/* ---- gradient scaling (engine/train/scaler.c) ------------------------------------------------------------------ */

/* Micikevicius et al. 2018, as PyTorch's GradScaler has it: the loss is multiplied by `scale` so that small gradients
 * survive float16; before an optimizer's step they are divided by it again, and a step whose gradients are not all
 * finite is skipped. After such an update the scale becomes scale * backoff_factor, after growth_interval good ones in
 * a row scale * growth_factor. It is a float32 number and stays between the smallest normal and the largest one. */
typedef struct tl_scaler_state {
  double scale, growth_factor, backoff_factor, growth_interval;
  double growth_tracker; /* good updates since the scale last changed */
  bool enabled;          /* false: scale hands its argument back, step steps, the others do nothing */
} tl_scaler_state;

typedef struct tl_scaler tl_scaler;

TL_API void tl_scaler_defaults(tl_scaler_state *state); /* 65536, 2, 0.5, 2000, 0, true */
TL_API tl_status tl_scaler_new(const tl_scaler_state *state, tl_scaler **out);
TL_API void tl_scaler_free(tl_scaler *s); /* NULL is fine */
/* Where gradients are on a CUDA device, the scale is there, too: it adapts without the host, and `get` waits for it. */
TL_API tl_status tl_scaler_get(const tl_scaler *s, tl_scaler_state *state);
/* TL_ERR_VALUE names a value out of its domain. What was recorded since the last update stays; `enabled` is fixed. */
TL_API tl_status tl_scaler_set(tl_scaler *s, const tl_scaler_state *state);
TL_API tl_status tl_scaler_scale(tl_scaler *s, tl_tensor *x, tl_tensor **out); /* x * scale, recorded */
/* Divides the gradients of o's parameters by the scale, for clipping between that and the step. TL_ERR_STATE: a second
 * time, or after the step; TL_ERR_DTYPE: a float16 gradient (parameters and gradients stay float32). */
TL_API tl_status tl_scaler_unscale(tl_scaler *s, tl_optimizer *o);
/* Unscales if that was not done yet, then steps if all gradients are finite. *stepped (may be NULL): did it? A CUDA
 * device decides by itself: asking means waiting for it.
 * TL_ERR_STATE: a second time before the update, or no parameter has a gradient. */
TL_API tl_status tl_scaler_step(tl_scaler *s, tl_optimizer *o, bool *stepped);
/* The scale for the next iteration; new_scale (nan: by the rule) sets it. TL_ERR_STATE: nothing was unscaled before. */
TL_API tl_status tl_scaler_update(tl_scaler *s, double new_scale);

/* ---- learning-rate schedules (engine/train/scheduler.c, schedules.c) ------------------------------------------- */

/* PyTorch's names and formulas; t counts the steps from 0. LAMBDA and MULTIPLICATIVE take factors that the host
 * computes: see tl_scheduler_set_factors. */
typedef enum tl_schedule_kind {
  TL_LAMBDA_LR = 0,     /* initial_lr * factor(t) */
  TL_MULTIPLICATIVE_LR, /* lr * factor(t) */
  TL_STEP_LR,
  TL_MULTI_STEP_LR,
  TL_CONSTANT_LR,
  TL_LINEAR_LR,
  TL_EXPONENTIAL_LR,
  TL_POLYNOMIAL_LR,
  TL_COSINE_LR,          /* Loshchilov & Hutter 2017, without restarts */
  TL_COSINE_RESTARTS_LR, /* with them */
  TL_CYCLIC_LR,          /* Smith 2017 */
  TL_ONE_CYCLE_LR,       /* Smith & Topin 2018 */
  TL_PLATEAU_LR,
  TL_ADAM_LR,       /* initial_lr / (1 + lr_decay * t) */
  TL_SEQUENTIAL_LR, /* one schedule after another, each from its own t = 0 */
  TL_CHAINED_LR,    /* several at once */
  TL_SCHEDULES
} tl_schedule_kind;

/* A kind reads the fields of its name in PyTorch. Arrays hold one value a parameter group and are copied. */
typedef struct tl_schedule_options {
  double last_epoch; /* -1 starts; else the optimizer's groups must have an initial_lr */
  double gamma, factor, start_factor, end_factor, power, eta_min, lr_decay;
  double step_size, total_iters, T_max, T_0, T_mult;
  double step_size_up, step_size_down;                         /* CyclicLR */
  double total_steps, pct_start, div_factor, final_div_factor; /* OneCycleLR */
  double patience, threshold, cooldown, eps;                   /* ReduceLROnPlateau */
  int mode; /* CyclicLR: 0 triangular, 1 triangular2, 2 exp_range, 3 the host's factor; plateau: 0 min, 1 max */
  int threshold_mode;                       /* 0 rel, 1 abs */
  bool cycle_momentum, three_phase, linear; /* linear: OneCycleLR's anneal_strategy */
  int milestone_count;
  const double *milestones;
  const double *base_lr, *max_lr, *min_lr, *base_momentum, *max_momentum;
  const double *factors; /* of the first step, for kinds that take them */
} tl_schedule_options;

/* What changes from step to step: read and written by the host to save and restore. */
typedef struct tl_schedule_progress {
  double last_epoch, step_count;
  double T_cur, T_i;                             /* CosineAnnealingWarmRestarts */
  double best, num_bad_epochs, cooldown_counter; /* ReduceLROnPlateau */
} tl_schedule_progress;

typedef struct tl_scheduler tl_scheduler;

TL_API const char *tl_schedule_name(int kind);                                 /* "StepLR"; NULL: no such kind */
TL_API tl_status tl_schedule_defaults(int kind, tl_schedule_options *options); /* PyTorch's; nan where it has none */
/* Makes the schedule and takes its initial step: the optimizer's groups get their first lr (and momentum). */
TL_API tl_status tl_scheduler_new(int kind, tl_optimizer *o, const tl_schedule_options *options, tl_scheduler **out);
/* Schedules of schedules, all of one optimizer, plateau excepted. The parts must not be stepped on their own. A
 * sequence has n-1 milestones, ascending; it winds its parts back and sets the lr to what the first one starts with. */
TL_API tl_status tl_scheduler_sequence(tl_optimizer *o, int n, tl_scheduler *const *parts, const double *milestones,
                                       tl_scheduler **out);
TL_API tl_status tl_scheduler_chain(int n, tl_scheduler *const *parts, tl_scheduler **out);
TL_API void tl_scheduler_free(tl_scheduler *s); /* drops one reference; NULL is fine */
/* One step. *early (may be NULL) tells, once an optimizer, that the optimizer has not stepped yet: the schedule's first
 * value is lost, which the host may want to say. */
TL_API tl_status tl_scheduler_step(tl_scheduler *s, bool *early);
TL_API tl_status tl_scheduler_step_metric(tl_scheduler *s, double metric);         /* ReduceLROnPlateau */
TL_API tl_status tl_scheduler_step_to(tl_scheduler *s, double epoch, bool *early); /* CosineAnnealingWarmRestarts */
/* Functions of the host: before a step, one factor a group of the host's function at tl_scheduler_argument(). restart:
 * the step is the first of a part of a sequence. tl_scheduler_next_part: where a sequence's next step goes. */
TL_API double tl_scheduler_argument(const tl_scheduler *s, bool restart);
TL_API tl_status tl_scheduler_set_factors(tl_scheduler *s, int n, const double *factors);
TL_API int tl_scheduler_next_part(const tl_scheduler *s, bool restart, bool *part_restarts);
TL_API tl_schedule_progress *tl_scheduler_progress(tl_scheduler *s);
TL_API int tl_scheduler_groups(const tl_scheduler *s);
TL_API double *tl_scheduler_base_lrs(tl_scheduler *s); /* [groups] what the formulas start from */
TL_API double *tl_scheduler_last_lrs(tl_scheduler *s); /* [groups] what the last step set */

/* ---- pruning (engine/train/prune.c) ---------------------------------------------------------------------------- */

/* How many of n a fraction (0..1) is: amount * n, rounded half to even, as PyTorch does. */
TL_API tl_status tl_prune_count(double amount, double n, double *count);
/* The mask (0 and 1, of the scores' shape, dtype and device) after `count` more elements of a floating tensor went: those
 * of the smallest |score| among the ones that `mask` (the former mask; NULL: all ones) still has. Of equal ones the first
 * in row-major order goes first; nan counts as the largest. TL_ERR_VALUE when fewer than `count` are left. */
TL_API tl_status tl_prune_smallest(tl_tensor *scores, tl_tensor *mask, int64_t count, tl_tensor **out);
/* The mask that leaves, of every `group` consecutive elements along d, the `keep` of the largest |score|; of equal ones
 * the last stay, and what `mask` took away stays away. 2 of 4: Mishra et al. 2021. */
TL_API tl_status tl_prune_groups(tl_tensor *scores, tl_tensor *mask, int d, int keep, int group, tl_tensor **out);

/* ---- sparse weights (engine/train/sparse.c): inference on the CPU ----------------------------------------------- */

/* A float32 weight w (rows, columns) without its zeros, in compressed rows: row r has values[i] in columns[i] (from 0,
 * ascending) for i from first[r] to first[r + 1] - 1; columns and first are int32. */
TL_API tl_status tl_sparse_rows(tl_tensor *w, tl_tensor **values, tl_tensor **columns, tl_tensor **first);
/* y (.., rows) = x (.., in) w^T + b for such a w with `in` columns; b (rows) may be NULL. No gradient: TL_ERR_STATE when
 * one of them would need it. In an autocast block it computes in float32. TL_ERR_VALUE for a column that is not < in. */
TL_API tl_status tl_sparse_linear(tl_tensor *x, tl_tensor *values, tl_tensor *columns, tl_tensor *first, tl_tensor *b,
                                  int64_t in, tl_tensor **out);
