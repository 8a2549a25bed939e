/* Schedules: exact values, composition with changes from outside, sequences and chains, saving, refusals. */
#include "check_tl.h"

static tl_tensor *param;
static tl_optimizer *optimizer;

static void with_lr(int kind, double lr) {
  tl_param_group g;
  param = VECTOR(1);
  ck_ok(tl_optimizer_defaults(kind, &g));
  g.lr = lr;
  ck_ok(tl_optimizer_new(kind, &optimizer));
  ck_ok(tl_optimizer_add_group(optimizer, 1, &param, &g, NULL));
}

static void done(void) {
  tl_optimizer_free(optimizer);
  tl_tensor_free(param);
}

static tl_param_group *group(void) { return tl_optimizer_group(optimizer, 0); }

static tl_schedule_options options(int kind) {
  tl_schedule_options by;
  ck_ok(tl_schedule_defaults(kind, &by));
  return by;
}

static tl_scheduler *schedule(int kind, const tl_schedule_options *by) {
  tl_scheduler *s;
  ck_ok(tl_scheduler_new(kind, optimizer, by, &s));
  return s;
}

/* The lr before each of n steps. */
static void follow(tl_scheduler *s, int n, const double *expected) {
  for (int i = 0; i < n; i++) {
    ck_assert_msg(fabs(group()->lr - expected[i]) <= 1e-5 * fabs(expected[i]) + 1e-12,
                  "step %d: lr %.9g, expected %.9g", i, group()->lr, expected[i]);
    ck_assert_double_eq(tl_scheduler_last_lrs(s)[0], group()->lr);
    if (i < n - 1) ck_ok(tl_scheduler_step(s, NULL));
  }
}
#define FOLLOW(s, ...) follow(s, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (const double[]){__VA_ARGS__})

START_TEST(cosine) {
  with_lr(TL_SGD, 1);
  tl_schedule_options by = options(TL_COSINE_LR);
  by.T_max = 3;
  tl_scheduler *s = schedule(TL_COSINE_LR, &by);
  FOLLOW(s, 1, .75, .25, 0, .25, .75, 1, .75, .25, 0);
  tl_scheduler_free(s);
  done();
}
END_TEST

START_TEST(cosine_saved_and_resumed) {
  with_lr(TL_SGD, .5);
  tl_schedule_options by = options(TL_COSINE_LR);
  by.T_max = 5;
  tl_scheduler *s = schedule(TL_COSINE_LR, &by);
  FOLLOW(s, .5, .452254, .327254, .172746);
  double lr = group()->lr;
  tl_schedule_progress at = *tl_scheduler_progress(s);
  tl_scheduler_free(s);
  done();
  with_lr(TL_SGD, .5);
  s = schedule(TL_COSINE_LR, &by);
  *tl_scheduler_progress(s) = at;
  group()->lr = tl_scheduler_last_lrs(s)[0] = lr;
  FOLLOW(s, .172746, .047746, 0);
  tl_scheduler_free(s);
  done();
}
END_TEST

START_TEST(multi_step) {
  with_lr(TL_SGD, .2);
  tl_schedule_options by = options(TL_MULTI_STEP_LR);
  by.milestones = (const double[]){2, 8};
  by.milestone_count = 2;
  tl_scheduler *s = schedule(TL_MULTI_STEP_LR, &by);
  FOLLOW(s, .2, .2, .02, .02, .02, .02, .02, .02, .002, .002);
  tl_scheduler_free(s);
  done();
}
END_TEST

static tl_scheduler *linear(double start, double n) {
  tl_schedule_options by = options(TL_LINEAR_LR);
  by.start_factor = start;
  by.total_iters = n;
  return schedule(TL_LINEAR_LR, &by);
}

static tl_scheduler *exponential(double gamma) {
  tl_schedule_options by = options(TL_EXPONENTIAL_LR);
  by.gamma = gamma;
  return schedule(TL_EXPONENTIAL_LR, &by);
}

