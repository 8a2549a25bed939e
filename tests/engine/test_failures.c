/* test_failures.c: for every operation, forward and backward, the k-th allocation fails, for every k: the status says
 * so, nothing leaks, nothing changed, and the same call works afterwards. The same for what is no operation. */
#include <unistd.h>

#include "op_table.h"

typedef struct level { /* what is in use */
  double tensors, bytes;
} level;

static level level_now(void) {
  tl_memory_stats s;
  ck_ok(tl_memory(test_device(), &s));
  return (level){s.tensors, s.live};
}

static void ck_level(level before, const char *what, int k) {
  level now = level_now();
  ck_assert_msg(now.tensors == before.tensors, "%s: allocation %d failed and %g tensors leaked", what, k,
                now.tensors - before.tensors);
  ck_assert_msg(now.bytes == before.bytes, "%s: allocation %d failed and %g bytes leaked", what, k,
                now.bytes - before.bytes);
  ck_assert_msg(tl_grad_enabled(), "%s: allocation %d failed and gradients stay off", what, k);
}

/* ---- operations ---- */

/* Runs the row with its k-th allocation failing; afterwards with all of them working. Was there a k-th? */
static bool forward_fails(trial *t, int k) {
  const char *name = trial_name(t);
  snapshot before;
  snapshot_take(&before, t);
  level start = level_now();
  tl_fail_allocation(k);
  tl_status st = trial_run(t);
  tl_fail_allocation(0);
  if (st != TL_OK) {
    ck_assert_msg(st == TL_ERR_MEMORY, "%s: allocation %d: status %d: %s", name, k, st, tl_last_error()->message);
    ck_level(start, name, k);
    ck_assert_msg(t->out[0] == NULL && t->out[1] == NULL, "%s: allocation %d failed and a result was written", name, k);
    snapshot_check(&before, t, 0, name);
    double seed, offset = 0;
    if (t->row->flags & DRAWS) ck_ok(tl_generator_state(row_numbers, &seed, &offset));
    ck_assert_msg(offset == 0, "%s: allocation %d failed and the generator moved on", name, k);
    ck_assert_msg(trial_run(t) == TL_OK, "%s: after allocation %d had failed: %s", name, k, tl_last_error()->message);
  }
  snapshot_free(&before, t);
  return st != TL_OK;
}

/* The same for the walk: the graph may be used up, but nothing leaks. */
static bool backward_fails(trial *t, tl_tensor *weights, int k) {
  tl_fail_allocation(k);
  tl_status st = trial_backward(t, weights);
  tl_fail_allocation(0);
  ck_assert_msg(st == TL_OK || st == TL_ERR_MEMORY, "%s: backward: allocation %d: status %d: %s", trial_name(t), k, st,
                tl_last_error()->message);
  return st != TL_OK;
}

static void check_result(const trial *t, const trial *expected) {
  ck_same(trial_name(t), "result after a failure", result_of(t), result_of(expected), row_tolerance(t->row, t->dtype));
  for (int i = 0; i < t->row->inputs; i++) {
    tl_tensor *a, *b;
    ck_ok(tl_grad(t->root[i], &a));
    ck_ok(tl_grad(expected->root[i], &b));
    ck_same(trial_name(t), "gradient after a failure", a, b, row_tolerance(t->row, t->dtype));
    tl_tensor_free(a);
    tl_tensor_free(b);
  }
}

enum phase { FORWARD, BACKWARD };

/* One trial with its k-th allocation of this phase failing. */
static bool fails_at(const op_row *row, int dtype, const int *way, const trial *expected, enum phase phase, int k) {
  trial t;
  level start = level_now();
  trial_make(&t, row, dtype, way, true, false, false);
  bool failed = phase == FORWARD && forward_fails(&t, k);
  if (phase == BACKWARD) ck_ok(trial_run(&t));
  if (trial_graded(&t)) {
    tl_tensor *w = make_weights(result_of(&t), true);
    if (phase == BACKWARD) failed = backward_fails(&t, w, k);
    else ck_ok(trial_backward(&t, w));
    tl_tensor_free(w);
  }
  if (phase == FORWARD || !failed) check_result(&t, expected);
  trial_free(&t);
  ck_level(start, row->name, k);
  return failed;
}

