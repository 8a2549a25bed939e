// loss.cu: losses that compare element by element: the rows of ops/losses.def, picked at run time (the branch is the same
// for all threads). Sums: a thread adds up a few elements in the computing type and these sums in double; then the block's,
// then the blocks'. How many blocks there are, the number of elements alone decides.
#include "element.h"
#include "formula.h"
#include "warp.h"

static const int64_t BLOCKS_MAX = 512, RUN = 16; // RUN: elements that are added up before the sum goes on in double

#define TL_C(c) ((C)(c))

// The rows of losses.def as cases of a switch: their values, and the derivatives by x and by t.
#define LOSS_ROW(name, formula) \
  case TL_LOSS_##name: return (formula);
#define TL_LOSS(name, value, dx, dt) LOSS_ROW(name, value)
template <typename C> static __device__ inline C loss_value(int kind, C x, C t, C pw, C p) {
  const C d = x - t, a = f_abs(d);
  (void)d, (void)a, (void)pw, (void)p;
  switch (kind) {
#include "ops/losses.def"
    default: return 0;
  }
}
#define TL_LOSS(name, value, dx, dt) LOSS_ROW(name, dx)
template <typename C> static __device__ inline C loss_dx(int kind, C x, C t, C pw, C p) {
  const C d = x - t, a = f_abs(d);
  (void)d, (void)a, (void)pw, (void)p;
  switch (kind) {
#include "ops/losses.def"
    default: return 0;
  }
}
#define TL_LOSS(name, value, dx, dt) LOSS_ROW(name, dt)
template <typename C> static __device__ inline C loss_dt(int kind, C x, C t, C pw, C p) {
  const C d = x - t, a = f_abs(d);
  (void)d, (void)a, (void)pw, (void)p;
  switch (kind) {
#include "ops/losses.def"
    default: return 0;
  }
}

// tl_loss_args and _grad_args as the device sees them; what is not there is NULL.
template <typename T> struct loss_args {
  typedef gpu_compute_t<T> C;
  int kind;
  bool reduce, unit, one_g;
  int64_t numel;
  C p;
  double scale;
  const T *x, *t, *w, *pw, *g;
  T *y, *dx, *dt;
  double *partials;
  tl_cuda_fault *fault;
};

template <typename T> static __device__ inline gpu_compute_t<T> or_one(const T *p, int64_t i) {
  return p == NULL ? (gpu_compute_t<T>)1 : gpu_load<gpu_compute_t<T>>(p[i]);
}

template <typename T> static __device__ inline gpu_compute_t<T> element_loss(const loss_args<T> &a, int64_t i) {
  typedef gpu_compute_t<T> C;
  const C x = gpu_load<C>(a.x[i]), t = gpu_load<C>(a.t[i]);
  if (a.unit && (x < 0 || x > 1 || t < 0 || t > 1)) gpu_report(a.fault, TL_CUDA_FAULT_UNIT, 0, 0, i);
  return loss_value(a.kind, x, t, or_one(a.pw, i), a.p) * or_one(a.w, i);
}

template <typename T> static __global__ void loss_kernel(loss_args<T> a) {
  GPU_LOOP(i, a.numel) a.y[i] = gpu_store<T>(element_loss(a, i));
}

template <typename T> static __device__ inline void store_sum(const loss_args<T> &a, double sum) {
  a.y[0] = gpu_store<T>((gpu_compute_t<T>)(sum * a.scale)); // of nothing: 0, and its mean (scale inf) is nan
}

template <typename T> static __global__ void loss_sum_kernel(loss_args<T> a) {
  gpu_compute_t<T> run = 0;
  double sum = 0;
  int count = 0;
  GPU_LOOP(i, a.numel) {
    run += element_loss(a, i);
    if (++count < RUN) continue;
    sum += (double)run;
    run = 0;
    count = 0;
  }
  sum = gpu_block_sum(sum + (double)run);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) store_sum(a, sum);
  else a.partials[blockIdx.x] = sum;
}

