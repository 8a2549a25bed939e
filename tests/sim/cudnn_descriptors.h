/* cudnn_descriptors.h: what cuDNN's opaque types hold here, and the checks that its calls share (cudnn.c). */
#ifndef TLUA_SIM_CUDNN_DESCRIPTORS_H
#define TLUA_SIM_CUDNN_DESCRIPTORS_H

#include <cudnn.h>

#include "library.h"

enum {
  SIM_CUDNN_HANDLE = 0x444e484e,
  SIM_CUDNN_TENSOR = 0x444e5453,
  SIM_CUDNN_FILTER = 0x444e464c,
  SIM_CUDNN_CONVOLUTION = 0x444e4356,
  SIM_CUDNN_ACTIVATION = 0x444e4143
};

struct cudnnContext {
  uint64_t mark;
  int device;
  void *memory; /* of its device: making a handle allocates, which not every capture allows */
  cudaStream_t stream;
};

struct cudnnTensorStruct {
  uint64_t mark;
  cudnnDataType_t type;
  int nd; /* 0: not set yet */
  int dim[CUDNN_DIM_MAX], stride[CUDNN_DIM_MAX];
};

struct cudnnFilterStruct { /* (K, C / groups, window...) */
  uint64_t mark;
  cudnnDataType_t type;
  cudnnTensorFormat_t format;
  int nd;
  int dim[CUDNN_DIM_MAX];
};

struct cudnnConvolutionStruct {
  uint64_t mark;
  int nd; /* spatial dims */
  int pad[CUDNN_DIM_MAX], step[CUDNN_DIM_MAX], dilation[CUDNN_DIM_MAX];
  cudnnConvolutionMode_t mode;
  cudnnDataType_t compute;
  cudnnMathType_t math;
  int groups;
};

struct cudnnActivationStruct {
  uint64_t mark;
  bool set;
  cudnnActivationMode_t mode;
  double coefficient;
};

#define SIM_CUDNN_REFUSE(status, ...) ((cudnnStatus_t)sim_refuse(__func__, (status), __VA_ARGS__))

/* The start of every call that works on the device: the handle lives, is of the current device, and the call is not the
 * one that is to fail. */
cudnnStatus_t sim_cudnn_begin(cudnnHandle_t handle, const char *function);
/* Hands the work to the handle's stream; memory that overlaps is a fault. */
cudnnStatus_t sim_cudnn_enqueue(cudnnHandle_t handle, const char *name, sim_work_fn *run, const void *task,
                                size_t bytes, const sim_ranges *r);

/* SIM_NO_TYPE: not modelled */
sim_type sim_cudnn_type(cudnnDataType_t type);
bool sim_cudnn_is_tensor(const struct cudnnTensorStruct *t); /* lives and is set */
bool sim_cudnn_is_filter(const struct cudnnFilterStruct *f);
bool sim_cudnn_same_dims(const struct cudnnTensorStruct *a, const struct cudnnTensorStruct *b);
/* How a tensor lies in memory. */
bool sim_cudnn_is_packed(const struct cudnnTensorStruct *t, cudnnTensorFormat_t format);
/* From the first element to behind the last one. */
size_t sim_cudnn_bytes(const struct cudnnTensorStruct *t);
/* alpha or beta: double for float64 data, float for all else */
double sim_cudnn_scalar(sim_type data, const void *p);

#endif