static void check_row(const op_row *row, int dtype, const int *way) {
  const op_input *first = &row->input[0];
  if (row->flags & IN_PLACE && way[0] == REPEATED && first->ndim > 0 && first->shape[0] > 1) return; /* refused */
  trial expected;
  trial_make(&expected, row, dtype, way, true, false, false);
  if (trial_run(&expected) != TL_OK) { /* a view that these strides do not allow */
    ck_assert_msg(row->flags & CONTIGUOUS_ONLY, "%s: %s", row->name, tl_last_error()->message);
    trial_free(&expected);
    return;
  }
  if (trial_graded(&expected)) {
    tl_tensor *w = make_weights(result_of(&expected), true);
    ck_ok(trial_backward(&expected, w));
    tl_tensor_free(w);
  }
  for (int phase = FORWARD; phase <= BACKWARD; phase++)
    for (int k = 1; fails_at(row, dtype, way, &expected, phase, k); k++)
      ck_assert_msg(k < 500, "%s never works", row->name);
  trial_free(&expected);
}

static void check_rows(int dtype, int way) {
  const int ways[MAX_INPUTS] = {way, way, way, way};
  for (int r = 0; r < OP_ROWS; r++)
    if (op_rows[r].dtypes & BIT(dtype)) check_row(&op_rows[r], dtype, ways);
  ck_assert_int_eq(live_tensors(), 0);
}

START_TEST(operations_on_contiguous_float32) { check_rows(TL_FLOAT32, PLAIN); }
END_TEST

START_TEST(operations_on_parts_in_float32) { check_rows(TL_FLOAT32, STEPPED); }
END_TEST

START_TEST(operations_on_transposed_float16) { check_rows(TL_FLOAT16, REVERSED); }
END_TEST

START_TEST(operations_on_expanded_float64) { check_rows(TL_FLOAT64, REPEATED); }
END_TEST

START_TEST(operations_on_narrowed_int64) { check_rows(TL_INT64, INSIDE); }
END_TEST

/* ---- what makes tensors from nothing ---- */

