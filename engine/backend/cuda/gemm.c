/* gemm.c: batched products on cuBLASLt.
 *
 * The library thinks in columns: our row-major c = a b is its c^T = b^T a^T, so its A is our b and the bias of our columns
 * is its bias of rows. float32 stays float32 unless TF32 is allowed; float16 and bfloat16 accumulate in float32, and
 * partial sums of a split k are kept in float32, too. What was found for a problem (descriptors, layouts, the algorithm)
 * is kept under its sizes, strides and alignments.
 *
 * Operands without a leading dimension (expanded, overlapping, every second column ...) and batches that are not one
 * strided batch are packed first. Integers, and sums over nothing (k = 0), have kernels of their own (gemm.cu). */
#include "backend/gemm.h"

#include <string.h>

#include "backend/cuda/library.h"
#include "backend/cuda/table.h"
#include "backend/reduce.h"

#define WORKSPACE_MAX ((size_t)32 << 20)
#define BATCH_MAX 65535  /* a grid's third dim, which most algorithms use for the batch */
#define ALIGNMENT_MAX 16 /* the widest access */

/* ---- plans: what cuBLASLt prepared for a problem ---- */

typedef struct product_key {
  int64_t m, n, k, batch;                               /* ours */
  int64_t ld[3], step[3];                               /* of a, b, c */
  int32_t dtype, epilogue, transposed[2], alignment[4]; /* of a, b, c, bias */
  int32_t tf32, wide;
} product_key;

typedef struct product_plan {
  product_key key;
  cublasLtMatmulDesc_t product;
  cublasLtMatrixLayout_t layout[3]; /* of a, b, c */
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace;
} product_plan;

static void drop_plan(void *entry) {
  product_plan *p = entry;
  if (p->product != NULL) cublasLtMatmulDescDestroy(p->product);
  for (int i = 0; i < 3; i++)
    if (p->layout[i] != NULL) cublasLtMatrixLayoutDestroy(p->layout[i]);
}

static cudaDataType_t type_of(int dtype) {
  switch (dtype) {
    case TL_FLOAT16: return CUDA_R_16F;
    case TL_BFLOAT16: return CUDA_R_16BF;
    case TL_FLOAT64: return CUDA_R_64F;
    default: return CUDA_R_32F;
  }
}

static int32_t alignment_of(const void *p) {
  int32_t a = ALIGNMENT_MAX;
  while ((uintptr_t)p % (uintptr_t)a != 0) a /= 2;
  return a;
}

/* The key of a problem with at most one batch dim, whose matrices all have a leading dimension. */
static product_key key_of(const tl_gemm *g, int epilogue, const void *vector) {
  const tl_matrix *x[3] = {&g->a, &g->b, &g->c};
  const tl_reading a = tl_reading_of(&g->a, g->m, g->k), b = tl_reading_of(&g->b, g->k, g->n);
  product_key key;
  memset(&key, 0, sizeof key);
  key.m = g->m, key.n = g->n, key.k = g->k;
  key.batch = g->batch_ndim == 0 ? 1 : g->batch[0];
  key.ld[0] = a.ld, key.ld[1] = b.ld, key.ld[2] = g->m == 1 ? g->n : g->c.row;
  for (int i = 0; i < 3; i++) {
    key.step[i] = key.batch == 1 ? 0 : x[i]->batch[0];
    key.alignment[i] = alignment_of(x[i]->data);
  }
  key.alignment[3] = vector == NULL ? ALIGNMENT_MAX : alignment_of(vector);
  key.dtype = g->dtype;
  key.epilogue = epilogue;
  key.transposed[0] = a.transposed, key.transposed[1] = b.transposed;
  key.wide = g->wide;
  key.tf32 = g->dtype == TL_FLOAT32 && tl_cuda_tf32_allowed();
  return key;
}

