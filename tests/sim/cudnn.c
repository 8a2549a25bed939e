/* cudnn.c: cuDNN's handles, names, tensor, filter, convolution and activation descriptors, and its tensor sums. What is
 * not modelled is refused with a NOT_SUPPORTED, or does not link. */
#include <stdio.h>
#include <string.h>

#include "cudnn_descriptors.h"

#define REFUSE SIM_CUDNN_REFUSE

/* ---- names and versions ---- */

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetMaxDeviceVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }

const char *cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
#define NAME(s) \
  case CUDNN_STATUS_##s: return "CUDNN_STATUS_" #s
    NAME(SUCCESS);
    NAME(NOT_INITIALIZED);
    NAME(BAD_PARAM);
    NAME(BAD_PARAM_NULL_POINTER);
    NAME(BAD_PARAM_MISALIGNED_POINTER);
    NAME(BAD_PARAM_SIZE_INSUFFICIENT);
    NAME(BAD_PARAM_SHAPE_MISMATCH);
    NAME(NOT_SUPPORTED);
    NAME(NOT_SUPPORTED_SHAPE);
    NAME(NOT_SUPPORTED_DATA_TYPE);
    NAME(NOT_SUPPORTED_LAYOUT);
    NAME(INTERNAL_ERROR);
    NAME(INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
    NAME(INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
    NAME(EXECUTION_FAILED);
    NAME(EXECUTION_FAILED_CUDART);
#undef NAME
    default: return "CUDNN_UNKNOWN_STATUS";
  }
}

void cudnnGetLastErrorString(char *message, size_t max_size) {
  if (message != NULL && max_size > 0) snprintf(message, max_size, "%s", sim_last_refusal());
}

cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value) {
  if (value == NULL) return REFUSE(CUDNN_STATUS_BAD_PARAM, "no place for the value");
  *value = type == MAJOR_VERSION ? CUDNN_MAJOR : type == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGraphVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnOpsVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnCnnVersionCheck(void) { return CUDNN_STATUS_SUCCESS; }

/* ---- handles ---- */

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  if (handle == NULL) return REFUSE(CUDNN_STATUS_BAD_PARAM, "no place for the handle");
  if (sim_call_fails("cudnnCreate")) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = sim_object_create(SIM_CUDNN_HANDLE, sizeof **handle);
  if (*handle == NULL) return CUDNN_STATUS_ALLOC_FAILED;
  if (cudaGetDevice(&(*handle)->device) == cudaSuccess && cudaMalloc(&(*handle)->memory, 1024) == cudaSuccess)
    return CUDNN_STATUS_SUCCESS;
  sim_object_destroy(*handle);
  *handle = NULL;
  return REFUSE(CUDNN_STATUS_NOT_INITIALIZED, "no device memory for the handle, or none now (capture)");
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  if (handle == NULL) return CUDNN_STATUS_SUCCESS;
  if (!sim_object_is(handle, SIM_CUDNN_HANDLE)) return REFUSE(CUDNN_STATUS_BAD_PARAM, "not a live handle");
  cudaFree(handle->memory);
  sim_object_destroy(handle);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (!sim_object_is(handle, SIM_CUDNN_HANDLE)) return REFUSE(CUDNN_STATUS_BAD_PARAM, "not a live handle");
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
  if (!sim_object_is(handle, SIM_CUDNN_HANDLE) || stream == NULL)
    return REFUSE(CUDNN_STATUS_BAD_PARAM, "not a live handle, or no place for the stream");
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t sim_cudnn_begin(cudnnHandle_t handle, const char *function) {
  if (!sim_object_is(handle, SIM_CUDNN_HANDLE))
    return (cudnnStatus_t)sim_refuse(function, CUDNN_STATUS_BAD_PARAM, "not a live handle");
  if (sim_call_fails(function))
    return (cudnnStatus_t)sim_refuse(function, CUDNN_STATUS_EXECUTION_FAILED, "fails on request (TLUA_SIM_FAIL)");
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) return CUDNN_STATUS_EXECUTION_FAILED; /* on request */
  if (device == handle->device) return CUDNN_STATUS_SUCCESS;
  sim_fault("wrong device", "%s: a handle of device %d is used on device %d", function, handle->device, device);
  return CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t sim_cudnn_enqueue(cudnnHandle_t handle, const char *name, sim_work_fn *run, const void *task,
                                size_t bytes, const sim_ranges *r) {
  if (sim_ranges_overlap(r, name)) return CUDNN_STATUS_BAD_PARAM;
  cudaError_t e = sim_enqueue(handle->stream, name, run, task, bytes, r->count, r->range);
  if (e == cudaSuccess) return CUDNN_STATUS_SUCCESS;
  return (cudnnStatus_t)sim_refuse(name, CUDNN_STATUS_EXECUTION_FAILED_CUDART, "%s", cudaGetErrorName(e));
}

/* ---- tensor descriptors ---- */

sim_type sim_cudnn_type(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_FLOAT: return SIM_F32;
    case CUDNN_DATA_DOUBLE: return SIM_F64;
    case CUDNN_DATA_HALF: return SIM_F16;
    case CUDNN_DATA_BFLOAT16: return SIM_BF16;
    default: return SIM_NO_TYPE;
  }
}

