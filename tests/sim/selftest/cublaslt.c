/* cublaslt.c: the simulated cuBLASLt against the definition of a product, and what it must refuse. */
#include <cublasLt.h>

#include "libraries.h"

#define LT(call) SIM_EXPECT((call) == CUBLAS_STATUS_SUCCESS)
#define LT_REFUSES(status, call) SIM_EXPECT((call) == CUBLAS_STATUS_##status)

/* ---- one problem ---- */

typedef struct problem {
  number type, out_type;
  int m, n, k, batch;
  bool transa, transb, by_rows, shared_a; /* shared_a: one A for the whole batch */
  int gap;                                /* leading dimensions are longer by this */
  double alpha, beta;
  uint32_t epilogue;
  bool tf32, in_place;
} problem;

typedef struct setting {
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c;
  cublasLtMatmulPreference_t preference;
  int64_t lda, ldb, ldc, a_step, b_step, c_step;
} setting;

static cudaDataType_t cuda_type(number type) {
  return type == F64 ? CUDA_R_64F : type == F32 ? CUDA_R_32F : type == F16 ? CUDA_R_16F : CUDA_R_16BF;
}

static cublasLtMatrixLayout_t make_layout(const problem *p, number type, int rows, int cols, int64_t *ld,
                                          int64_t *step) {
  cublasLtMatrixLayout_t l;
  int32_t order = p->by_rows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL, batch = p->batch;
  *ld = (p->by_rows ? cols : rows) + p->gap;
  if (*step != 0) *step = *ld * (p->by_rows ? rows : cols);
  LT(cublasLtMatrixLayoutCreate(&l, cuda_type(type), (uint64_t)rows, (uint64_t)cols, *ld));
  LT(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order));
  LT(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
  LT(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step, sizeof *step));
  return l;
}

static setting set_up(const problem *p) {
  setting s = {.a_step = !p->shared_a, .b_step = 1, .c_step = 1};
  bool wide = p->type == F64;
  LT(cublasLtCreate(&s.handle));
  LT(cublasLtMatmulDescCreate(&s.desc,
                              wide      ? CUBLAS_COMPUTE_64F
                              : p->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                        : CUBLAS_COMPUTE_32F,
                              wide ? CUDA_R_64F : CUDA_R_32F));
  int32_t transa = p->transa ? CUBLAS_OP_T : CUBLAS_OP_N, transb = p->transb ? CUBLAS_OP_T : CUBLAS_OP_N;
  LT(cublasLtMatmulDescSetAttribute(s.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transa, sizeof transa));
  LT(cublasLtMatmulDescSetAttribute(s.desc, CUBLASLT_MATMUL_DESC_TRANSB, &transb, sizeof transb));
  LT(cublasLtMatmulDescSetAttribute(s.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue));
  s.a = make_layout(p, p->type, p->transa ? p->k : p->m, p->transa ? p->m : p->k, &s.lda, &s.a_step);
  s.b = make_layout(p, p->type, p->transb ? p->n : p->k, p->transb ? p->k : p->n, &s.ldb, &s.b_step);
  s.c = make_layout(p, p->out_type, p->m, p->n, &s.ldc, &s.c_step);
  LT(cublasLtMatmulPreferenceCreate(&s.preference));
  uint64_t workspace = 64 << 20;
  LT(cublasLtMatmulPreferenceSetAttribute(s.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                          sizeof workspace));
  return s;
}

static void tear_down(setting *s) {
  LT(cublasLtMatmulPreferenceDestroy(s->preference));
  LT(cublasLtMatrixLayoutDestroy(s->a));
  LT(cublasLtMatrixLayoutDestroy(s->b));
  LT(cublasLtMatrixLayoutDestroy(s->c));
  LT(cublasLtMatmulDescDestroy(s->desc));
  LT(cublasLtDestroy(s->handle));
}

static void set_pointer(setting *s, cublasLtMatmulDescAttributes_t what, void *p) {
  LT(cublasLtMatmulDescSetAttribute(s->desc, what, &p, sizeof p));
}

static size_t place(const problem *p, bool transposed, int64_t ld, int i, int j) {
  int row = transposed ? j : i, col = transposed ? i : j;
  return p->by_rows ? (size_t)(row * ld + col) : (size_t)(row + col * ld);
}

