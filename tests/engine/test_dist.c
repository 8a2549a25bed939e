/* test_dist.c: ranks over TCP: joining, the reduction of what ranks sent, collectives between forked processes, and what
 * happens when one of a rank's allocations fails. */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check_tl.h"
#include "dist/tcp/fold.c" /* hidden in the library */

enum { RANKS = 3, SECONDS = 30 };

/* ---- the reduction ---- */

static const int dtypes[] = {TL_FLOAT32, TL_FLOAT64, TL_FLOAT16, TL_BFLOAT16, TL_INT64, TL_INT32, TL_UINT8, TL_BOOL};
enum { DTYPES = sizeof dtypes / sizeof *dtypes, MOST = 1100, PARTS = 4 };

static const double odd_values[] = {0, -0.0, 1, -1, 2048, 1.5, -3.25, 100, NAN, INFINITY, -INFINITY, 60000};

static double value_at(int dtype, int part, int i) {
  int which = (i * 7 + part * 5 + i / 12) % 12;
  double v = odd_values[which];
  if (dtype == TL_BOOL) return (i >> part) & 1;
  if (tl_is_floating(dtype)) return v;
  if (!isfinite(v)) v = dtype == TL_INT32 ? 2147483647 : dtype == TL_INT64 ? 4e18 : 255; /* sums wrap around */
  return dtype == TL_UINT8 ? fabs(floor(v)) - 256 * floor(fabs(floor(v)) / 256) : floor(v);
}

static void store(void *at, int dtype, int i, double v) {
  switch (dtype) {
    case TL_FLOAT32: ((float *)at)[i] = (float)v; break;
    case TL_FLOAT64: ((double *)at)[i] = v; break;
    case TL_FLOAT16: ((uint16_t *)at)[i] = tl_float_to_half((float)v); break;
    case TL_BFLOAT16: ((uint16_t *)at)[i] = tl_float_to_bf16((float)v); break;
    case TL_INT64: ((int64_t *)at)[i] = (int64_t)v; break;
    case TL_INT32: ((int32_t *)at)[i] = (int32_t)v; break;
    default: ((uint8_t *)at)[i] = (uint8_t)v;
  }
}

static double load(const void *at, int dtype, int i) {
  switch (dtype) {
    case TL_FLOAT32: return (double)((const float *)at)[i];
    case TL_FLOAT64: return ((const double *)at)[i];
    case TL_FLOAT16: return (double)tl_half_to_float(((const uint16_t *)at)[i]);
    case TL_BFLOAT16: return (double)tl_bf16_to_float(((const uint16_t *)at)[i]);
    case TL_INT64: return (double)((const int64_t *)at)[i];
    case TL_INT32: return ((const int32_t *)at)[i];
    default: return ((const uint8_t *)at)[i];
  }
}

static double combine(int dtype, int op, double a, double b) {
  if (op == TL_MAX) return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
  if (op == TL_MIN) return isnan(a) || isnan(b) ? NAN : a < b ? a : b;
  switch (dtype) {
    case TL_FLOAT64: return a + b;
    case TL_INT64: return (double)(int64_t)((uint64_t)(int64_t)a + (uint64_t)(int64_t)b);
    case TL_INT32: return (int32_t)((uint32_t)(int32_t)a + (uint32_t)(int32_t)b);
    case TL_UINT8: return (uint8_t)(a + b);
    case TL_BOOL: return a != 0 || b != 0;
    default: return (double)((float)a + (float)b); /* the low types, too: rounded once, at the end */
  }
}

static void check_fold(int dtype, int op, int n, int count, bool aliased) {
  static uint64_t memory[PARTS][MOST], result[MOST], one;
  const void *parts[PARTS];
  double expected[MOST];
  for (int p = 0; p < count; p++) {
    parts[p] = memory[p];
    for (int i = 0; i < n; i++) store(memory[p], dtype, i, value_at(dtype, p, i));
  }
  for (int i = 0; i < n; i++) {
    double sum = load(parts[0], dtype, i);
    for (int p = 1; p < count; p++) sum = combine(dtype, op, sum, load(parts[p], dtype, i));
    store(&one, dtype, 0, sum);
    expected[i] = load(&one, dtype, 0);
  }
  void *out = aliased ? memory[count - 1] : result;
  tl_fold(dtype, op, n, count, parts, out);
  for (int i = 0; i < n; i++) {
    double got = load(out, dtype, i);
    ck_assert_msg(got == expected[i] || (isnan(got) && isnan(expected[i])),
                  "%s, reduction %d of %d parts: element %d of %d is %.17g, expected %.17g", tl_dtype_name(dtype), op,
                  count, i, n, got, expected[i]);
  }
}