START_TEST(sequences) {
  with_lr(TL_SGD, 1);
  tl_schedule_options by = options(TL_COSINE_LR);
  by.T_max = 4;
  tl_scheduler *parts[2] = {linear(.1, 3)}, *s;
  parts[1] = schedule(TL_COSINE_LR, &by);
  ck_ok(tl_scheduler_sequence(optimizer, 2, parts, (const double[]){3}, &s));
  for (int i = 0; i < 2; i++) tl_scheduler_free(parts[i]); /* the sequence keeps them */
  FOLLOW(s, .1, .4, .7, 1, .853553, .5, .146447, 0);
  tl_scheduler_free(s);
  done();

  with_lr(TL_SGD, 1); /* a milestone at 0 starts with the second schedule */
  parts[0] = linear(.1, 3);
  parts[1] = exponential(.9);
  ck_ok(tl_scheduler_sequence(optimizer, 2, parts, (const double[]){0}, &s));
  for (int i = 0; i < 2; i++) tl_scheduler_free(parts[i]);
  FOLLOW(s, 1, .9, .81, .729);
  tl_scheduler_free(s);
  done();
}
END_TEST

/* A sequence and a chain inside a sequence start anew at their milestone. */
START_TEST(sequences_nest) {
  with_lr(TL_SGD, 1);
  tl_scheduler *inner[2] = {exponential(.5)}, *parts[2], *s, *chained[2];
  inner[1] = linear(.1, 3);
  ck_ok(tl_scheduler_sequence(optimizer, 2, inner, (const double[]){2}, &parts[1]));
  for (int i = 0; i < 2; i++) tl_scheduler_free(inner[i]);
  parts[0] = linear(.5, 2);
  ck_ok(tl_scheduler_sequence(optimizer, 2, parts, (const double[]){3}, &s));
  for (int i = 0; i < 2; i++) tl_scheduler_free(parts[i]);
  FOLLOW(s, .5, .75, 1, 1, .5, .1, .4, .7, 1);
  tl_scheduler_free(s);
  done();

  with_lr(TL_SGD, 1);
  chained[0] = exponential(.5);
  chained[1] = exponential(.1);
  ck_ok(tl_scheduler_chain(2, chained, &parts[1]));
  parts[0] = linear(.5, 2);
  ck_ok(tl_scheduler_sequence(optimizer, 2, parts, (const double[]){2}, &s));
  for (int i = 0; i < 2; i++) tl_scheduler_free(parts[i]), tl_scheduler_free(chained[i]);
  FOLLOW(s, .5, .75, 1, .05, .0025);
  tl_scheduler_free(s);
  done();
}
END_TEST

START_TEST(chain) {
  with_lr(TL_SGD, 1);
  tl_schedule_options by = options(TL_CONSTANT_LR);
  by.factor = .1;
  by.total_iters = 2;
  tl_scheduler *parts[2] = {schedule(TL_CONSTANT_LR, &by), exponential(.9)}, *s;
  ck_ok(tl_scheduler_chain(2, parts, &s));
  for (int i = 0; i < 2; i++) tl_scheduler_free(parts[i]);
  FOLLOW(s, .1, .09, .81, .729, .6561);
  tl_scheduler_free(s);
  done();
}
END_TEST

START_TEST(one_cycle) {
  with_lr(TL_SGD, 1);
  const double max_lr = 1, low = .85, high = .95;
  tl_schedule_options by = options(TL_ONE_CYCLE_LR);
  by.max_lr = &max_lr;
  by.base_momentum = &low;
  by.max_momentum = &high;
  by.total_steps = 10;
  tl_scheduler *s = schedule(TL_ONE_CYCLE_LR, &by);
  ck_assert_double_eq(group()->momentum, .95);
  FOLLOW(s, .04, .52, 1);
  ck_assert_double_eq_tol(group()->momentum, .85, 1e-12);
  FOLLOW(s, 1, .950485, .811746, .611262, .388742, .188258, .049519, 4e-6);
  ck_assert_double_eq_tol(group()->momentum, .95, 1e-12);
  ck_ok(tl_scheduler_step(s, NULL)); /* PyTorch allows one more: here it stays at the end */
  ck_assert_double_eq_tol(group()->lr, 4e-6, 1e-12);
  ck_fails(tl_scheduler_step(s, NULL), TL_ERR_STATE, "step 11 of a schedule of 10");
  ck_assert_double_eq(tl_scheduler_progress(s)->last_epoch, 10);
  tl_scheduler_free(s);
  done();

  with_lr(TL_ADAM, 1);
  s = schedule(TL_ONE_CYCLE_LR, &by);
  ck_assert_double_eq(group()->beta1, .95);
  for (int i = 0; i < 2; i++) ck_ok(tl_scheduler_step(s, NULL));
  ck_assert_double_eq_tol(group()->beta1, .85, 1e-12);
  tl_scheduler_free(s);
  done();

  with_lr(TL_ADAGRAD, 1);
  ck_fails(tl_scheduler_new(TL_ONE_CYCLE_LR, optimizer, &by, &s), TL_ERR_VALUE, "no momentum");
  done();
}
END_TEST

