/* cudnn_conv.h: what the files of cuDNN's convolutions share: the problem (cudnn_conv.c), the algorithms it may be done by
 * (cudnn_conv_algo.c), the work (cudnn_conv_loops.c). */
#ifndef TLUA_SIM_CUDNN_CONV_H
#define TLUA_SIM_CUDNN_CONV_H

#include "cudnn_descriptors.h"

/* ---- a problem ---- */

typedef enum direction { FORWARD, DATA, FILTER } direction;

typedef struct problem {
  sim_type type;
  bool nhwc, any_strides, tf32, flipped;
  int64_t n, groups, c, k;                                        /* c, k of one group */
  int64_t in[3], out[3], window[3], pad[3], step[3], dilation[3]; /* (depth, height, width) */
  int64_t xn, xc, xs[3], yn, yc, ys[3], wk, wc, ws[3];            /* strides in elements */
  size_t x_bytes, y_bytes, w_bytes;
  int spatial;
} problem;

static inline int64_t points(const int64_t *dim) { return dim[0] * dim[1] * dim[2]; }

/* Checks that descriptors fit each other, and that their combination is modelled. */
cudnnStatus_t sim_conv_read(const struct cudnnTensorStruct *x, const struct cudnnFilterStruct *w,
                            const struct cudnnConvolutionStruct *conv, const struct cudnnTensorStruct *y, problem *p);
/* 0: the window does not fit in */
int64_t sim_conv_length(int64_t in, int64_t window, int64_t pad, int64_t step, int64_t dilation);

/* ---- algorithms ---- */

typedef enum workspace { NONE, INDICES, COLUMNS, SPECTRUM, TILES, COPIES } workspace;

typedef struct way {
  int algo;
  bool deterministic;
  int demands; /* ANY_STRIDES, NHWC: what it can do; SINGLE: float32 only; FLAT: 2-d only */
  workspace workspace;
} way;

typedef struct perf {
  const way *way;
  cudnnStatus_t status;
  float time;
  size_t memory;
  cudnnMathType_t math;
} perf;

enum { MAX_WAYS = 8 };

size_t sim_conv_workspace(const way *w, const problem *p);
/* The algorithm of a number, if it does this problem. */
cudnnStatus_t sim_conv_find(direction d, const problem *p, int algo, const way **out);

/* ---- the work ---- */

typedef struct task {
  problem p;
  direction direction;
  bool deterministic;
  const void *x, *w, *y; /* what is read */
  void *to, *workspace;
  size_t workspace_bytes;
  double alpha, beta;
  const void *z, *bias; /* forward with an activation, or NULL */
  int64_t zn, zc, zs[3];
  double alpha_z;
  bool relu;
} task;

sim_work_fn sim_conv_run;
/* Checks the workspace and hands a task to the handle's stream. */
cudnnStatus_t sim_conv_enqueue(cudnnHandle_t handle, const char *name, task *t, const way *w, size_t workspace_given);

bool sim_conv_any_null(int count, const void *const *p);
#define ANY_NULL(...) \
  sim_conv_any_null((int)(sizeof((const void *[]){__VA_ARGS__}) / sizeof(void *)), (const void *[]){__VA_ARGS__})

#endif
