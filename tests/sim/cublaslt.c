/* cublaslt.c: cuBLASLt's handles, names and descriptors. cublaslt_matmul.c multiplies. */
#include <stddef.h>
#include <string.h>

#include "cublaslt_descriptors.h"

/* ---- handles and names ---- */

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion(void) { return CUDART_VERSION; }

const char *cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
#define NAME(s) \
  case CUBLAS_STATUS_##s: return "CUBLAS_STATUS_" #s
    NAME(SUCCESS);
    NAME(NOT_INITIALIZED);
    NAME(ALLOC_FAILED);
    NAME(INVALID_VALUE);
    NAME(ARCH_MISMATCH);
    NAME(MAPPING_ERROR);
    NAME(EXECUTION_FAILED);
    NAME(INTERNAL_ERROR);
    NAME(NOT_SUPPORTED);
    NAME(LICENSE_ERROR);
#undef NAME
    default: return "unrecognized status";
  }
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED: return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "the function requires an architectural feature absent from the device";
    case CUBLAS_STATUS_MAPPING_ERROR: return "an access to GPU memory space failed";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "an internal operation failed";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the requested functionality is not supported";
    case CUBLAS_STATUS_LICENSE_ERROR: return "the license check failed";
    default: return "unrecognized status";
  }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  if (handle == NULL) return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "no place for the handle");
  if (sim_call_fails("cublasLtCreate")) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = sim_object_create(LT_MARK_HANDLE, sizeof(struct cublasLtContext));
  if (*handle == NULL) return CUBLAS_STATUS_ALLOC_FAILED;
  if (cudaGetDevice(&(*handle)->device) == cudaSuccess && cudaMalloc(&(*handle)->memory, 1024) == cudaSuccess)
    return CUBLAS_STATUS_SUCCESS;
  sim_object_destroy(*handle);
  *handle = NULL;
  return LT_REFUSE(CUBLAS_STATUS_NOT_INITIALIZED, "no device memory for the handle, or none now (capture)");
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (!sim_object_is(handle, LT_MARK_HANDLE)) return LT_REFUSE(CUBLAS_STATUS_INVALID_VALUE, "not a live handle");
  cudaFree(handle->memory);
  sim_object_destroy(handle);
  return CUBLAS_STATUS_SUCCESS;
}

/* ---- descriptors: attributes are rows (id, place, size) ---- */

typedef struct attribute {
  int id;
  size_t offset, bytes;
} attribute;

#define ATTRIBUTE(id, type, field) \
  { id, offsetof(type, field), sizeof(((type *)0)->field) }

static const attribute layout_attributes[] = {
    ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_TYPE, lt_layout, type),
    ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_ORDER, lt_layout, order),
    ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_ROWS, lt_layout, rows),
    ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_COLS, lt_layout, cols),
    ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_LD, lt_layout, ld),
    ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, lt_layout, batch),
    ATTRIBUTE(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, lt_layout, batch_stride),
};

static const attribute desc_attributes[] = {
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, lt_matmul_desc, compute),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_SCALE_TYPE, lt_matmul_desc, scale),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_POINTER_MODE, lt_matmul_desc, pointer_mode),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_TRANSA, lt_matmul_desc, transa),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_TRANSB, lt_matmul_desc, transb),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_TRANSC, lt_matmul_desc, transc),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_FILL_MODE, lt_matmul_desc, fill),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_EPILOGUE, lt_matmul_desc, epilogue),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_BIAS_POINTER, lt_matmul_desc, bias),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, lt_matmul_desc, bias_batch_stride),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, lt_matmul_desc, bias_type),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, lt_matmul_desc, aux),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, lt_matmul_desc, aux_ld),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, lt_matmul_desc, aux_batch_stride),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, lt_matmul_desc, aux_type),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, lt_matmul_desc, sm_target),
    ATTRIBUTE(CUBLASLT_MATMUL_DESC_FAST_ACCUM, lt_matmul_desc, fast_accum),
};