static const int64_t three_by_four[2] = {3, 4};
static const double twelve[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

static tl_status make_empty(tl_tensor **out) { return tl_empty(2, three_by_four, TL_FLOAT32, test_device(), out); }
static tl_status make_full(tl_tensor **out) { return tl_full(2, three_by_four, 2, TL_FLOAT16, test_device(), out); }
static tl_status make_arange(tl_tensor **out) { return tl_arange(0, 5, 1, TL_INT64, test_device(), out); }
static tl_status make_linspace(tl_tensor **out) { return tl_linspace(0, 5, 7, TL_FLOAT32, test_device(), out); }
static tl_status make_eye(tl_tensor **out) { return tl_eye(3, 4, TL_FLOAT32, test_device(), out); }
static tl_status make_doubles(tl_tensor **out) {
  return tl_from_doubles(2, three_by_four, TL_BFLOAT16, test_device(), twelve, out);
}
static tl_status make_memory(tl_tensor **out) {
  return tl_from_memory(2, three_by_four, TL_FLOAT64, test_device(), twelve, out);
}
static tl_status make_permutation(tl_tensor **out) {
  return tl_randperm(9, TL_INT32, test_device(), row_generator(), out);
}

/* ---- what is no operation: each takes the whole way and frees what it made ---- */

static const char *scratch(const char *name) {
  static char path[100];
  snprintf(path, sizeof path, "/tmp/tlua_failures_%d_%s", (int)getpid(), name);
  return path;
}

static tl_status write_and_read_npy(void) {
  tl_tensor *t = NULL, *back = NULL;
  tl_status st = make_full(&t);
  if (st == TL_OK) st = tl_write_npy(scratch("npy"), t);
  if (st == TL_OK) st = tl_read_npy(scratch("npy"), &back);
  tl_tensor_free(t);
  tl_tensor_free(back);
  return st;
}

static tl_status write_and_read_safetensors(void) {
  const char *const names[] = {"weight"}, *const keys[] = {"format"}, *const notes[] = {"test"};
  tl_tensor *t = NULL, *part = NULL;
  tl_archive *a = NULL;
  tl_status st = make_memory(&t);
  if (st == TL_OK) st = tl_write_safetensors(scratch("safetensors"), 1, names, &t, 1, keys, notes);
  if (st == TL_OK) st = tl_read_safetensors(scratch("safetensors"), &a);
  if (st == TL_OK) st = tl_archive_tensor(a, 0, &part);
  tl_tensor_free(t);
  tl_tensor_free(part);
  tl_archive_free(a);
  return st;
}

static tl_status read_text(void) {
  const char *path = scratch("csv");
  FILE *f = fopen(path, "w");
  ck_assert_ptr_nonnull(f);
  fputs("a,b\n1,2\n3,4\n", f);
  fclose(f);
  tl_csv_options options = {.delimiter = ',', .header = -1, .dtype = TL_FLOAT32};
  tl_tensor *table = NULL, *bytes = NULL;
  tl_archive *columns = NULL;
  tl_status st = tl_read_csv(path, &options, &table, &columns);
  if (st == TL_OK) st = tl_read_bytes(path, 100, &bytes);
  tl_tensor_free(table);
  tl_tensor_free(bytes);
  tl_archive_free(columns);
  return st;
}

static tl_status load_batches(void) {
  tl_tensor *data[2] = {NULL}, *order = NULL, *batch[2];
  tl_loader *l = NULL;
  bool more = true;
  tl_status st = tl_full(2, (const int64_t[]){5, 3}, 1, TL_FLOAT32, TL_CPU, &data[0]); /* loaders read host memory */
  if (st == TL_OK) st = tl_arange(0, 5, 1, TL_INT64, TL_CPU, &data[1]);
  if (st == TL_OK) st = tl_arange(0, 5, 1, TL_INT64, TL_CPU, &order);
  if (st == TL_OK) st = tl_loader_new(2, data, order, 2, false, 0, 1, &l);
  while (st == TL_OK && more) {
    st = tl_loader_next(l, batch, &more);
    for (int i = 0; i < 2 && st == TL_OK && more; i++) tl_tensor_free(batch[i]);
  }
  tl_loader_free(l);
  tl_tensor_free(data[0]);
  tl_tensor_free(data[1]);
  tl_tensor_free(order);
  return st;
}

static tl_status tokens_and_back(void) {
  static const char words[] = "a word\xc3\xa4";
  tl_vocab *v = NULL;
  tl_tensor *ids = NULL, *text = NULL, *order = NULL, *batch[2];
  tl_token_writer *w = NULL;
  tl_tokens *file = NULL;
  tl_loader *l = NULL;
  bool more = true;
  tl_status st = tl_vocab_new(words, sizeof words - 1, &v);
  if (st == TL_OK) st = tl_vocab_encode(v, words, sizeof words - 1, -1, &ids);
  if (st == TL_OK) st = tl_vocab_decode(v, ids, &text);
  if (st == TL_OK) st = tl_token_writer_new(scratch("ids"), "uint8", &w);
  if (st == TL_OK) st = tl_token_writer_add(w, ids);
  if (st == TL_OK) st = tl_token_writer_close(w);
  if (st == TL_OK) st = tl_tokens_open(scratch("ids"), "uint8", &file);
  if (st == TL_OK) st = tl_arange(0, 3, 1, TL_INT64, TL_CPU, &order);
  if (st == TL_OK) st = tl_loader_windows(file, 2, 2, order, 2, false, 0, 1, &l);
  while (st == TL_OK && more) {
    st = tl_loader_next(l, batch, &more);
    for (int i = 0; i < 2 && st == TL_OK && more; i++) tl_tensor_free(batch[i]);
  }
  tl_loader_free(l);
  tl_tokens_free(file);
  tl_token_writer_free(w);
  tl_tensor_free(ids);
  tl_tensor_free(text);
  tl_tensor_free(order);
  tl_vocab_free(v);
  return st;
}

/* Learns merges, saves and loads them, encodes with special tokens and a long piece, decodes. */
static tl_status learn_and_encode(void) {
  static const char words[] = "ab abc abcd \xff<end> ab abc e\xcc\x81 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n";
  const char *special[] = {"<end>"};
  tl_bpe_trainer *t = NULL;
  tl_bpe *trained = NULL, *loaded = NULL;
  tl_tensor *ids = NULL, *text = NULL;
  tl_status st = tl_bpe_trainer_new("\\p{L}+|\\s+", &t);
  if (st == TL_OK) st = tl_bpe_trainer_feed(t, words, sizeof words - 1);
  if (st == TL_OK) st = tl_bpe_trainer_finish(t, 270, 1, 1, special, &trained);
  if (st == TL_OK) st = tl_bpe_save(trained, scratch("bpe"));
  if (st == TL_OK) st = tl_bpe_load(scratch("bpe"), &loaded);
  if (st == TL_OK) st = tl_bpe_encode(loaded, words, sizeof words - 1, true, -1, NULL, TL_INT64, &ids);
  if (st == TL_OK) st = tl_bpe_decode(loaded, ids, true, true, &text);
  tl_bpe_trainer_free(t);
  tl_bpe_free(trained);
  tl_bpe_free(loaded);
  tl_tensor_free(ids);
  tl_tensor_free(text);
  return st;
}

static tl_status train(int kind, int dtype) {
  tl_tensor *p = NULL, *g = NULL;
  tl_optimizer *o = NULL;
  tl_scheduler *s = NULL;
  tl_param_group options;
  tl_schedule_options schedule;
  double norm;
  ck_ok(tl_optimizer_defaults(kind, &options));
  ck_ok(tl_schedule_defaults(TL_STEP_LR, &schedule));
  options.lr = 0.1;
  schedule.step_size = 1;
  tl_status st = tl_full(2, three_by_four, 1, dtype, test_device(), &p);
  if (st == TL_OK) st = tl_full(2, three_by_four, 3, dtype, test_device(), &g);
  if (st == TL_OK) st = tl_set_requires_grad(p, true);
  if (st == TL_OK) st = tl_set_grad(p, g);
  if (st == TL_OK) st = tl_clip_grad_norm_(1, &p, 1, 2, true, &norm);
  if (st == TL_OK) st = tl_clip_grad_value_(1, &p, 0.1);
  if (st == TL_OK) st = tl_optimizer_new(kind, &o);
  if (st == TL_OK) st = tl_optimizer_add_group(o, 1, &p, &options, NULL);
  if (st == TL_OK) st = tl_scheduler_new(TL_STEP_LR, o, &schedule, &s);
  for (int i = 0; i < 2 && st == TL_OK; i++) {
    st = tl_optimizer_step(o);
    if (st == TL_OK) st = tl_scheduler_step(s, NULL);
  }
  if (st == TL_OK) st = tl_optimizer_zero_grad(o, true);
  tl_scheduler_free(s);
  tl_optimizer_free(o);
  tl_tensor_free(p);
  tl_tensor_free(g);
  return st;
}

/* 8-bit state: made, saved, restored, converted. */
static tl_status train_in_8_bits(void) {
  tl_tensor *p = NULL, *g = NULL, *codes = NULL, *absmax = NULL;
  tl_optimizer *o = NULL;
  tl_param_group options;
  ck_ok(tl_optimizer_defaults(TL_ADAMW, &options));
  options.state_dtype = TL_UINT8;
  tl_status st = tl_full(1, (const int64_t[]){4096}, 1, TL_BFLOAT16, test_device(), &p);
  if (st == TL_OK) st = tl_full(1, (const int64_t[]){4096}, 3, TL_BFLOAT16, test_device(), &g);
  if (st == TL_OK) st = tl_set_grad(p, g);
  if (st == TL_OK) st = tl_optimizer_new(TL_ADAMW, &o);
  if (st == TL_OK) st = tl_optimizer_add_group(o, 1, &p, &options, NULL);
  if (st == TL_OK) st = tl_optimizer_step(o);
  if (st == TL_OK) st = tl_optimizer_state(o, 0, 0, &codes);
  if (st == TL_OK) st = tl_optimizer_absmax(o, 0, 0, &absmax);
  if (st == TL_OK) st = tl_optimizer_set_codes(o, 0, 0, codes, absmax);
  if (st == TL_OK) st = tl_optimizer_set_state(o, 0, 1, g);
  if (st == TL_OK) st = tl_optimizer_step(o);
  tl_optimizer_free(o);
  tl_tensor *all[] = {p, g, codes, absmax};
  for (int i = 0; i < 4; i++) tl_tensor_free(all[i]);
  return st;
}

static tl_status train_all(void) {
  for (int kind = 0; kind < TL_OPTIMIZERS; kind++) {
    tl_status st = train(kind, kind % 2 == 0 ? TL_FLOAT32 : TL_FLOAT16);
    if (st != TL_OK) return st;
  }
  return TL_OK;
}

static tl_status ask_the_tape(void) {
  tl_tensor *x = NULL, *y = NULL, *z = NULL, *g = NULL;
  tl_walk *walk = NULL;
  tl_status st = make_full(&x);
  if (st == TL_OK) st = tl_set_requires_grad(x, true);
  if (st == TL_OK) st = tl_register_hook(x, 4);
  if (st == TL_OK) st = tl_mul(x, x, &y);
  if (st == TL_OK) st = tl_retain_grad(y);
  if (st == TL_OK) st = tl_sum(y, 0, NULL, false, &z);
  if (st == TL_OK) st = tl_autograd_grad(1, &z, NULL, 1, &x, true, &walk);
  tl_walk_event e = {.kind = 1};
  while (st == TL_OK && e.kind != 0) {
    st = tl_walk_next(walk, &e);
    if (st == TL_OK && e.kind == 1) st = tl_walk_reply(walk, 0, NULL);
  }
  if (st == TL_OK) st = tl_walk_grads(walk, 1, &g);
  tl_walk_free(walk);
  tl_tensor_free(x);
  tl_tensor_free(y);
  tl_tensor_free(z);
  tl_tensor_free(g);
  while (tl_function_dead() >= 0) continue;
  return st;
}

/* y = 2x, computed outside the tape; the walk asks for its backward. */
static tl_status serve_a_function(void) {
  tl_tensor *x = NULL, *y = NULL, *z = NULL, *saved = NULL, *g = NULL;
  tl_walk *walk = NULL;
  bool recorded = false;
  tl_status st = make_full(&x);
  if (st == TL_OK) st = tl_set_requires_grad(x, true);
  if (st == TL_OK) {
    bool former = tl_set_grad_enabled(false);
    st = tl_mul_scalar(x, 2, &y);
    tl_set_grad_enabled(former);
  }
  if (st == TL_OK) st = tl_function_record("double", 5, 1, &x, 1, &y, 1, &x, &recorded);
  if (st == TL_OK) st = tl_sum(y, 0, NULL, false, &z);
  if (st == TL_OK) st = tl_backward(z, NULL, false, &walk);
  tl_walk_event e = {0};
  if (st == TL_OK) st = tl_walk_next(walk, &e);
  if (st == TL_OK) ck_assert_int_eq(e.kind, 2);
  if (st == TL_OK) st = tl_function_saved(walk, 1, &saved);
  if (st == TL_OK) st = tl_mul_scalar(e.grads[0], 2, &g);
  if (st == TL_OK) st = tl_walk_reply(walk, 1, &g);
  if (st == TL_OK) st = tl_walk_next(walk, &e);
  tl_walk_free(walk);
  if (st == TL_OK) st = tl_set_data(x, g); /* and its gradient is converted along */
  tl_tensor *all[] = {x, y, z, saved, g};
  for (int i = 0; i < 5; i++) tl_tensor_free(all[i]);
  while (tl_function_dead() >= 0) continue;
  return st;
}

static tl_status (*const makers[])(tl_tensor **out) = {make_empty, make_full,    make_arange, make_linspace,
                                                       make_eye,   make_doubles, make_memory, make_permutation};
static tl_status make_all(void) {
  for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
    tl_tensor *t = NULL;
    tl_status st = makers[i](&t);
    ck_assert((st == TL_OK) == (t != NULL));
    tl_tensor_free(t);
    if (st != TL_OK) return st;
  }
  return TL_OK;
}