static double tf32(double v) {
  int e;
  double m = frexp(v, &e);
  return ldexp(nearbyint(m * 2048), e - 11);
}

static double dot(const problem *p, const setting *s, const array *a, const array *b, int batch, int i, int j) {
  double sum = 0;
  for (int k = 0; k < p->k; k++) {
    double x = a->value[(size_t)(batch * s->a_step) + place(p, p->transa, s->lda, i, k)];
    double y = b->value[(size_t)(batch * s->b_step) + place(p, p->transb, s->ldb, k, j)];
    sum += p->tf32 ? tf32(x) * tf32(y) : x * y;
  }
  return sum;
}

static double gelu(double x) {
  return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

/* Runs every algorithm that the heuristic names. */
static void check(const problem *p) {
  setting s = set_up(p);
  array a = array_random(p->type, (size_t)(s.a_step * (p->batch - 1) + s.lda * (p->m + p->k)), 1);
  array b = array_random(p->type, (size_t)(s.b_step * (p->batch - 1) + s.ldb * (p->n + p->k)), 2);
  array bias = array_random(p->out_type, (size_t)(p->m > p->n ? p->m : p->n), 3);
  size_t c_size = (size_t)(s.c_step * p->batch);
  bool bias_out = p->epilogue == CUBLASLT_EPILOGUE_BGRADA || p->epilogue == CUBLASLT_EPILOGUE_BGRADB;
  if (p->epilogue != CUBLASLT_EPILOGUE_DEFAULT) set_pointer(&s, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.device);
  cublasLtMatmulHeuristicResult_t found[8];
  int count = 0;
  LT(cublasLtMatmulAlgoGetHeuristic(s.handle, s.desc, s.a, s.b, s.c, s.c, s.preference, 8, found, &count));
  SIM_EXPECT(count > 0);
  for (int algo = 0; algo < count; algo++) {
    array c = array_random(p->out_type, c_size, 4), d = array_random(p->out_type, c_size, 5);
    if (p->beta == 0 && !p->in_place) SIM_OK(cudaMemset(c.device, 0xff, 2)); /* nan: must not be read */
    void *workspace = NULL;
    if (found[algo].workspaceSize > 0) SIM_OK(cudaMalloc(&workspace, found[algo].workspaceSize));
    float alpha = (float)p->alpha, beta = (float)p->beta;
    bool wide = p->type == F64;
    LT(cublasLtMatmul(s.handle, s.desc, wide ? (const void *)&p->alpha : &alpha, a.device, s.a, b.device, s.b,
                      wide ? (const void *)&p->beta : &beta, c.device, s.c, p->in_place ? c.device : d.device, s.c,
                      &found[algo].algo, workspace, found[algo].workspaceSize, NULL));
    array *out = p->in_place ? &c : &d;
    for (int batch = 0; batch < p->batch; batch++)
      for (int i = 0; i < p->m; i++)
        for (int j = 0; j < p->n; j++) {
          size_t at = (size_t)(batch * s.c_step) + place(p, false, s.ldc, i, j);
          double v = p->alpha * dot(p, &s, &a, &b, batch, i, j);
          if (p->beta != 0) v += p->beta * c.value[at];
          if (!bias_out && (p->epilogue & CUBLASLT_EPILOGUE_BIAS)) v += bias.value[i];
          if (!bias_out && (p->epilogue & CUBLASLT_EPILOGUE_RELU)) v = v > 0 ? v : 0;
          if (!bias_out && (p->epilogue & CUBLASLT_EPILOGUE_GELU)) v = gelu(v);
          out->value[at] = v;
        }
    array_check(out, "D"); /* what lies in the gaps stays */
    if (workspace != NULL) SIM_OK(cudaFree(workspace));
    array_free(&c);
    array_free(&d);
  }
  for (int i = 0; bias_out && i < (p->epilogue == CUBLASLT_EPILOGUE_BGRADA ? p->m : p->n); i++) {
    bias.value[i] = 0;
    for (int k = 0; k < p->k; k++)
      bias.value[i] += p->epilogue == CUBLASLT_EPILOGUE_BGRADA ? a.value[place(p, p->transa, s.lda, i, k)]
                                                               : b.value[place(p, p->transb, s.ldb, k, i)];
  }
  array_check(&bias, "bias");
  array_free(&a);
  array_free(&b);
  array_free(&bias);
  tear_down(&s);
}

static problem plain(number type, int m, int n, int k) {
  return (problem){.type = type,
                   .out_type = type,
                   .m = m,
                   .n = n,
                   .k = k,
                   .batch = 1,
                   .alpha = 1,
                   .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
}

/* ---- products ---- */

static void shapes_and_transpositions(number type) {
  static const int sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {4, 8, 32}, {17, 9, 300}, {33, 270, 5}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int form = 0; form < 8; form++) {
      problem p = plain(type, sizes[i][0], sizes[i][1], sizes[i][2]);
      p.transa = form & 1, p.transb = form & 2, p.by_rows = form & 4;
      p.gap = form == 3 ? 5 : 0;
      p.alpha = form == 2 ? -0.5 : 1;
      p.beta = form == 5 ? 2 : 0;
      p.in_place = form == 5 || form == 6;
      check(&p);
    }
}

SIM_CLEAN(cublaslt_float32) { shapes_and_transpositions(F32); }
SIM_CLEAN_WITH(cublaslt_float64, "TLUA_SIM_SEED=3") { shapes_and_transpositions(F64); }
SIM_CLEAN_WITH(cublaslt_float16, "TLUA_SIM_SEED=4") { shapes_and_transpositions(F16); }
SIM_CLEAN_WITH(cublaslt_bfloat16, "TLUA_SIM_SEED=5") { shapes_and_transpositions(BF16); }

SIM_CLEAN(cublaslt_low_types_into_float32) {
  for (int i = 0; i < 2; i++) {
    problem p = plain(i == 0 ? F16 : BF16, 16, 8, 24);
    p.out_type = F32;
    check(&p);
  }
}

SIM_CLEAN(cublaslt_batches) {
  for (int form = 0; form < 4; form++) {
    problem p = plain(F32, 8, 12, 36);
    p.batch = 3;
    p.by_rows = form & 1, p.shared_a = form & 2;
    p.gap = form;
    check(&p);
  }
}

SIM_CLEAN_WITH(cublaslt_epilogues, "TLUA_SIM_SEED=6") {
  static const uint32_t epilogues[] = {
      CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_RELU,
      CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_BGRADA,    CUBLASLT_EPILOGUE_BGRADB};
  for (int type = F32; type <= BF16; type++)
    for (int e = 0; e < 7; e++) {
      if (type == F64 && e >= 5) continue;
      problem p = plain((number)type, 20, 12, 40);
      p.epilogue = epilogues[e];
      p.beta = e == 1 ? 0.5 : 0;
      p.transa = e & 1, p.transb = e & 2;
      check(&p);
    }
}

SIM_CLEAN_WITH(cublaslt_epilogues_that_a_device_lacks, "TLUA_SIM_SEED=7") {
  problem p = plain(F32, 20, 12, 40);
  p.epilogue = CUBLASLT_EPILOGUE_BGRADB;
  setting s = set_up(&p);
  cublasLtMatmulHeuristicResult_t found[8];
  int count = 1;
  LT_REFUSES(NOT_SUPPORTED,
             cublasLtMatmulAlgoGetHeuristic(s.handle, s.desc, s.a, s.b, s.c, s.c, s.preference, 8, found, &count));
  SIM_EXPECT(count == 0);
}

SIM_CLEAN(cublaslt_tf32_keeps_10_bits) {
  problem p = plain(F32, 9, 11, 64);
  p.tf32 = true;
  check(&p);
}

/* GELU's input goes out, and its gradient comes back by it with the bias gradient. */
SIM_CLEAN(cublaslt_gelu_aux_and_back) {
  enum { M = 16, N = 6, K = 8 };
  problem p = plain(F32, M, N, K);
  p.epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
  setting s = set_up(&p);
  array a = array_random(F32, M * K, 1), b = array_random(F32, K * N, 2), d = array_random(F32, M * N, 3);
  array aux = array_random(F32, M * N, 4), bias = array_full(F32, M, 0);
  int64_t ld = M;
  float one = 1, zero = 0;
  set_pointer(&s, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux.device);
  LT_REFUSES(INVALID_VALUE, cublasLtMatmul(s.handle, s.desc, &one, a.device, s.a, b.device, s.b, &zero, d.device, s.c,
                                           d.device, s.c, NULL, NULL, 0, NULL)); /* AUX_LD is 0 */
  LT(cublasLtMatmulDescSetAttribute(s.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld));
  LT(cublasLtMatmul(s.handle, s.desc, &one, a.device, s.a, b.device, s.b, &zero, d.device, s.c, d.device, s.c, NULL,
                    NULL, 0, NULL));
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      aux.value[i + j * M] = dot(&p, &s, &a, &b, 0, i, j);
      d.value[i + j * M] = gelu(aux.value[i + j * M]);
    }
  array_check(&aux, "aux");
  array_check(&d, "gelu");
  uint32_t back = CUBLASLT_EPILOGUE_DGELU_BGRAD;
  LT(cublasLtMatmulDescSetAttribute(s.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &back, sizeof back));
  set_pointer(&s, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.device);
  LT(cublasLtMatmul(s.handle, s.desc, &one, a.device, s.a, b.device, s.b, &zero, d.device, s.c, d.device, s.c, NULL,
                    NULL, 0, NULL));
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      double x = aux.value[i + j * M], h = 1e-5, slope = (gelu(x + h) - gelu(x - h)) / (2 * h);
      d.value[i + j * M] = dot(&p, &s, &a, &b, 0, i, j) * slope;
      bias.value[i] += d.value[i + j * M];
    }
  array_check(&d, "gelu's gradient");
  array_check(&bias, "bias gradient");
  tear_down(&s);
}