static const attribute preference_attributes[] = {
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_SEARCH_MODE, lt_preference, search),
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, lt_preference, workspace),
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, lt_preference, reductions),
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, lt_preference, align_a),
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, lt_preference, align_b),
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, lt_preference, align_c),
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, lt_preference, align_d),
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, lt_preference, waves),
    ATTRIBUTE(CUBLASLT_MATMUL_PREF_IMPL_MASK, lt_preference, numerics),
};

#define COUNT(table) (sizeof(table) / sizeof *(table))

static cublasStatus_t set_attribute(const char *function, void *object, uint64_t mark, const attribute *table,
                                    size_t rows, int id, const void *from, size_t bytes) {
  if (!sim_object_is(object, mark))
    return sim_refuse(function, CUBLAS_STATUS_INVALID_VALUE, "not a live descriptor of this kind");
  for (size_t i = 0; i < rows; i++) {
    if (table[i].id != id) continue;
    if (from == NULL || bytes != table[i].bytes)
      return sim_refuse(function, CUBLAS_STATUS_INVALID_VALUE, "attribute %d has %zu bytes, not %zu", id,
                        table[i].bytes, bytes);
    memcpy((char *)object + table[i].offset, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  return sim_refuse(function, CUBLAS_STATUS_NOT_SUPPORTED, "attribute %d is not modelled", id);
}

static cublasStatus_t get_attribute(const char *function, const void *object, uint64_t mark, const attribute *table,
                                    size_t rows, int id, void *to, size_t bytes, size_t *written) {
  if (!sim_object_is(object, mark))
    return sim_refuse(function, CUBLAS_STATUS_INVALID_VALUE, "not a live descriptor of this kind");
  for (size_t i = 0; i < rows; i++) {
    if (table[i].id != id) continue;
    if (bytes == 0 ? written == NULL : to == NULL || bytes != table[i].bytes)
      return sim_refuse(function, CUBLAS_STATUS_INVALID_VALUE, "attribute %d has %zu bytes, not %zu", id,
                        table[i].bytes, bytes);
    if (bytes != 0) memcpy(to, (const char *)object + table[i].offset, bytes);
    if (written != NULL) *written = table[i].bytes;
    return CUBLAS_STATUS_SUCCESS;
  }
  return sim_refuse(function, CUBLAS_STATUS_NOT_SUPPORTED, "attribute %d is not modelled", id);
}

static cublasStatus_t destroy(const char *function, void *object, uint64_t mark) {
  if (object == NULL) return CUBLAS_STATUS_SUCCESS;
  if (!sim_object_is(object, mark)) return sim_refuse(function, CUBLAS_STATUS_INVALID_VALUE, "not a live descriptor");
  sim_object_destroy(object);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t object, size_t size, cudaDataType type,
                                                 uint64_t rows, uint64_t cols, int64_t ld) {
  if (object == NULL) return CUBLAS_STATUS_INVALID_VALUE;
  if (size < sizeof(lt_layout)) return CUBLAS_STATUS_ALLOC_FAILED;
  lt_layout l = {.mark = LT_MARK_LAYOUT, .rows = rows, .cols = cols, .ld = ld, .batch = 1, .type = (uint32_t)type};
  memcpy(object, &l, sizeof l);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *object, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  if (object == NULL) return CUBLAS_STATUS_INVALID_VALUE;
  if (sim_call_fails("cublasLtMatrixLayoutCreate")) return CUBLAS_STATUS_ALLOC_FAILED;
  *object = sim_object_create(LT_MARK_LAYOUT, sizeof **object);
  if (*object == NULL) return CUBLAS_STATUS_ALLOC_FAILED;
  return cublasLtMatrixLayoutInit_internal(*object, sizeof **object, type, rows, cols, ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t object) {
  return destroy(__func__, object, LT_MARK_LAYOUT);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t object, cublasLtMatrixLayoutAttribute_t id,
                                                const void *from, size_t bytes) {
  return set_attribute(__func__, object, LT_MARK_LAYOUT, layout_attributes, COUNT(layout_attributes), (int)id, from,
                       bytes);
}

cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t object, cublasLtMatrixLayoutAttribute_t id,
                                                void *to, size_t bytes, size_t *written) {
  return get_attribute(__func__, object, LT_MARK_LAYOUT, layout_attributes, COUNT(layout_attributes), (int)id, to,
                       bytes, written);
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t object, size_t size, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
  if (object == NULL) return CUBLAS_STATUS_INVALID_VALUE;
  if (size < sizeof(lt_matmul_desc)) return CUBLAS_STATUS_ALLOC_FAILED;
  lt_matmul_desc d = {.mark = LT_MARK_DESC, .compute = (int32_t)compute, .scale = (int32_t)scale};
  d.fill = CUBLAS_FILL_MODE_FULL;
  d.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  d.bias_type = d.aux_type = -1; /* D's */
  memcpy(object, &d, sizeof d);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *object, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (object == NULL) return CUBLAS_STATUS_INVALID_VALUE;
  if (sim_call_fails("cublasLtMatmulDescCreate")) return CUBLAS_STATUS_ALLOC_FAILED;
  *object = sim_object_create(LT_MARK_DESC, sizeof **object);
  if (*object == NULL) return CUBLAS_STATUS_ALLOC_FAILED;
  return cublasLtMatmulDescInit_internal(*object, sizeof **object, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t object) {
  return destroy(__func__, object, LT_MARK_DESC);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t object, cublasLtMatmulDescAttributes_t id,
                                              const void *from, size_t bytes) {
  return set_attribute(__func__, object, LT_MARK_DESC, desc_attributes, COUNT(desc_attributes), (int)id, from, bytes);
}

cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t object, cublasLtMatmulDescAttributes_t id, void *to,
                                              size_t bytes, size_t *written) {
  return get_attribute(__func__, object, LT_MARK_DESC, desc_attributes, COUNT(desc_attributes), (int)id, to, bytes,
                       written);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t object, size_t size) {
  if (object == NULL) return CUBLAS_STATUS_INVALID_VALUE;
  if (size < sizeof(lt_preference)) return CUBLAS_STATUS_ALLOC_FAILED;
  lt_preference p = {
      .mark = LT_MARK_PREFERENCE, .numerics = ~(uint64_t)0, .reductions = CUBLASLT_REDUCTION_SCHEME_MASK};
  p.align_a = p.align_b = p.align_c = p.align_d = 256;
  memcpy(object, &p, sizeof p);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *object) {
  if (object == NULL) return CUBLAS_STATUS_INVALID_VALUE;
  if (sim_call_fails("cublasLtMatmulPreferenceCreate")) return CUBLAS_STATUS_ALLOC_FAILED;
  *object = sim_object_create(LT_MARK_PREFERENCE, sizeof **object);
  if (*object == NULL) return CUBLAS_STATUS_ALLOC_FAILED;
  return cublasLtMatmulPreferenceInit_internal(*object, sizeof **object);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t object) {
  return destroy(__func__, object, LT_MARK_PREFERENCE);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t object,
                                                    cublasLtMatmulPreferenceAttributes_t id, const void *from,
                                                    size_t bytes) {
  return set_attribute(__func__, object, LT_MARK_PREFERENCE, preference_attributes, COUNT(preference_attributes),
                       (int)id, from, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t object,
                                                    cublasLtMatmulPreferenceAttributes_t id, void *to, size_t bytes,
                                                    size_t *written) {
  return get_attribute(__func__, object, LT_MARK_PREFERENCE, preference_attributes, COUNT(preference_attributes),
                       (int)id, to, bytes, written);
}
