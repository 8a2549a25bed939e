/* bench_csr.c: is a compressed-sparse-row product faster than the dense one for an unstructured-pruned Linear layer? Times
 * y = x W^T for W (n x n) at several sparsities and batches, dense by tl_linear, sparse by the loop below, on one thread:
 *   cc -O3 -march=native -Iengine scripts/bench_csr.c -Lbuild -ltlua -lm -o /tmp/bench_csr && LD_LIBRARY_PATH=build /tmp/bench_csr
 * The sparse side gets its input and output already in the layout that suits it (features x batch). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tlua.h"

enum { RUNS = 31 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* one thread: unlike wall time, not the neighbours' */
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

typedef struct csr {
  int rows;
  int *first, *column;
  float *value;
} csr;

static csr compress(const float *w, int n) {
  csr s = {n, malloc((size_t)(n + 1) * 4), malloc((size_t)n * (size_t)n * 4), malloc((size_t)n * (size_t)n * 4)};
  int used = 0;
  for (int r = 0; r < n; r++) {
    s.first[r] = used;
    for (int c = 0; c < n; c++)
      if (w[(size_t)r * (size_t)n + (size_t)c] != 0) {
        s.column[used] = c;
        s.value[used++] = w[(size_t)r * (size_t)n + (size_t)c];
      }
  }
  s.first[n] = used;
  return s;
}

static void product_1(const csr *s, const float *x, float *y) {
  for (int r = 0; r < s->rows; r++) {
    float sum = 0;
#pragma GCC ivdep
    for (int i = s->first[r]; i < s->first[r + 1]; i++) sum += s->value[i] * x[s->column[i]];
    y[r] = sum;
  }
}

/* x and y (features x batch), batch a multiple of 16 */
static void product(const csr *s, const float *x, float *y, int batch) {
  for (int r = 0; r < s->rows; r++)
    for (int b = 0; b < batch; b += 16) {
      float sum[16] = {0};
      for (int i = s->first[r]; i < s->first[r + 1]; i++) {
        const float v = s->value[i], *row = x + (size_t)s->column[i] * (size_t)batch + b;
        for (int k = 0; k < 16; k++) sum[k] += v * row[k];
      }
      for (int k = 0; k < 16; k++) y[(size_t)r * (size_t)batch + (size_t)b + (size_t)k] = sum[k];
    }
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

static void compare(int n, int batch, double sparsity) {
  const int64_t ws[2] = {n, n}, xs[2] = {batch, n};
  tl_tensor *w, *x, *mask, *y;
  check(tl_empty(2, ws, TL_FLOAT32, TL_CPU, &w));
  check(tl_empty(2, xs, TL_FLOAT32, TL_CPU, &x));
  check(tl_normal_(w, 0, 1, NULL));
  check(tl_normal_(x, 0, 1, NULL));
  check(tl_prune_smallest(w, NULL, (int64_t)(sparsity * n * n), &mask));
  check(tl_mul_(w, mask));
  csr s = compress(tl_data(w), n);
  float *columns = malloc((size_t)n * (size_t)batch * 4), *result = malloc((size_t)n * (size_t)batch * 4);
  const float *rows = tl_data(x);
  for (int b = 0; b < batch; b++)
    for (int c = 0; c < n; c++)
      columns[(size_t)c * (size_t)batch + (size_t)b] = rows[(size_t)b * (size_t)n + (size_t)c];
  double dense[RUNS], sparse[RUNS], difference = 0;
  for (int run = -3; run < RUNS; run++) {
    double begin = now();
    check(tl_linear(x, w, NULL, &y));
    double between = now();
    if (batch == 1) product_1(&s, columns, result);
    else product(&s, columns, result, batch);
    double end = now();
    if (run >= 0) dense[run] = between - begin, sparse[run] = end - between;
    const float *expected = tl_data(y);
    for (int r = 0; r < n && run == 0; r++) /* both compute the same */
      difference = fmax(difference, fabs((double)(expected[r] - result[(size_t)r * (size_t)batch])));
    tl_tensor_free(y);
  }
  const double d = median(dense), p = median(sparse);
  printf("| %d x %d | %d | %g %% | %.1f | %.1f | %.2f |%s\n", n, n, batch, 100 * sparsity, d, p, d / p,
         difference < 1e-2 ? "" : " DIFFERENT");
  fflush(stdout);
  free(s.first), free(s.column), free(s.value), free(columns), free(result);
  tl_tensor_free(w), tl_tensor_free(x), tl_tensor_free(mask);
}

int main(void) {
  check(tl_set_num_threads(1));
  puts("| W | batch | zeros | dense us | CSR us | dense / CSR |\n|---|---|---|---|---|---|");
  const int sizes[] = {512, 2048}, batches[] = {1, 64};
  const double sparsities[] = {.8, .9, .95, .98, .99};
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++)
      for (int k = 0; k < 5; k++) compare(sizes[i], batches[j], sparsities[k]);
  return 0;
}