/* A stored matrix: rows x columns in our order, or transposed, is columns x rows of the library's. */
static tl_status make_layout(const char *op, const product_key *key, int i, int64_t rows, int64_t cols,
                             cublasLtMatrixLayout_t *out) {
  const bool transposed = i < 2 && key->transposed[i] != 0;
  const int32_t batch = (int32_t)key->batch;
  const cudaDataType_t type = i == 2 && key->wide ? CUDA_R_32F : type_of(key->dtype);
  TL_BLAS_TRY(op, cublasLtMatrixLayoutCreate(out, type, (uint64_t)(transposed ? rows : cols),
                                             (uint64_t)(transposed ? cols : rows), key->ld[i]));
  if (batch == 1) return TL_OK;
  TL_BLAS_TRY(op, cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
  TL_BLAS_TRY(op, cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &key->step[i],
                                                   sizeof key->step[i]));
  return TL_OK;
}

/* What else a product gives or takes in the same call. */
typedef struct epilogue {
  int kind;           /* cublasLtEpilogue_t */
  const void *vector; /* the bias, or gets the sums */
  void *aux;          /* gets the argument of the gelu, or NULL */
} epilogue;

static tl_status set_pointers(const char *op, const product_plan *p, const epilogue *e) {
  if (e->vector != NULL)
    TL_BLAS_TRY(op, cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &e->vector,
                                                   sizeof e->vector));
  if (e->aux != NULL)
    TL_BLAS_TRY(op, cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &e->aux,
                                                   sizeof e->aux));
  return TL_OK;
}

static tl_status make_descriptors(const char *op, product_plan *p, const epilogue *e) {
  const product_key *key = &p->key;
  const cublasOperation_t of_a = key->transposed[0] ? CUBLAS_OP_T : CUBLAS_OP_N,
                          of_b = key->transposed[1] ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasLtEpilogue_t kind = (cublasLtEpilogue_t)e->kind;
  const cublasComputeType_t compute = key->dtype == TL_FLOAT64 ? CUBLAS_COMPUTE_64F
                                      : key->tf32              ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                               : CUBLAS_COMPUTE_32F;
  TL_BLAS_TRY(op, cublasLtMatmulDescCreate(&p->product, compute, key->dtype == TL_FLOAT64 ? CUDA_R_64F : CUDA_R_32F));
  TL_BLAS_TRY(op, cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSA, &of_b, sizeof of_b));
  TL_BLAS_TRY(op, cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSB, &of_a, sizeof of_a));
  TL_BLAS_TRY(op, cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &kind, sizeof kind));
  if (e->aux != NULL)
    TL_BLAS_TRY(
        op, cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &key->n, sizeof key->n));
  TL_TRY(set_pointers(op, p, e));
  TL_TRY(make_layout(op, key, 0, key->m, key->k, &p->layout[0]));
  TL_TRY(make_layout(op, key, 1, key->k, key->n, &p->layout[1]));
  return make_layout(op, key, 2, key->m, key->n, &p->layout[2]);
}

static tl_status set_preference(const char *op, cublasLtMatmulPreference_t to, const product_key *key) {
  static const cublasLtMatmulPreferenceAttributes_t alignments[4] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  const uint64_t most = WORKSPACE_MAX;
  const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* no half sums, always one order */
  TL_BLAS_TRY(op,
              cublasLtMatmulPreferenceSetAttribute(to, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most));
  TL_BLAS_TRY(op, cublasLtMatmulPreferenceSetAttribute(to, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                                       sizeof schemes));
  for (int i = 0; i < 4; i++) {
    /* c and d are one matrix; what is left is the epilogue's vector, which has no attribute of its own */
    int32_t bytes = key->alignment[i < 3 ? i : 2];
    if (i == 3 && key->alignment[3] < bytes) bytes = key->alignment[3];
    const uint32_t least = (uint32_t)bytes;
    TL_BLAS_TRY(op, cublasLtMatmulPreferenceSetAttribute(to, alignments[i], &least, sizeof least));
  }
  return TL_OK;
}