template <typename T> static __global__ void loss_total_kernel(loss_args<T> a, int blocks) {
  double sum = 0;
  for (int b = (int)threadIdx.x; b < blocks; b += (int)blockDim.x) sum += a.partials[b];
  sum = gpu_block_sum(sum);
  if (threadIdx.x == 0) store_sum(a, sum);
}

// derivative * scale * g * weight
template <typename T> static __global__ void loss_grad_kernel(loss_args<T> a) {
  typedef gpu_compute_t<T> C;
  const C factor = (C)a.scale * (a.one_g ? gpu_load<C>(a.g[0]) : (C)1);
  GPU_LOOP(i, a.numel) {
    const C x = gpu_load<C>(a.x[i]), t = gpu_load<C>(a.t[i]), pw = or_one(a.pw, i), w = or_one(a.w, i);
    const C g = a.one_g ? (C)1 : gpu_load<C>(a.g[i]);
    if (a.dx != NULL) a.dx[i] = gpu_store<T>(loss_dx(a.kind, x, t, pw, a.p) * factor * g * w);
    if (a.dt != NULL) a.dt[i] = gpu_store<T>(loss_dt(a.kind, x, t, pw, a.p) * factor * g * w);
  }
}

template <typename T> static T *data_of(const tl_tensor *t) { return t == NULL ? NULL : (T *)tl_first(t); }

template <typename T> static tl_status forward(const tl_loss_args *a) {
  loss_args<T> k = {};
  k.kind = a->kind, k.reduce = a->reduce, k.unit = a->unit, k.numel = a->numel, k.scale = a->scale;
  k.p = (gpu_compute_t<T>)a->p;
  k.x = data_of<T>(a->x), k.t = data_of<T>(a->t), k.w = data_of<T>(a->w), k.pw = data_of<T>(a->pw);
  k.y = data_of<T>(a->y);
  k.fault = tl_cuda_here()->fault;
  if (!a->reduce) {
    if (a->numel == 0) return TL_OK;
    return gpu_launch("loss", loss_kernel<T>, gpu_blocks(a->numel), GPU_BLOCK, 0, k);
  }
  int64_t blocks = (a->numel + GPU_BLOCK * RUN - 1) / (GPU_BLOCK * RUN);
  blocks = blocks < 1 ? 1 : blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX;
  const size_t bytes = (size_t)blocks * sizeof *k.partials;
  if (blocks > 1 && (k.partials = (double *)tl_cuda_scratch("loss", bytes)) == NULL) return TL_ERR_MEMORY;
  tl_status st = gpu_launch("loss", loss_sum_kernel<T>, (unsigned)blocks, GPU_BLOCK, 0, k);
  if (blocks == 1) return st;
  if (st == TL_OK) st = gpu_launch("loss", loss_total_kernel<T>, 1, GPU_BLOCK, 0, k, (int)blocks);
  tl_cuda_scratch_free(k.partials, bytes);
  return st;
}

TL_CUDA_ENTRY(loss)(const tl_loss_args *a) {
  GPU_DISPATCH_FLOATING(a->x->dtype, T, return forward<T>(a);)
  return TL_OK;
}

template <typename T> static tl_status backward(const tl_loss_grad_args *a) {
  loss_args<T> k = {};
  k.kind = a->kind, k.numel = a->numel, k.scale = a->scale, k.one_g = a->g->numel == 1;
  k.p = (gpu_compute_t<T>)a->p;
  k.x = data_of<T>(a->x), k.t = data_of<T>(a->t), k.w = data_of<T>(a->w), k.pw = data_of<T>(a->pw);
  k.g = data_of<T>(a->g), k.dx = data_of<T>(a->dx), k.dt = data_of<T>(a->dt);
  return gpu_launch("loss_grad", loss_grad_kernel<T>, gpu_blocks(a->numel), GPU_BLOCK, 0, k);
}

TL_CUDA_ENTRY(loss_grad)(const tl_loss_grad_args *a) {
  if (a->numel == 0) return TL_OK;
  GPU_DISPATCH_FLOATING(a->x->dtype, T, return backward<T>(a);)
  return TL_OK;
}