START_TEST(reductions_equal_plain_loops) {
  static const int lengths[] = {0, 1, 12, 511, 512, 513, MOST};
  for (int d = 0; d < DTYPES; d++)
    for (int op = TL_SUM; op <= TL_MIN; op++)
      for (int count = 1; count <= PARTS; count++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
          for (int aliased = 0; aliased < 2; aliased++) check_fold(dtypes[d], op, lengths[l], count, aliased != 0);
}
END_TEST

START_TEST(low_types_are_rounded_once) {
  uint16_t big = tl_float_to_half(2048), one = tl_float_to_half(1), sum;
  const void *parts[] = {&big, &one, &one};
  tl_fold(TL_FLOAT16, TL_SUM, 1, 3, parts, &sum);
  ck_assert(tl_half_to_float(sum) == 2050); /* at every step: 2048 + 1 = 2048 */
}
END_TEST

/* ---- joining ---- */

static void launcher(const char *rank, const char *size, const char *address, const char *port) {
  const char *const names[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
  const char *const values[] = {rank, size, address, port};
  for (int i = 0; i < 4; i++)
    if (values[i] == NULL) unsetenv(names[i]);
    else setenv(names[i], values[i], 1);
}

START_TEST(joining_says_what_is_wrong) {
  int rank, size, local;
  launcher(NULL, NULL, NULL, NULL);
  ck_assert(!tl_dist_environment(&rank, &size, &local));
  ck_assert_int_eq(size, 1);
  ck_ok(tl_dist_destroy()); /* nothing to leave */
  ck_fails(tl_dist_barrier(), TL_ERR_STATE, "dist.init comes first");
  ck_fails(tl_dist_init(0), TL_ERR_VALUE, "timeout must be positive");
  ck_fails(tl_dist_init(NAN), TL_ERR_VALUE, "timeout must be positive");
  launcher(NULL, "2", NULL, NULL);
  ck_fails(tl_dist_init(1), TL_ERR_VALUE, "WORLD_SIZE is 2, but RANK (0 to 1) or MASTER_ADDR is not set");
  launcher("2", "2", "localhost", "29500");
  ck_fails(tl_dist_init(1), TL_ERR_VALUE, "RANK is 2, WORLD_SIZE is 2");
  launcher("1", "2", "localhost", NULL);
  ck_fails(tl_dist_init(1), TL_ERR_VALUE, "MASTER_PORT (1 to 65534), got 'localhost' and ''");
  launcher("1", "2", "localhost", "12x");
  ck_fails(tl_dist_init(1), TL_ERR_VALUE, "got 'localhost' and '12x'");
  launcher("1", "2", "127.0.0.1", "1");
  ck_fails(tl_dist_init(0.2), TL_ERR_STATE, "cannot be reached at 127.0.0.1, port 1");
  ck_assert(!tl_dist_initialized());
  ck_assert_int_eq(tl_dist_size(), 1);
  launcher("0", "1", "localhost", "29500"); /* alone: nobody listens */
  ck_assert(tl_dist_environment(&rank, &size, &local));
  ck_ok(tl_dist_init(1));
  ck_fails(tl_dist_init(1), TL_ERR_STATE, "met already");
  ck_ok(tl_dist_barrier());
  ck_ok(tl_dist_destroy());
  ck_ok(tl_dist_destroy());
}
END_TEST

/* ---- ranks: processes that this one forks ---- */

/* A port that nobody listens at now. */
static void choose_port(char text[8]) {
  struct sockaddr_in a = {.sin_family = AF_INET};
  socklen_t n = sizeof a;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
  ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &n), 0);
  close(fd);
  snprintf(text, 8, "%d", ntohs(a.sin_port));
}