/* The library's first choice. *found = false: it has none for this problem. */
static tl_status choose(const char *op, cublasLtHandle_t blas, product_plan *p, bool *found) {
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t choice;
  int choices = 0;
  TL_BLAS_TRY(op, cublasLtMatmulPreferenceCreate(&preference));
  tl_status st = set_preference(op, preference, &p->key);
  if (st == TL_OK) {
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(blas, p->product, p->layout[1], p->layout[0], p->layout[2],
                                                           p->layout[2], preference, 1, &choice, &choices);
    /* some combinations with an epilogue count as invalid values */
    const bool none = status == CUBLAS_STATUS_NOT_SUPPORTED ||
                      (status == CUBLAS_STATUS_INVALID_VALUE && p->key.epilogue != CUBLASLT_EPILOGUE_DEFAULT &&
                       p->key.epilogue != CUBLASLT_EPILOGUE_BIAS);
    if (status != CUBLAS_STATUS_SUCCESS && !none) st = tl_cuda_blas_failed(status, op, __FILE__, __LINE__);
    else *found = status == CUBLAS_STATUS_SUCCESS && choices > 0 && choice.state == CUBLAS_STATUS_SUCCESS;
  }
  cublasLtMatmulPreferenceDestroy(preference);
  if (st != TL_OK || !*found) return st;
  p->algorithm = choice.algo;
  p->workspace = choice.workspaceSize;
  return TL_OK;
}

/* The plan of a key, made at its first use; NULL where the library has no algorithm. */
static tl_status plan_of(const char *op, cublasLtHandle_t blas, const product_key *key, const epilogue *e,
                         product_plan **out) {
  tl_cuda_cache *cache = &tl_cuda_caches_here()->products;
  *out = tl_cuda_cache_find(cache, key, sizeof *key, sizeof **out);
  if (*out != NULL) return set_pointers(op, *out, e);
  product_plan p = {.key = *key};
  bool found = false;
  tl_status st = make_descriptors(op, &p, e);
  if (st == TL_OK) st = choose(op, blas, &p, &found);
  if (st == TL_OK && found) {
    void *kept = NULL;
    st = tl_cuda_cache_add(cache, op, &p, sizeof *key, sizeof p, drop_plan, &kept);
    *out = kept;
  }
  if (*out == NULL) drop_plan(&p);
  return st;
}

/* ---- one strided batch ---- */

static tl_status multiply(const tl_gemm *g, cublasLtHandle_t blas, const product_plan *p) {
  const float alpha = (float)g->alpha, beta = (float)g->beta;
  const bool wide = g->dtype == TL_FLOAT64;
  void *workspace = NULL;
  if (p->workspace > 0 && (workspace = tl_cuda_scratch(g->op, p->workspace)) == NULL) return TL_ERR_MEMORY;
  cublasStatus_t status =
      cublasLtMatmul(blas, p->product, wide ? (const void *)&g->alpha : &alpha, g->b.data, p->layout[1], g->a.data,
                     p->layout[0], wide ? (const void *)&g->beta : &beta, g->c.data, p->layout[2], g->c.data,
                     p->layout[2], &p->algorithm, workspace, p->workspace, tl_cuda_here()->stream);
  if (workspace != NULL) tl_cuda_scratch_free(workspace, p->workspace);
  TL_BLAS_TRY(g->op, status);
  return tl_cuda_launched(g->op);
}

/* *found = false: nothing was done, because the library has no algorithm. */
static tl_status run(const tl_gemm *g, const epilogue *e, bool *found) {
  const product_key key = key_of(g, e->kind, e->vector);
  cublasLtHandle_t blas;
  product_plan *plan;
  TL_TRY(tl_cuda_blas_open(g->op, &blas));
  tl_status st = plan_of(g->op, blas, &key, e, &plan);
  *found = st == TL_OK && plan != NULL;
  if (*found) st = multiply(g, blas, plan);
  tl_cuda_library_close();
  return st;
}

