/* dnnl.c: oneDNN behind the functions of dnnl.h. */
#include "backend/dnnl.h"

#include <dnnl.h>

static tl_status failed(const char *op, dnnl_status_t status, const char *what) {
  const char *reason = status == dnnl_out_of_memory        ? "out of memory"
                       : status == dnnl_invalid_arguments  ? "invalid arguments"
                       : status == dnnl_unimplemented      ? "not implemented"
                       : status == dnnl_runtime_error      ? "runtime error"
                                                           : "failure";
  return TL_FAIL(status == dnnl_out_of_memory ? TL_ERR_MEMORY : TL_ERR_UNSUPPORTED, op, "oneDNN %s: %s (status %d)", what,
                 reason, (int)status);
}

tl_status tl_dnnl_sgemm(const char *op, bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k,
                        float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                        int64_t ldc) {
  dnnl_status_t status = dnnl_sgemm(a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb,
                                    beta, c, ldc);
  return status == dnnl_success ? TL_OK : failed(op, status, "sgemm");
}