/* f(rank, context) in RANKS processes; each ends within SECONDS, well. */
static void on_ranks(void (*f)(int rank, void *context), void *context) {
  char port[8], number[12], size[12];
  pid_t pids[RANKS];
  choose_port(port);
  snprintf(size, sizeof size, "%d", RANKS);
  for (int r = 0; r < RANKS; r++) {
    pids[r] = fork();
    ck_assert(pids[r] >= 0);
    if (pids[r] > 0) continue;
    alarm(SECONDS);
    snprintf(number, sizeof number, "%d", r);
    launcher(number, size, "127.0.0.1", port);
    f(r, context);
    _exit(0);
  }
  for (int r = 0; r < RANKS; r++) {
    int status;
    ck_assert_int_eq(waitpid(pids[r], &status, 0), pids[r]);
    ck_assert_msg(status == 0, "rank %d: exit code %d, signal %d", r, WEXITSTATUS(status), WTERMSIG(status));
  }
}

/* In a rank: says so and ends. */
#define RANK_CHECK(condition)                                                                         \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      fprintf(stderr, "rank %d, line %d: %s; last error: %s\n", tl_dist_rank(), __LINE__, #condition, \
              tl_last_error()->message);                                                              \
      _exit(3);                                                                                       \
    }                                                                                                 \
  } while (0)

static bool holds(const tl_tensor *t, int n, double value) {
  double v[64];
  if (tl_numel(t) != n || tl_to_doubles(t, n, v) != TL_OK) return false;
  for (int i = 0; i < n; i++)
    if (v[i] != value) return false;
  return true;
}

/* A (3 x 4) tensor of `value`, its strides swapped. */
static tl_status swapped(double value, int dtype, tl_tensor **out) {
  tl_tensor *x = NULL;
  tl_status st = tl_full(SHAPE(4, 3), value, dtype, TL_CPU, &x);
  if (st == TL_OK) st = tl_transpose(x, 0, 1, out);
  tl_tensor_free(x);
  return st;
}

enum { ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, KINDS };

/* One collective of this rank's t; its result, NULL: it is t. */
static tl_status collective(int kind, tl_tensor *t, tl_tensor **out) {
  *out = NULL;
  switch (kind) {
    case ALL_REDUCE: return tl_all_reduce_(t, TL_SUM, NULL);
    case BROADCAST: return tl_broadcast_(t, RANKS - 1, NULL);
    case ALL_GATHER: return tl_all_gather(t, out, NULL);
    default: return tl_reduce_scatter(t, TL_SUM, out, NULL);
  }
}

/* Of tensors of rank + 1. */
static bool is_right(int kind, const tl_tensor *t, tl_tensor *out, int dtype) {
  double sum = dtype == TL_BOOL ? 1 : RANKS * (RANKS + 1) / 2;
  if (kind == ALL_REDUCE) return holds(t, 12, sum);
  if (kind == BROADCAST) return holds(t, 12, dtype == TL_BOOL ? 1 : RANKS);
  if (kind == REDUCE_SCATTER) return holds(out, 4, sum);
  for (int r = 0; r < RANKS; r++) {
    tl_tensor *row = NULL;
    bool right = tl_select(out, 0, r, &row) == TL_OK && holds(row, 12, dtype == TL_BOOL ? 1 : r + 1);
    tl_tensor_free(row);
    if (!right) return false;
  }
  return true;
}

static void exchange_all(int rank, void *unused) {
  (void)unused;
  for (int round = 0; round < 2; round++) { /* ranks leave and meet again */
    RANK_CHECK(tl_dist_init(SECONDS) == TL_OK);
    RANK_CHECK(tl_dist_rank() == rank && tl_dist_size() == RANKS);
    for (int d = 0; d < DTYPES; d++)
      for (int kind = 0; kind < KINDS; kind++) {
        tl_tensor *t = NULL, *out = NULL;
        RANK_CHECK(swapped(rank + 1, dtypes[d], &t) == TL_OK);
        RANK_CHECK(collective(kind, t, &out) == TL_OK);
        RANK_CHECK(is_right(kind, t, out, dtypes[d]));
        tl_tensor_free(t);
        tl_tensor_free(out);
      }
    RANK_CHECK(tl_dist_destroy() == TL_OK);
  }
  RANK_CHECK(live_tensors() == 0);
}