static void check_whole(const char *what, tl_status (*f)(void)) {
  ck_assert_msg(f() == TL_OK, "%s: %s", what, tl_last_error()->message);
  level start = level_now();
  for (int k = 1;; k++) {
    ck_assert_msg(k < 2000, "%s never works", what);
    tl_fail_allocation(k);
    tl_status st = f();
    tl_fail_allocation(0);
    ck_assert_msg(st == TL_OK || st == TL_ERR_MEMORY, "%s: allocation %d: status %d: %s", what, k, st,
                  tl_last_error()->message);
    ck_level(start, what, k);
    if (st == TL_OK) break;
  }
}

START_TEST(what_is_no_operation) {
  check_whole("creation", make_all);
  check_whole("npy", write_and_read_npy);
  check_whole("safetensors", write_and_read_safetensors);
  check_whole("text", read_text);
  check_whole("loader", load_batches);
  check_whole("tokens", tokens_and_back);
  check_whole("tokenizer", learn_and_encode);
  check_whole("optimizers and schedules", train_all);
  check_whole("8-bit optimizer state", train_in_8_bits);
  check_whole("autograd.grad", ask_the_tape);
  check_whole("a custom function", serve_a_function);
  const char *const names[] = {"npy", "safetensors", "csv", "ids", "bpe"};
  for (int i = 0; i < 3; i++) unlink(scratch(names[i]));
}
END_TEST

TEST_MAIN("failures", operations_on_contiguous_float32, operations_on_parts_in_float32,
          operations_on_transposed_float16, operations_on_expanded_float64, operations_on_narrowed_int64,
          what_is_no_operation)
