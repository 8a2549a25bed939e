/* bench_csr.c: from how many zeros on is an unstructured-pruned Linear layer faster in compressed rows than dense? Times
 * tl_sparse_linear against tl_linear for W (n x n), several sparsities and batches, on one thread:
 *   cc -O2 -Iengine scripts/bench_csr.c -Lbuild -ltlua -lm -o /tmp/bench_csr && LD_LIBRARY_PATH=build /tmp/bench_csr
 * The last column is the share of zeros at which both take the same time, between two that were measured. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tlua.h"

enum { RUNS = 15, SPARSITIES = 6 };
static const double sparsities[SPARSITIES] = {.5, .7, .8, .9, .95, .98};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* one thread: unlike wall time, not the neighbours' */
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *t) {
  qsort(t, RUNS, sizeof *t, by_value);
  return t[RUNS / 2] * 1e6;
}

static void check(tl_status st) {
  if (st == TL_OK) return;
  fprintf(stderr, "%s: %s\n", tl_last_error()->op, tl_last_error()->message);
  exit(1);
}

/* Both compute the same? */
static void compare(tl_tensor *dense, tl_tensor *sparse) {
  const float *a = tl_data(dense), *b = tl_data(sparse);
  double largest = 0, difference = 0;
  for (int64_t i = 0; i < tl_numel(dense); i++) {
    largest = fmax(largest, fabs((double)a[i]));
    difference = fmax(difference, fabs((double)a[i] - (double)b[i]));
  }
  if (difference <= 1e-5 * largest) return;
  fprintf(stderr, "the products differ by %g\n", difference / largest);
  exit(1);
}

/* Microseconds of a dense and of a sparse product. */
static void measure(int n, int batch, double sparsity, double *dense, double *sparse) {
  const int64_t ws[2] = {n, n}, xs[2] = {batch, n}, zeros = (int64_t)(sparsity * n * n);
  tl_tensor *w, *x, *mask, *y, *z, *values, *columns, *first;
  check(tl_empty(2, ws, TL_FLOAT32, TL_CPU, &w));
  check(tl_empty(2, xs, TL_FLOAT32, TL_CPU, &x));
  check(tl_normal_(w, 0, 1, NULL));
  check(tl_normal_(x, 0, 1, NULL));
  check(tl_prune_smallest(w, NULL, zeros, &mask));
  check(tl_mul_(w, mask));
  check(tl_sparse_rows(w, &values, &columns, &first));
  double d[RUNS], s[RUNS];
  for (int run = -3; run < RUNS; run++) {
    const double begin = now();
    check(tl_linear(x, w, NULL, &y));
    const double between = now();
    check(tl_sparse_linear(x, values, columns, first, NULL, n, &z));
    const double end = now();
    if (run >= 0) d[run] = between - begin, s[run] = end - between;
    else compare(y, z);
    tl_tensor_free(y), tl_tensor_free(z);
  }
  *dense = median(d), *sparse = median(s);
  tl_tensor_free(w), tl_tensor_free(x), tl_tensor_free(mask);
  tl_tensor_free(values), tl_tensor_free(columns), tl_tensor_free(first);
}

static void line(int n, int batch) {
  double ratio[SPARSITIES], all = 0;
  printf("| %d x %d | %d |", n, n, batch);
  for (int i = 0; i < SPARSITIES; i++) {
    double dense, sparse;
    measure(n, batch, sparsities[i], &dense, &sparse);
    ratio[i] = dense / sparse;
    all += dense / SPARSITIES;
  }
  printf(" %.0f |", all);
  int from = SPARSITIES; /* the first from which on sparse is faster */
  while (from > 0 && ratio[from - 1] >= 1) from--;
  for (int i = 0; i < SPARSITIES; i++) printf(" %.2f |", ratio[i]);
  if (from == 0) printf(" < %g %% |\n", 100 * sparsities[0]);
  else if (from == SPARSITIES) printf(" > %g %% |\n", 100 * sparsities[SPARSITIES - 1]);
  else { /* the sparse time falls with the weights that are left */
    const double a = 1 / ratio[from - 1], b = 1 / ratio[from], share = (a - 1) / (a - b);
    printf(" %.0f %% |\n", 100 * (sparsities[from - 1] + share * (sparsities[from] - sparsities[from - 1])));
  }
  fflush(stdout);
}

int main(void) {
  check(tl_set_num_threads(1));
  puts("| W | batch | dense us | dense / sparse at 50 % zeros | 70 % | 80 % | 90 % | 95 % | 98 % | even at |\n"
       "|---|---|---|---|---|---|---|---|---|---|");
  const int sizes[] = {256, 512, 1024, 2048, 4096}, batches[] = {1, 4, 16, 64};
  for (int j = 0; j < 4; j++)
    for (int i = 0; i < 5; i++) line(sizes[i], batches[j]);
  return 0;
}