bool sim_cudnn_is_tensor(const struct cudnnTensorStruct *t) { return sim_object_is(t, SIM_CUDNN_TENSOR) && t->nd > 0; }
bool sim_cudnn_is_filter(const struct cudnnFilterStruct *f) { return sim_object_is(f, SIM_CUDNN_FILTER) && f->nd > 0; }

bool sim_cudnn_same_dims(const struct cudnnTensorStruct *a, const struct cudnnTensorStruct *b) {
  return a->nd == b->nd && memcmp(a->dim, b->dim, (size_t)a->nd * sizeof(int)) == 0;
}

/* strides of a packed tensor: channels are the last but the spatial dims, or the innermost */
static bool packed_strides(cudnnTensorFormat_t format, int nd, const int *dim, int *stride) {
  int64_t step = 1;
  if (format == CUDNN_TENSOR_NHWC) {
    stride[1] = 1;
    step = dim[1];
  }
  for (int d = nd - 1; d >= 0; d--) {
    if (d == 1 && format == CUDNN_TENSOR_NHWC) continue;
    stride[d] = (int)step;
    step *= dim[d];
    if (step > INT32_MAX) return false;
  }
  return true;
}

bool sim_cudnn_is_packed(const struct cudnnTensorStruct *t, cudnnTensorFormat_t format) {
  int stride[CUDNN_DIM_MAX];
  if (!packed_strides(format, t->nd, t->dim, stride)) return false;
  for (int d = 0; d < t->nd; d++)
    if (t->dim[d] > 1 && t->stride[d] != stride[d]) return false;
  return true;
}

size_t sim_cudnn_bytes(const struct cudnnTensorStruct *t) {
  size_t last = 0;
  for (int d = 0; d < t->nd; d++) last += (size_t)(t->dim[d] - 1) * (size_t)t->stride[d];
  return (last + 1) * sim_type_size(sim_cudnn_type(t->type));
}

double sim_cudnn_scalar(sim_type data, const void *p) { return sim_load(data == SIM_F64 ? SIM_F64 : SIM_F32, p, 0); }