SIM_CLEAN(cublaslt_factors_on_the_device) {
  problem p = plain(F32, 4, 4, 4);
  setting s = set_up(&p);
  int32_t mode = CUBLASLT_POINTER_MODE_DEVICE;
  LT(cublasLtMatmulDescSetAttribute(s.desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, sizeof mode));
  array a = array_random(F32, 16, 1), b = array_random(F32, 16, 2), d = array_random(F32, 16, 3);
  array alpha = array_full(F32, 1, 3), beta = array_full(F32, 1, 0.5);
  LT(cublasLtMatmul(s.handle, s.desc, alpha.device, a.device, s.a, b.device, s.b, beta.device, d.device, s.c, d.device,
                    s.c, NULL, NULL, 0, NULL));
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) d.value[i + j * 4] = 3 * dot(&p, &s, &a, &b, 0, i, j) + 0.5 * d.value[i + j * 4];
  array_check(&d, "D");
  tear_down(&s);
}

/* ---- refusals ---- */

typedef struct call {
  problem p;
  setting s;
  array a, b, c, d;
} call;

static call make_call(problem p) {
  call c = {.p = p, .s = set_up(&p)};
  c.a = array_random(p.type, (size_t)(p.m * p.k + 64), 1);
  c.b = array_random(p.type, (size_t)(p.k * p.n + 64), 2);
  c.c = array_random(p.out_type, (size_t)(p.m * p.n + 64), 3);
  c.d = array_random(p.out_type, (size_t)(p.m * p.n + 64), 4);
  return c;
}