static tl_status run_all(const tl_gemm *g) {
  const int64_t count = g->batch_ndim == 0 ? 1 : g->batch[0];
  for (int64_t first = 0; first < count; first += BATCH_MAX) {
    bool found;
    tl_gemm some = tl_gemm_item(g, first);
    some.batch_ndim = g->batch_ndim;
    some.batch[0] = count - first < BATCH_MAX ? count - first : BATCH_MAX;
    const epilogue e = {g->bias != NULL ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT, g->bias, NULL};
    TL_TRY(run(&some, &e, &found));
    if (!found)
      return TL_FAIL(TL_ERR_UNSUPPORTED, g->op,
                     "cuBLASLt has no algorithm for (%lldx%lld) times (%lldx%lld), %lld at a time, of dtype number %d",
                     (long long)g->m, (long long)g->k, (long long)g->k, (long long)g->n, (long long)some.batch[0],
                     g->dtype);
  }
  return TL_OK;
}

/* ---- operands that the library cannot read ---- */

typedef struct scratch {
  void *data;
  size_t bytes;
} scratch;

static bool one_batch(const tl_gemm *g, const tl_matrix *x) {
  for (int d = 0; d < g->batch_ndim - 1; d++)
    if (!tl_gemm_steps_alike(x, g, d)) return false;
  return true;
}

/* A dense copy of an array takes its place; batch dims that are all expanded stay so. */
static tl_status pack(const char *op, int dtype, int batch_ndim, const int64_t *batch, tl_matrix *x, int64_t rows,
                      int64_t cols, scratch *s) {
  const int64_t size = (int64_t)tl_dtype_size(dtype);
  bool shared = true;
  for (int d = 0; d < batch_ndim; d++) shared = shared && x->batch[d] == 0;
  const int n = shared ? 0 : batch_ndim;
  tl_iter it = {.n = 2, .ndim = n + 2, .numel = 1};
  int64_t step = 1;
  for (int d = n + 1; d >= 0; d--) {
    it.shape[d] = d == n + 1 ? cols : d == n ? rows : batch[d];
    it.op[0].stride[d] = step * size;
    it.op[1].stride[d] = size * (d == n + 1 ? x->col : d == n ? x->row : x->batch[d]);
    if (d < n) x->batch[d] = step;
    step *= it.shape[d];
  }
  it.numel = step;
  s->bytes = (size_t)(step * size);
  if ((s->data = tl_cuda_scratch(op, s->bytes)) == NULL) return TL_ERR_MEMORY;
  it.op[0].data = s->data;
  it.op[1].data = x->data;
  it.op[0].dtype = it.op[1].dtype = dtype;
  x->data = s->data;
  x->row = cols;
  x->col = 1;
  return tl_cuda_copy(&it);
}

static tl_status make_readable(const tl_gemm *g, tl_matrix *x, int64_t rows, int64_t cols, scratch *s) {
  if (tl_reading_of(x, rows, cols).possible && one_batch(g, x)) return TL_OK;
  return pack(g->op, g->dtype, g->batch_ndim, g->batch, x, rows, cols, s);
}

/* sums (m) = the sums of a's rows */
static tl_status sum_rows(const tl_gemm *g, void *sums) {
  const int64_t size = (int64_t)tl_dtype_size(g->dtype);
  tl_iter it = {.n = 2, .ndim = 2, .numel = g->m * g->k, .shape = {g->m, g->k}};
  it.op[0] = (tl_operand){.data = sums, .dtype = g->dtype, .stride = {size, 0}};
  it.op[1] = (tl_operand){.data = g->a.data, .dtype = g->dtype, .stride = {g->a.row * size, g->a.col * size}};
  return tl_cuda_reduce(TL_REDUCE_KIND_SUM, &it, 1, 0);
}

/* What is wanted beside c. */
typedef struct extra {
  void *sums; /* of a's rows, or NULL */
  bool gelu;  /* c is the gelu of the product, which goes to pre */
  void *pre;  /* or NULL */
  bool *done; /* of the gelu */
} extra;

