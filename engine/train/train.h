/* train.h: optimizers and learning-rate schedules (a part of tlua.h). */

/* ---- optimizers (engine/train/optimizer.c, rules.c) ---------------------------------------------------------------- */

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
  bool nesterov, maximize, amsgrad, centered, decoupled_weight_decay;
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
/* Updates every parameter that has a gradient, all of them by one kernel call a device. Nothing is recorded. float16 and
 * bfloat16 parameters keep a float32 master copy, which an outside change of the parameter overrides. */
TL_API tl_status tl_optimizer_step(tl_optimizer *o);
TL_API tl_status tl_optimizer_zero_grad(tl_optimizer *o, bool set_to_nil);
/* Somebody decided not to step (a gradient scaler): for the schedules it counts as a call, for the parameters not. */
TL_API void tl_optimizer_skip(tl_optimizer *o);

/* State, by the parameter's position over all groups. Tensors: name k of a kind (NULL past the last), e.g. "exp_avg";
 * *out = NULL where there is none yet. set_state copies; a float16 parameter's state is float32. */
TL_API const char *tl_optimizer_state_name(int kind, int k);
TL_API tl_status tl_optimizer_param(const tl_optimizer *o, int i, tl_tensor **out);
TL_API tl_status tl_optimizer_state(const tl_optimizer *o, int i, int k, tl_tensor **out);
TL_API tl_status tl_optimizer_set_state(tl_optimizer *o, int i, int k, tl_tensor *value); /* NULL forgets it */
/* Numbers: steps taken, and NAdam's product of momenta (1 for the others). */
TL_API tl_status tl_optimizer_progress(const tl_optimizer *o, int i, double *step, double *mu_product);
TL_API tl_status tl_optimizer_set_progress(tl_optimizer *o, int i, double step, double mu_product);