static cudnnStatus_t create(void *place, uint64_t mark, size_t bytes, const char *function) {
  if (place == NULL) return (cudnnStatus_t)sim_refuse(function, CUDNN_STATUS_BAD_PARAM, "no place for the descriptor");
  if (sim_call_fails(function)) return CUDNN_STATUS_ALLOC_FAILED;
  void *object = sim_object_create(mark, bytes);
  memcpy(place, &object, sizeof object);
  return object == NULL ? CUDNN_STATUS_ALLOC_FAILED : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t destroy(void *object, uint64_t mark, const char *function) {
  if (object == NULL) return CUDNN_STATUS_SUCCESS;
  if (!sim_object_is(object, mark))
    return (cudnnStatus_t)sim_refuse(function, CUDNN_STATUS_BAD_PARAM, "not a live descriptor of this kind");
  sim_object_destroy(object);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *t) {
  return create(t, SIM_CUDNN_TENSOR, sizeof **t, __func__);
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t t) { return destroy(t, SIM_CUDNN_TENSOR, __func__); }

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t t, cudnnDataType_t type, int nd, const int dim[],
                                         const int stride[]) {
  if (!sim_object_is(t, SIM_CUDNN_TENSOR) || dim == NULL || stride == NULL)
    return REFUSE(CUDNN_STATUS_BAD_PARAM, "not a live descriptor, or no dims");
  if (nd < 4 || nd > CUDNN_DIM_MAX)
    return REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "%d dims: 4 to %d are supported", nd, CUDNN_DIM_MAX);
  if (sim_cudnn_type(type) == SIM_NO_TYPE) return REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "type %d is not modelled", type);
  int64_t last = 0;
  for (int d = 0; d < nd; d++) {
    if (dim[d] <= 0 || (stride[d] <= 0 && dim[d] > 1))
      return REFUSE(CUDNN_STATUS_BAD_PARAM, "dim %d is %d long with stride %d", d, dim[d], stride[d]);
    last += (int64_t)(dim[d] - 1) * stride[d];
  }
  if (last >= INT32_MAX) return REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "more than 2^31 elements");
  t->type = type;
  t->nd = nd;
  memcpy(t->dim, dim, (size_t)nd * sizeof(int));
  memcpy(t->stride, stride, (size_t)nd * sizeof(int));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t t, cudnnTensorFormat_t format, cudnnDataType_t type,
                                           int nd, const int dim[]) {
  int stride[CUDNN_DIM_MAX];
  if (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC)
    return REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "format %d is not modelled", format);
  if (dim == NULL) return REFUSE(CUDNN_STATUS_BAD_PARAM, "no dims");
  if (nd < 4 || nd > CUDNN_DIM_MAX)
    return REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "%d dims: 4 to %d are supported", nd, CUDNN_DIM_MAX);
  for (int d = 0; d < nd; d++)
    if (dim[d] <= 0) return REFUSE(CUDNN_STATUS_BAD_PARAM, "dim %d is %d long", d, dim[d]);
  if (!packed_strides(format, nd, dim, stride)) return REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "more than 2^31 elements");
  return cudnnSetTensorNdDescriptor(t, type, nd, dim, stride);
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t t, cudnnTensorFormat_t format, cudnnDataType_t type,
                                         int n, int c, int h, int w) {
  return cudnnSetTensorNdDescriptorEx(t, format, type, 4, (int[]){n, c, h, w});
}

cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t t, cudnnDataType_t type, int n, int c, int h, int w,
                                           int n_stride, int c_stride, int h_stride, int w_stride) {
  return cudnnSetTensorNdDescriptor(t, type, 4, (int[]){n, c, h, w}, (int[]){n_stride, c_stride, h_stride, w_stride});
}

cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t t, int requested, cudnnDataType_t *type, int *nd,
                                         int dim[], int stride[]) {
  if (!sim_cudnn_is_tensor(t) || type == NULL || nd == NULL || dim == NULL || stride == NULL)
    return REFUSE(CUDNN_STATUS_BAD_PARAM, "no descriptor that is set, or no place for a result");
  *type = t->type;
  *nd = t->nd;
  for (int d = 0; d < t->nd && d < requested; d++) {
    dim[d] = t->dim[d];
    stride[d] = t->stride[d];
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensor4dDescriptor(const cudnnTensorDescriptor_t t, cudnnDataType_t *type, int *n, int *c, int *h,
                                         int *w, int *n_stride, int *c_stride, int *h_stride, int *w_stride) {
  if (!sim_cudnn_is_tensor(t) || t->nd != 4) return REFUSE(CUDNN_STATUS_BAD_PARAM, "no descriptor of 4 dims");
  int *dims[] = {n, c, h, w}, *strides[] = {n_stride, c_stride, h_stride, w_stride};
  *type = t->type;
  for (int d = 0; d < 4; d++) {
    *dims[d] = t->dim[d];
    *strides[d] = t->stride[d];
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorSizeInBytes(const cudnnTensorDescriptor_t t, size_t *size) {
  if (!sim_cudnn_is_tensor(t) || size == NULL) return REFUSE(CUDNN_STATUS_BAD_PARAM, "no descriptor that is set");
  *size = sim_cudnn_bytes(t);
  return CUDNN_STATUS_SUCCESS;
}

/* ---- filter descriptors ---- */

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *f) {
  return create(f, SIM_CUDNN_FILTER, sizeof **f, __func__);
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t f) { return destroy(f, SIM_CUDNN_FILTER, __func__); }

cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t f, cudnnDataType_t type, cudnnTensorFormat_t format,
                                         int nd, const int dim[]) {
  if (!sim_object_is(f, SIM_CUDNN_FILTER) || dim == NULL)
    return REFUSE(CUDNN_STATUS_BAD_PARAM, "not a live descriptor, or no dims");
  if (nd < 4 || nd > CUDNN_DIM_MAX)
    return REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "%d dims: 4 to %d are supported", nd, CUDNN_DIM_MAX);
  if (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC)
    return REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "format %d is not modelled", format);
  if (sim_cudnn_type(type) == SIM_NO_TYPE) return REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "type %d is not modelled", type);
  for (int d = 0; d < nd; d++)
    if (dim[d] <= 0) return REFUSE(CUDNN_STATUS_BAD_PARAM, "dim %d is %d long", d, dim[d]);
  f->type = type;
  f->format = format;
  f->nd = nd;
  memcpy(f->dim, dim, (size_t)nd * sizeof(int));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t f, cudnnDataType_t type, cudnnTensorFormat_t format,
                                         int k, int c, int h, int w) {
  return cudnnSetFilterNdDescriptor(f, type, format, 4, (int[]){k, c, h, w});
}