static cublasStatus_t run_call(const call *c, const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes) {
  float one = 1, zero = 0;
  return cublasLtMatmul(c->s.handle, c->s.desc, &one, c->a.device, c->s.a, c->b.device, c->s.b, &zero, c->c.device,
                        c->s.c, c->d.device, c->s.c, algo, workspace, bytes, NULL);
}

static int ask(const call *c, cublasLtMatmulHeuristicResult_t found[8]) {
  int count = 0;
  cublasLtMatmulAlgoGetHeuristic(c->s.handle, c->s.desc, c->s.a, c->s.b, c->s.c, c->s.c, c->s.preference, 8, found,
                                 &count);
  return count;
}

SIM_CLEAN(cublaslt_refuses_shapes_that_do_not_fit) {
  call c = make_call(plain(F32, 8, 8, 8));
  uint64_t rows = 9;
  int64_t ld = 4;
  int32_t batch = 2;
  LT(cublasLtMatrixLayoutSetAttribute(c.s.b, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
  LT_REFUSES(INVALID_VALUE, run_call(&c, NULL, NULL, 0));
  batch = 1;
  LT(cublasLtMatrixLayoutSetAttribute(c.s.b, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
  LT(run_call(&c, NULL, NULL, 0));
  LT(cublasLtMatrixLayoutSetAttribute(c.s.c, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld));
  LT_REFUSES(INVALID_VALUE, run_call(&c, NULL, NULL, 0));
  ld = 9;
  LT(cublasLtMatrixLayoutSetAttribute(c.s.c, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld));
  LT(cublasLtMatrixLayoutSetAttribute(c.s.b, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld));
  LT(cublasLtMatrixLayoutSetAttribute(c.s.b, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows));
  LT_REFUSES(INVALID_VALUE, run_call(&c, NULL, NULL, 0));
}

SIM_CLEAN(cublaslt_refuses_what_it_does_not_model) {
  call c = make_call(plain(F16, 8, 8, 8));
  int32_t compute = CUBLAS_COMPUTE_16F, mode = CUBLASLT_POINTER_MODE_DEVICE_VECTOR, host = CUBLASLT_POINTER_MODE_HOST;
  uint32_t masks = CUBLASLT_EPILOGUE_RELU_AUX;
  LT(cublasLtMatmulDescSetAttribute(c.s.desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, sizeof mode));
  LT_REFUSES(NOT_SUPPORTED, run_call(&c, NULL, NULL, 0));
  LT(cublasLtMatmulDescSetAttribute(c.s.desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &host, sizeof host));
  LT(cublasLtMatmulDescSetAttribute(c.s.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &masks, sizeof masks));
  LT_REFUSES(NOT_SUPPORTED, run_call(&c, NULL, NULL, 0));
  masks = CUBLASLT_EPILOGUE_DEFAULT;
  LT(cublasLtMatmulDescSetAttribute(c.s.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &masks, sizeof masks));
  LT(run_call(&c, NULL, NULL, 0));
  LT(cublasLtMatmulDescSetAttribute(c.s.desc, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &compute, sizeof compute));
  LT_REFUSES(NOT_SUPPORTED, run_call(&c, NULL, NULL, 0));
  LT_REFUSES(NOT_SUPPORTED, cublasLtMatmulDescSetAttribute(c.s.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &c.a.device,
                                                           sizeof c.a.device));
}

SIM_CLEAN(cublaslt_refuses_missing_pointers) {
  problem p = plain(F32, 8, 8, 8);
  p.epilogue = CUBLASLT_EPILOGUE_BIAS;
  call c = make_call(p);
  LT_REFUSES(INVALID_VALUE, run_call(&c, NULL, NULL, 0)); /* no bias */
  set_pointer(&c.s, CUBLASLT_MATMUL_DESC_BIAS_POINTER, c.c.device);
  LT(run_call(&c, NULL, NULL, 0));
  void *kept = c.a.device;
  c.a.device = NULL;
  LT_REFUSES(INVALID_VALUE, run_call(&c, NULL, NULL, 0));
  c.a.device = (char *)kept + 1;
  LT_REFUSES(INVALID_VALUE, run_call(&c, NULL, NULL, 0));
}

SIM_CLEAN(cublaslt_needs_the_workspace_it_asked_for) {
  call c = make_call(plain(F32, 16, 16, 64));
  cublasLtMatmulHeuristicResult_t found[8];
  int count = ask(&c, found), with = -1;
  for (int i = 0; i < count; i++)
    if (found[i].workspaceSize > 0) with = i;
  SIM_EXPECT(with >= 0);
  void *workspace;
  size_t bytes = found[with].workspaceSize;
  SIM_OK(cudaMalloc(&workspace, bytes + 16));
  LT_REFUSES(INVALID_VALUE, run_call(&c, &found[with].algo, NULL, 0));
  LT_REFUSES(INVALID_VALUE, run_call(&c, &found[with].algo, NULL, bytes));
  LT_REFUSES(INVALID_VALUE, run_call(&c, &found[with].algo, workspace, bytes - 1));
  LT_REFUSES(INVALID_VALUE, run_call(&c, &found[with].algo, (char *)workspace + 4, bytes));
  LT(run_call(&c, &found[with].algo, workspace, bytes));
  uint64_t none = 0;
  LT(cublasLtMatmulPreferenceSetAttribute(c.s.preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &none,
                                          sizeof none));
  count = ask(&c, found);
  SIM_EXPECT(count > 0);
  for (int i = 0; i < count; i++) SIM_EXPECT(found[i].workspaceSize == 0);
}

SIM_CLEAN(cublaslt_needs_the_alignment_it_was_told) {
  call c = make_call(plain(F32, 16, 16, 64));
  cublasLtMatmulHeuristicResult_t found[8];
  int refused = 0, count = ask(&c, found);
  void *workspace;
  SIM_OK(cudaMalloc(&workspace, 64 << 20));
  c.b.device = (char *)c.b.device + 4;
  for (int i = 0; i < count; i++) refused += run_call(&c, &found[i].algo, workspace, 64 << 20) != CUBLAS_STATUS_SUCCESS;
  SIM_EXPECT(refused > 0 && refused < count);
  uint32_t four = 4;
  LT(cublasLtMatmulPreferenceSetAttribute(c.s.preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &four,
                                          sizeof four));
  count = ask(&c, found);
  SIM_EXPECT(count > 0);
  for (int i = 0; i < count; i++) LT(run_call(&c, &found[i].algo, workspace, 64 << 20));
}

SIM_CLEAN(cublaslt_refuses_an_algorithm_of_other_types) {
  call c = make_call(plain(F32, 16, 16, 64)), other = make_call(plain(F16, 16, 16, 64));
  cublasLtMatmulHeuristicResult_t found[8];
  SIM_EXPECT(ask(&other, found) > 0);
  LT_REFUSES(INVALID_VALUE, run_call(&c, &found[0].algo, NULL, 0));
  cublasLtMatmulAlgo_t zero = {0};
  LT_REFUSES(INVALID_VALUE, run_call(&c, &zero, NULL, 0));
}

SIM_CLEAN(cublaslt_refuses_dead_handles) {
  call c = make_call(plain(F32, 8, 8, 8));
  LT(cublasLtMatrixLayoutDestroy(c.s.a));
  LT_REFUSES(INVALID_VALUE, run_call(&c, NULL, NULL, 0));
  LT_REFUSES(INVALID_VALUE, cublasLtMatrixLayoutDestroy(c.s.a));
  LT(cublasLtDestroy(c.s.handle));
  LT_REFUSES(NOT_INITIALIZED, run_call(&c, NULL, NULL, 0));
}

SIM_CLEAN(cublaslt_descriptors_may_go_before_the_work_runs) {
  call c = make_call(plain(F32, 2, 2, 2));
  LT(run_call(&c, NULL, NULL, 0));
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) c.d.value[i + j * 2] = dot(&c.p, &c.s, &c.a, &c.b, 0, i, j);
  tear_down(&c.s);
  array_check(&c.d, "D");
}

SIM_CLEAN_WITH(cublaslt_calls_fail_on_request, "TLUA_SIM_FAIL=1") {
  cublasLtHandle_t handle;
  LT_REFUSES(NOT_INITIALIZED, cublasLtCreate(&handle));
}

SIM_FAULT(cublaslt_result_over_an_operand, "overlap", "cublasLtMatmul") {
  call c = make_call(plain(F32, 8, 8, 8));
  c.d.device = (char *)c.a.device + 64;
  run_call(&c, NULL, NULL, 0);
}

SIM_FAULT_WITH(cublaslt_handle_of_another_device, "wrong device", "handle of device 0", "TLUA_SIM_DEVICES=2") {
  call c = make_call(plain(F32, 8, 8, 8));
  SIM_OK(cudaSetDevice(1));
  run_call(&c, NULL, NULL, 0);
}

static void use_and_leave(bool destroy) {
  setting s = set_up(&(problem){.type = F32, .out_type = F32, .m = 1, .n = 1, .k = 1, .batch = 1});
  if (destroy) tear_down(&s);
}
SIM_FAULT_WITH(leaks_library_handles, "leak", "6 handles and descriptors", "TLUA_SIM_LEAKS=1") { use_and_leave(false); }
SIM_CLEAN_WITH(leaks_no_library_handles, "TLUA_SIM_LEAKS=1") { use_and_leave(true); }

static void multiply_what_is_fresh(bool a) {
  call c = make_call(plain(F32, 4, 4, 4));
  void *fresh;
  SIM_OK(cudaMalloc(&fresh, 256));
  if (a) c.a.device = fresh;
  else c.d.device = fresh; /* written only */
  run_call(&c, NULL, NULL, 0);
  SIM_OK(cudaDeviceSynchronize());
}
SIM_CHECK_FAULT(cublaslt_reads_what_nothing_wrote, "uninitialised", "cublasLtMatmul") { multiply_what_is_fresh(true); }
SIM_CLEAN(cublaslt_writes_what_nothing_wrote) { multiply_what_is_fresh(false); }