static tl_status finish(const tl_gemm *g, const extra *x) {
  if (x->sums != NULL) {
    const epilogue e = {CUBLASLT_EPILOGUE_BGRADB, x->sums, NULL};
    bool found;
    TL_TRY(run(g, &e, &found));
    if (found) return TL_OK;
    TL_TRY(run_all(g));
    return sum_rows(g, x->sums);
  }
  if (!x->gelu) return run_all(g);
  const int alone = g->bias != NULL ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  const int with_pre = g->bias != NULL ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  const epilogue e = {x->pre != NULL ? with_pre : alone, g->bias, x->pre};
  return run(g, &e, x->done);
}

static tl_status floating(const tl_gemm *problem, const extra *x) {
  tl_gemm g = *problem;
  if (!one_batch(&g, &g.c)) { /* item by item of the first dim */
    g.batch_ndim--;
    for (int d = 0; d < g.batch_ndim; d++) {
      g.batch[d] = problem->batch[d + 1];
      g.a.batch[d] = problem->a.batch[d + 1], g.b.batch[d] = problem->b.batch[d + 1];
      g.c.batch[d] = problem->c.batch[d + 1];
    }
    const int64_t size = (int64_t)tl_dtype_size(g.dtype);
    for (int64_t i = 0; i < problem->batch[0]; i++) {
      g.a.data = (char *)problem->a.data + i * problem->a.batch[0] * size;
      g.b.data = (char *)problem->b.data + i * problem->b.batch[0] * size;
      g.c.data = (char *)problem->c.data + i * problem->c.batch[0] * size;
      TL_TRY(floating(&g, x));
    }
    return TL_OK;
  }
  scratch packed[3] = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
  tl_status st = make_readable(&g, &g.a, g.m, g.k, &packed[0]);
  if (st == TL_OK) st = make_readable(&g, &g.b, g.k, g.n, &packed[1]);
  if (st == TL_OK && g.bias != NULL && g.bias_stride != 1 && g.n > 1) {
    tl_matrix bias = {.data = (void *)g.bias, .col = g.bias_stride};
    st = pack(g.op, g.dtype, 0, NULL, &bias, 1, g.n, &packed[2]);
    g.bias = bias.data;
  }
  if (st == TL_OK && g.batch_ndim > 1) {
    tl_matrix *all[3] = {&g.a, &g.b, &g.c};
    const int last = g.batch_ndim - 1;
    for (int i = 0; i < 3; i++) all[i]->batch[0] = all[i]->batch[last];
    g.batch[0] = tl_gemm_batch_count(&g);
    g.batch_ndim = 1;
  }
  if (st == TL_OK) st = finish(&g, x);
  for (int i = 0; i < 3; i++)
    if (packed[i].data != NULL) tl_cuda_scratch_free(packed[i].data, packed[i].bytes);
  return st;
}

tl_status tl_cuda_gemm(const tl_gemm *problem) {
  if (problem->m == 0 || problem->n == 0 || tl_gemm_batch_count(problem) == 0) return TL_OK;
  const extra none = {NULL, false, NULL, NULL};
  tl_gemm g = *problem;
  tl_gemm_fold(&g);
  return g.k == 0 || !tl_is_floating(g.dtype) ? tl_cuda_own_gemm(&g) : floating(&g, &none);
}

tl_status tl_cuda_gemm_sums(const tl_gemm *g, void *sums) {
  const extra x = {.sums = sums};
  return floating(g, &x);
}

/* For the half types only: float32 would get the library's approximation of tanh. Rows of the argument must start at
 * multiples of 8 elements. */
tl_status tl_cuda_gemm_gelu(const tl_gemm *g, void *pre, bool *done) {
  const extra x = {.gelu = true, .pre = pre, .done = done};
  *done = false;
  if (g->dtype != TL_FLOAT16 && g->dtype != TL_BFLOAT16) return TL_OK;
  if (pre != NULL && (g->n % 8 != 0 || alignment_of(pre) < ALIGNMENT_MAX)) return TL_OK;
  return floating(g, &x);
}