START_TEST(ranks_exchange_and_meet_again) { on_ranks(exchange_all, NULL); }
END_TEST

/* ---- failing allocations of rank 1 ---- */

struct failing {
  int kind; /* KINDS: joining */
  int64_t k;
  int broke, ended; /* shared: how often the group broke; the k-th allocation did not happen */
};

/* Rank 1's allocation k, k + 1, ... fails. What fails before the ranks are asked can be tried again. Once they are, all of
 * them learn of it: rank 1 at once, the others when it leaves. */
static void fail_collective(int rank, void *context) {
  struct failing *f = context;
  RANK_CHECK(tl_dist_init(SECONDS) == TL_OK);
  int64_t before = live_tensors();
  for (bool ended = false; !ended;) {
    tl_tensor *t = NULL, *out = NULL, *flag = NULL;
    tl_status st, again = TL_OK;
    RANK_CHECK(swapped(rank + 1, TL_FLOAT32, &t) == TL_OK);
    if (rank == 1) tl_fail_allocation(f->k);
    st = collective(f->kind, t, &out);
    if (rank == 1) tl_fail_allocation(0);
    if (rank == 1 && st != TL_OK) {
      RANK_CHECK(st == TL_ERR_MEMORY && out == NULL);
      f->k++;
      again = collective(f->kind, t, &out);
    }
    if (rank != 1 && st != TL_OK) RANK_CHECK(strstr(tl_last_error()->message, " has ended") != NULL);
    if (again != TL_OK) RANK_CHECK(strstr(tl_last_error()->message, "an earlier collective failed") != NULL);
    bool broke = again != TL_OK || (rank != 1 && st != TL_OK);
    if (!broke) RANK_CHECK(is_right(f->kind, t, out, TL_FLOAT32));
    tl_tensor_free(t);
    tl_tensor_free(out);
    RANK_CHECK(live_tensors() == before);
    if (rank == 1) f->broke += broke;
    if (broke) break;
    RANK_CHECK(tl_full(SHAPE(1), rank == 1 && st == TL_OK, TL_INT32, TL_CPU, &flag) == TL_OK);
    st = tl_broadcast_(flag, 1, NULL); /* a rank that only sent learns of it now */
    if (st != TL_OK) RANK_CHECK(rank != 1 && strstr(tl_last_error()->message, " has ended") != NULL);
    ended = st != TL_OK || holds(flag, 1, 1);
    if (rank == 1) f->ended = ended;
    tl_tensor_free(flag);
  }
  RANK_CHECK(tl_dist_destroy() == TL_OK);
}

static void fail_joining(int rank, void *context) {
  struct failing *f = context;
  if (rank == 1) tl_fail_allocation(f->k);
  tl_status st = tl_dist_init(rank == 1 ? SECONDS : 1);
  tl_fail_allocation(0);
  if (rank == 1 && st != TL_OK) {
    RANK_CHECK(st == TL_ERR_MEMORY && !tl_dist_initialized());
    f->k++;
    f->broke++;
    _exit(0); /* the others see it end, or do not see it come */
  }
  if (rank == 1) f->ended = 1;
  if (st == TL_OK) RANK_CHECK(tl_dist_destroy() == TL_OK);
  else RANK_CHECK(st == TL_ERR_STATE);
}

START_TEST(a_failing_allocation_is_an_error_on_all_ranks) {
  struct failing *f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (int kind = 0; kind <= KINDS; kind++) {
    *f = (struct failing){.kind = kind, .k = 1};
    for (int tries = 0; !f->ended; tries++) {
      ck_assert_int_lt(tries, 40);
      on_ranks(kind == KINDS ? fail_joining : fail_collective, f);
    }
    ck_assert_int_gt(f->k, 1);
    ck_assert_int_gt(f->broke, 0);
  }
}
END_TEST

TEST_MAIN("dist", reductions_equal_plain_loops, low_types_are_rounded_once, joining_says_what_is_wrong,
          ranks_exchange_and_meet_again, a_failing_allocation_is_an_error_on_all_ranks)