cudnnStatus_t cudnnGetFilterNdDescriptor(const cudnnFilterDescriptor_t f, int requested, cudnnDataType_t *type,
                                         cudnnTensorFormat_t *format, int *nd, int dim[]) {
  if (!sim_cudnn_is_filter(f) || type == NULL || format == NULL || nd == NULL || dim == NULL)
    return REFUSE(CUDNN_STATUS_BAD_PARAM, "no descriptor that is set, or no place for a result");
  *type = f->type;
  *format = f->format;
  *nd = f->nd;
  for (int d = 0; d < f->nd && d < requested; d++) dim[d] = f->dim[d];
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetFilterSizeInBytes(const cudnnFilterDescriptor_t f, size_t *size) {
  if (!sim_cudnn_is_filter(f) || size == NULL) return REFUSE(CUDNN_STATUS_BAD_PARAM, "no descriptor that is set");
  *size = sim_type_size(sim_cudnn_type(f->type));
  for (int d = 0; d < f->nd; d++) *size *= (size_t)f->dim[d];
  return CUDNN_STATUS_SUCCESS;
}

/* ---- convolution descriptors ---- */

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *c) {
  cudnnStatus_t s = create(c, SIM_CUDNN_CONVOLUTION, sizeof **c, __func__);
  if (s == CUDNN_STATUS_SUCCESS) (*c)->groups = 1;
  return s;
}

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t c) {
  return destroy(c, SIM_CUDNN_CONVOLUTION, __func__);
}

cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t c, int nd, const int pad[], const int step[],
                                              const int dilation[], cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
  if (!sim_object_is(c, SIM_CUDNN_CONVOLUTION) || pad == NULL || step == NULL || dilation == NULL || nd < 1)
    return REFUSE(CUDNN_STATUS_BAD_PARAM, "not a live descriptor, or no dims");
  if (nd != 2 && nd != 3) return REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "%d spatial dims: 2 and 3 are supported", nd);
  if (mode != CUDNN_CONVOLUTION && mode != CUDNN_CROSS_CORRELATION)
    return REFUSE(CUDNN_STATUS_BAD_PARAM, "mode %d", mode);
  if (sim_cudnn_type(compute) == SIM_NO_TYPE)
    return REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "compute type %d is not modelled", compute);
  for (int d = 0; d < nd; d++)
    if (pad[d] < 0 || step[d] <= 0 || dilation[d] <= 0)
      return REFUSE(CUDNN_STATUS_BAD_PARAM, "dim %d: padding %d, stride %d, dilation %d", d, pad[d], step[d],
                    dilation[d]);
  c->nd = nd;
  memcpy(c->pad, pad, (size_t)nd * sizeof(int));
  memcpy(c->step, step, (size_t)nd * sizeof(int));
  memcpy(c->dilation, dilation, (size_t)nd * sizeof(int));
  c->mode = mode;
  c->compute = compute;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t c, int pad_h, int pad_w, int u, int v,
                                              int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute) {
  return cudnnSetConvolutionNdDescriptor(c, 2, (int[]){pad_h, pad_w}, (int[]){u, v}, (int[]){dilation_h, dilation_w},
                                         mode, compute);
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t c, cudnnMathType_t math) {
  if (!sim_object_is(c, SIM_CUDNN_CONVOLUTION) || (int)math < CUDNN_DEFAULT_MATH || math > CUDNN_FMA_MATH)
    return REFUSE(CUDNN_STATUS_BAD_PARAM, "not a live descriptor, or no math type: %d", math);
  c->math = math;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionMathType(cudnnConvolutionDescriptor_t c, cudnnMathType_t *math) {
  if (!sim_object_is(c, SIM_CUDNN_CONVOLUTION) || math == NULL)
    return REFUSE(CUDNN_STATUS_BAD_PARAM, "not a live descriptor, or no place for the math type");
  *math = c->math;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t c, int groups) {
  if (!sim_object_is(c, SIM_CUDNN_CONVOLUTION) || groups < 1)
    return REFUSE(CUDNN_STATUS_BAD_PARAM, "not a live descriptor, or %d groups", groups);
  c->groups = groups;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionGroupCount(cudnnConvolutionDescriptor_t c, int *groups) {
  if (!sim_object_is(c, SIM_CUDNN_CONVOLUTION) || groups == NULL)
    return REFUSE(CUDNN_STATUS_BAD_PARAM, "not a live descriptor, or no place for the groups");
  *groups = c->groups;
  return CUDNN_STATUS_SUCCESS;
}

/* ---- activation descriptors ---- */

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t *a) {
  return create(a, SIM_CUDNN_ACTIVATION, sizeof **a, __func__);
}

cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t a) {
  return destroy(a, SIM_CUDNN_ACTIVATION, __func__);
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t a, cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t nan, double coefficient) {
  (void)nan; /* what is modelled passes NaN on */
  if (!sim_object_is(a, SIM_CUDNN_ACTIVATION)) return REFUSE(CUDNN_STATUS_BAD_PARAM, "not a live descriptor");
  if (mode != CUDNN_ACTIVATION_RELU && mode != CUDNN_ACTIVATION_IDENTITY)
    return REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "activation %d is not modelled", mode);
  a->set = true;
  a->mode = mode;
  a->coefficient = coefficient;
  return CUDNN_STATUS_SUCCESS;
}