START_TEST(one_cycle_phases_of_no_length) {
  const double max_lr = 1, pct[4] = {0, .1, .5, 1};
  for (int total = 1; total <= 10; total++)
    for (int k = 0; k < 4; k++)
      for (int three = 0; three < 2; three++) {
        with_lr(TL_SGD, 1);
        tl_schedule_options by = options(TL_ONE_CYCLE_LR);
        by.max_lr = &max_lr;
        by.cycle_momentum = false;
        by.total_steps = total;
        by.pct_start = pct[k];
        by.three_phase = three;
        tl_scheduler *s = schedule(TL_ONE_CYCLE_LR, &by);
        for (int i = 0; i < total; i++) {
          ck_assert_msg(group()->lr >= 4e-6 - 1e-12 && group()->lr <= 1, "total %d, pct_start %g, step %d: %g", total,
                        pct[k], i, group()->lr);
          ck_ok(tl_scheduler_step(s, NULL));
        }
        tl_scheduler_free(s);
        done();
      }
}
END_TEST

static tl_scheduler *plateau(int mode, double patience, double cooldown, double factor) {
  static const double none = 0;
  tl_schedule_options by = options(TL_PLATEAU_LR);
  by.mode = mode;
  by.patience = patience;
  by.cooldown = cooldown;
  by.factor = factor;
  by.min_lr = &none;
  return schedule(TL_PLATEAU_LR, &by);
}

START_TEST(plateau_waits_and_cools_down) {
  with_lr(TL_SGD, 1);
  tl_scheduler *s = plateau(0, 1, 2, .5);
  const double metrics[] = {1, 1, 1, 1, 1, 1, 1, 1}, lr[] = {1, 1, .5, .5, .5, .5, .25, .25};
  for (int i = 0; i < 8; i++) {
    ck_ok(tl_scheduler_step_metric(s, metrics[i]));
    ck_assert_msg(group()->lr == lr[i], "step %d: %g, expected %g", i, group()->lr, lr[i]);
  }
  ck_fails(tl_scheduler_step(s, NULL), TL_ERR_VALUE, "metric");
  tl_scheduler_free(s);
  done();
}
END_TEST

START_TEST(plateau_ignores_tiny_changes) {
  with_lr(TL_SGD, 1e-8);
  tl_scheduler *s = plateau(0, 0, 0, .5);
  for (int i = 0; i < 3; i++) ck_ok(tl_scheduler_step_metric(s, 1));
  ck_assert_double_eq(group()->lr, 1e-8);
  tl_scheduler_free(s);
  done();
}
END_TEST

/* rel compares with |best|: -1, -1.1, -1.2 improve in mode min, and -1, -.9, -.8 in mode max. */
START_TEST(plateau_with_negative_metrics) {
  for (int mode = 0; mode < 2; mode++) {
    with_lr(TL_SGD, 1);
    tl_scheduler *s = plateau(mode, 0, 0, .5);
    for (int i = 0; i < 4; i++) ck_ok(tl_scheduler_step_metric(s, mode == 0 ? -1 - .1 * i : -1 + .1 * i));
    ck_assert_double_eq(group()->lr, 1);
    ck_ok(tl_scheduler_step_metric(s, NAN)); /* no improvement */
    ck_assert_double_eq(group()->lr, .5);
    tl_scheduler_free(s);
    done();
  }
}
END_TEST

