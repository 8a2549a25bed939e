/* cublaslt_descriptors.h: what cuBLASLt's opaque types hold here. */
#ifndef TLUA_SIM_CUBLASLT_DESCRIPTORS_H
#define TLUA_SIM_CUBLASLT_DESCRIPTORS_H

#include <cublasLt.h>

#include "library.h"

enum {
  LT_MARK_HANDLE = 0x4c54484e,
  LT_MARK_LAYOUT = 0x4c544c59,
  LT_MARK_DESC = 0x4c544453,
  LT_MARK_PREFERENCE = 0x4c545046
};

struct cublasLtContext {
  uint64_t mark;
  int device;
  void *memory; /* of its device: making a handle allocates, which not every capture allows */
};

typedef struct lt_layout {
  uint64_t mark;
  uint64_t rows, cols;
  int64_t ld, batch_stride;
  int32_t order, batch;
  uint32_t type;
} lt_layout;

typedef struct lt_matmul_desc {
  uint64_t mark;
  int32_t compute, scale, pointer_mode, transa, transb, transc, fill, sm_target, bias_type, aux_type;
  uint32_t epilogue;
  int8_t fast_accum;
  void *bias, *aux;
  int64_t bias_batch_stride, aux_ld, aux_batch_stride;
} lt_matmul_desc;

typedef struct lt_preference {
  uint64_t mark;
  uint64_t workspace, numerics;
  uint32_t search, reductions, align_a, align_b, align_c, align_d;
  float waves;
} lt_preference;

_Static_assert(sizeof(lt_layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits NVIDIA's opaque struct");
_Static_assert(sizeof(lt_matmul_desc) <= sizeof(cublasLtMatmulDescOpaque_t), "fits NVIDIA's opaque struct");
_Static_assert(sizeof(lt_preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "fits NVIDIA's opaque struct");

#define LT_REFUSE(status, ...) ((cublasStatus_t)sim_refuse(__func__, (status), __VA_ARGS__))

#endif