/* ---- sums of tensors ---- */

typedef struct add_task {
  struct cudnnTensorStruct a, c;
  double alpha, beta;
  const void *from;
  void *to;
} add_task;

static void run_add(void *data, int device) {
  (void)device;
  add_task *t = data;
  sim_type type = sim_cudnn_type(t->c.type);
  int at[CUDNN_DIM_MAX] = {0};
  for (;;) {
    int64_t a = 0, c = 0;
    for (int d = 0; d < t->c.nd; d++) {
      a += t->a.dim[d] == 1 ? 0 : (int64_t)at[d] * t->a.stride[d];
      c += (int64_t)at[d] * t->c.stride[d];
    }
    double value = sim_load(type, t->from, a);
    sim_blend(type, t->to, c, 1, 1, t->alpha, &value, t->beta);
    int d = t->c.nd - 1;
    while (d >= 0 && ++at[d] == t->c.dim[d]) at[d--] = 0;
    if (d < 0) return;
  }
}

cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t a_desc,
                             const void *a, const void *beta, const cudnnTensorDescriptor_t c_desc, void *c) {
  cudnnStatus_t s = sim_cudnn_begin(handle, __func__);
  if (s != CUDNN_STATUS_SUCCESS) return s;
  if (alpha == NULL || beta == NULL || a == NULL || c == NULL || !sim_cudnn_is_tensor(a_desc) ||
      !sim_cudnn_is_tensor(c_desc))
    return REFUSE(CUDNN_STATUS_BAD_PARAM, "an argument is NULL, or a descriptor is not set");
  if (a_desc->type != c_desc->type || a_desc->nd != c_desc->nd || a_desc->nd > 5)
    return REFUSE(CUDNN_STATUS_NOT_SUPPORTED, "A and C are of one type and as many dims, 5 at most");
  for (int d = 0; d < c_desc->nd; d++)
    if (a_desc->dim[d] != c_desc->dim[d] && a_desc->dim[d] != 1)
      return REFUSE(CUDNN_STATUS_BAD_PARAM, "dim %d of A is %d, of C %d", d, a_desc->dim[d], c_desc->dim[d]);
  sim_type type = sim_cudnn_type(c_desc->type);
  add_task t = {.a = *a_desc, .c = *c_desc, .from = a, .to = c};
  t.alpha = sim_cudnn_scalar(type, alpha);
  t.beta = sim_cudnn_scalar(type, beta);
  sim_ranges r = {0};
  sim_ranges_add(&r, a, sim_cudnn_bytes(a_desc), 0);
  if (t.beta != 0) sim_ranges_add(&r, c, sim_cudnn_bytes(c_desc), 0);
  sim_ranges_add(&r, c, sim_cudnn_bytes(c_desc), 1);
  return sim_cudnn_enqueue(handle, __func__, run_add, &t, sizeof t, &r);
}