START_TEST(adam_lr) {
  with_lr(TL_ADAM, .01);
  tl_schedule_options by = options(TL_ADAM_LR);
  by.lr_decay = .01;
  tl_scheduler *s = schedule(TL_ADAM_LR, &by);
  FOLLOW(s, .01, .00990099, .00980392, .00970874);
  tl_scheduler_free(s);
  done();
}
END_TEST

START_TEST(recursive_forms_compose_with_outside_changes) {
  with_lr(TL_SGD, 1);
  tl_scheduler *s = exponential(.5);
  ck_ok(tl_scheduler_step(s, NULL));
  group()->lr *= 10;
  ck_ok(tl_scheduler_step(s, NULL));
  ck_assert_double_eq(group()->lr, 2.5);
  ck_assert_double_eq(group()->initial_lr, 1);
  tl_scheduler_free(s);
  done();
}
END_TEST

START_TEST(factors_of_the_host) {
  with_lr(TL_SGD, 2);
  double factor = 1;
  tl_schedule_options by = options(TL_LAMBDA_LR);
  by.factors = &factor;
  tl_scheduler *s = schedule(TL_LAMBDA_LR, &by);
  ck_assert_double_eq(group()->lr, 2);
  ck_assert_double_eq(tl_scheduler_argument(s, false), 1);
  factor = .25;
  ck_ok(tl_scheduler_set_factors(s, 1, &factor));
  ck_ok(tl_scheduler_step(s, NULL));
  ck_assert_double_eq(group()->lr, .5);
  ck_fails(tl_scheduler_set_factors(s, 2, (const double[]){1, 1}), TL_ERR_VALUE, "2 factors");
  tl_scheduler_free(s);
  done();
}
END_TEST

START_TEST(early_steps_are_told_once) {
  with_lr(TL_SGD, 1);
  bool early;
  tl_scheduler *s = exponential(.5), *other = exponential(.5);
  ck_ok(tl_scheduler_step(s, &early));
  ck_assert(early);
  ck_ok(tl_scheduler_step(s, &early));
  ck_assert(!early);
  ck_ok(tl_scheduler_step(other, &early));
  ck_assert(!early);
  tl_scheduler_free(s);
  tl_scheduler_free(other);
  done();
  for (int skipped = 0; skipped < 2; skipped++) { /* a skipped step counts as a call */
    with_lr(TL_SGD, 1);
    s = exponential(.5);
    if (skipped) tl_optimizer_skip(optimizer);
    else ck_ok(tl_optimizer_step(optimizer));
    ck_ok(tl_scheduler_step(s, &early));
    ck_assert(!early);
    tl_scheduler_free(s);
    done();
  }
}
END_TEST

START_TEST(refusals) {
  with_lr(TL_SGD, 1);
  tl_scheduler *s, *p = plateau(0, 1, 0, .5), *e = exponential(.9);
  tl_schedule_options by = options(TL_STEP_LR);
  ck_fails(tl_scheduler_new(TL_STEP_LR, optimizer, &by, &s), TL_ERR_VALUE, "step_size is missing");
  by.step_size = 0;
  ck_fails(tl_scheduler_new(TL_STEP_LR, optimizer, &by, &s), TL_ERR_VALUE, "at least 1");
  by = options(TL_COSINE_LR);
  by.T_max = 0;
  ck_fails(tl_scheduler_new(TL_COSINE_LR, optimizer, &by, &s), TL_ERR_VALUE, "T_max");
  by = options(TL_LINEAR_LR);
  by.start_factor = 0;
  ck_fails(tl_scheduler_new(TL_LINEAR_LR, optimizer, &by, &s), TL_ERR_VALUE, "start_factor");
  by = options(TL_PLATEAU_LR);
  by.factor = 1;
  ck_fails(tl_scheduler_new(TL_PLATEAU_LR, optimizer, &by, &s), TL_ERR_VALUE, "factor");
  ck_fails(tl_scheduler_sequence(optimizer, 2, (tl_scheduler *[]){e, p}, (const double[]){1}, &s), TL_ERR_VALUE,
           "Plateau");
  ck_fails(tl_scheduler_chain(2, (tl_scheduler *[]){e, e}, &s), TL_ERR_VALUE, "twice");
  ck_fails(tl_scheduler_chain(0, NULL, &s), TL_ERR_VALUE, "no schedules");
  ck_fails(tl_scheduler_step_to(e, 3, NULL), TL_ERR_VALUE, "WarmRestarts");
  ck_fails(tl_scheduler_step_metric(e, 3), TL_ERR_VALUE, "Plateau");
  tl_tensor *more = VECTOR(1);
  ck_ok(tl_optimizer_add_group(optimizer, 1, &more, group(), NULL));
  ck_fails(tl_scheduler_step(e, NULL), TL_ERR_STATE, "2 groups");
  tl_scheduler_free(p);
  tl_scheduler_free(e);
  tl_tensor_free(more);
  done();
  with_lr(TL_SGD, 1);
  by = options(TL_EXPONENTIAL_LR);
  by.gamma = .5;
  by.last_epoch = 3;
  ck_fails(tl_scheduler_new(TL_EXPONENTIAL_LR, optimizer, &by, &s), TL_ERR_STATE, "initial_lr");
  done();
}
END_TEST

START_TEST(a_schedule_keeps_its_optimizer) {
  with_lr(TL_SGD, 1);
  tl_scheduler *s = exponential(.5);
  tl_optimizer_free(optimizer);
  ck_ok(tl_scheduler_step(s, NULL));
  ck_assert_double_eq(tl_scheduler_last_lrs(s)[0], .5);
  tl_scheduler_free(s);
  tl_tensor_free(param);
  ck_assert_int_eq(live_tensors(), 0);
}
END_TEST

START_TEST(failing_allocations) {
  for (int64_t k = 1; k < 50; k++) {
    with_lr(TL_SGD, 1);
    tl_schedule_options by = options(TL_EXPONENTIAL_LR);
    by.gamma = .5;
    tl_scheduler *e = NULL, *s = NULL;
    tl_fail_allocation(k);
    tl_status st = tl_scheduler_new(TL_EXPONENTIAL_LR, optimizer, &by, &e);
    if (st == TL_OK) st = tl_scheduler_sequence(optimizer, 1, &e, NULL, &s);
    tl_fail_allocation(0);
    tl_scheduler_free(e);
    tl_scheduler_free(s);
    done();
    if (st == TL_OK) return;
    ck_assert_int_eq(st, TL_ERR_MEMORY);
  }
  ck_abort_msg("never succeeded");
}
END_TEST

int main(void) {
  Suite *s = suite_create("scheduler");
  TCase *c = tcase_create("scheduler");
  tcase_add_test(c, cosine);
  tcase_add_test(c, cosine_saved_and_resumed);
  tcase_add_test(c, multi_step);
  tcase_add_test(c, sequences);
  tcase_add_test(c, sequences_nest);
  tcase_add_test(c, chain);
  tcase_add_test(c, one_cycle);
  tcase_add_test(c, one_cycle_phases_of_no_length);
  tcase_add_test(c, plateau_waits_and_cools_down);
  tcase_add_test(c, plateau_ignores_tiny_changes);
  tcase_add_test(c, plateau_with_negative_metrics);
  tcase_add_test(c, adam_lr);
  tcase_add_test(c, recursive_forms_compose_with_outside_changes);
  tcase_add_test(c, factors_of_the_host);
  tcase_add_test(c, early_steps_are_told_once);
  tcase_add_test(c, refusals);
  tcase_add_test(c, a_schedule_keeps_its_optimizer);
  tcase_add_test(c, failing_allocations);
  suite_add_tcase(s, c);
  SRunner *r = srunner_create(s);
  srunner_run_all(r, CK_NORMAL);
  int failed = srunner_ntests_failed(r);
  srunner_free(r);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
