// norm.cu: batch norm (Ioffe & Szegedy 2015), every case of the contract; backend/cuda/batch_norm.c gives cuDNN those
// that it has.
//
// Statistics: a thread takes eight elements at a time in two passes over registers (mean, then squares round it) and
// merges such pieces after Chan, Golub & LeVeque 1983, all relative to the channel's first element: nothing cancels,
// and float32 is enough. Parts of a channel are merged in double. Then one pass normalises.
#include "backend/cuda/table.h"
#include "channels.h"
#include "element.h"
#include "warp.h"

namespace {

/* Where a thread stands in its channel. */
struct place {
  int64_t e, end, o, i; /* element e = o * inner + i of the part that ends before `end` */
  int64_t channel;
  int lanes;
  bool in; /* a channel that there is */
};

__device__ place first_place(const tl_cuda_channels &c) {
  const int64_t group = blockIdx.x % c.groups, split = blockIdx.x / c.groups;
  place p;
  p.lanes = GPU_BLOCK >> c.across;
  p.channel = (group << c.across) + (threadIdx.x & ((1u << c.across) - 1));
  p.in = p.channel < c.channels;
  const int64_t begin = split * c.part, end = begin + c.part, all = c.outer * c.inner;
  p.end = !p.in ? 0 : end < all ? end : all;
  p.e = begin + (threadIdx.x >> c.across);
  p.o = (int64_t)((uint64_t)p.e / (uint64_t)c.inner);
  p.i = p.e - p.o * c.inner;
  return p;
}

/* Index of the element; the place moves on. */
__device__ int64_t take(const tl_cuda_channels &c, int64_t step_o, int64_t step_i, place *p) {
  const int64_t at = (p->o * c.channels + p->channel) * c.inner + p->i;
  p->e += p->lanes;
  p->o += step_o;
  p->i += step_i;
  if (p->i >= c.inner) p->i -= c.inner, p->o++;
  return at;
}

// ---- statistics ----

template <typename C> struct moments { C n, mean, m2; /* m2: sum of squares round the mean */ };

template <typename C> __device__ moments<C> merge(const moments<C> &a, const moments<C> &b) {
  const C n = a.n + b.n;
  if (n == 0) return a;
  const C d = b.mean - a.mean, share = b.n / n;
  return {n, a.mean + d * share, a.m2 + b.m2 + d * d * a.n * share};
}

enum { PIECE = 8 };

/* parts (splits, 2, channels): mean and m2, relative to the channel's first element. */
template <typename T> __global__ void moments_kernel(const T *x, tl_cuda_channels c, gpu_compute_t<T> *parts) {
  typedef gpu_compute_t<T> C;
  __shared__ moments<C> shared[GPU_BLOCK];
  place p = first_place(c);
  const int64_t step_o = p.lanes / c.inner, step_i = p.lanes % c.inner;
  const C shift = p.in ? gpu_load<C>(x[p.channel * c.inner]) : (C)0;
  moments<C> all = {0, 0, 0};
  while (p.e + (PIECE - 1) * p.lanes < p.end) {
    C v[PIECE], sum = 0, m2 = 0;
#pragma unroll
    for (int k = 0; k < PIECE; k++) v[k] = gpu_load<C>(x[take(c, step_o, step_i, &p)]) - shift;
#pragma unroll
    for (int k = 0; k < PIECE; k++) sum += v[k];
    const C mean = sum / PIECE;
#pragma unroll
    for (int k = 0; k < PIECE; k++) m2 += (v[k] - mean) * (v[k] - mean);
    all = merge(all, moments<C>{PIECE, mean, m2});
  }
  while (p.e < p.end) all = merge(all, moments<C>{1, gpu_load<C>(x[take(c, step_o, step_i, &p)]) - shift, 0});
  shared[threadIdx.x] = all;
  for (int half = GPU_BLOCK / 2; half >= 1 << c.across; half /= 2) {
    __syncthreads();
    if ((int)threadIdx.x < half) shared[threadIdx.x] = merge(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  if ((int)threadIdx.x >= 1 << c.across || !p.in) return;
  all = shared[threadIdx.x];
  C *to = parts + blockIdx.x / c.groups * 2 * c.channels + p.channel;
  to[0] = all.mean;
  to[c.channels] = all.m2;
}

/* What a channel's thread needs to know besides its sums. */
struct settings {
  bool batch_stats;
  double momentum, eps, n;
  void *running_mean, *running_var;
  int mean_dtype, mean_size, var_dtype, var_size;
};

/* Statistics of channel k from its parts, or the running ones; coefficients (3, channels): y = (x - shift) scale +
 * offset */
template <typename T>
__global__ void settle_kernel(const T *x, tl_cuda_channels c, tl_cuda_part_sums add, const gpu_compute_t<T> *parts,
                              settings s, const gpu_compute_t<T> *w, const gpu_compute_t<T> *b,
                              gpu_compute_t<T> *mean_out, gpu_compute_t<T> *invstd_out,
                              gpu_compute_t<T> *coefficients) {
  typedef gpu_compute_t<T> C;
  GPU_LOOP(i, add.threads) {
    const int lane = (int)i & (add.lanes - 1);
    const int64_t k = i / add.lanes, from = k < c.channels ? k : 0;
    double mean = 0, var = 0;
    if (s.batch_stats) {
      const auto count = [&](int64_t part) {
        const int64_t left = c.outer * c.inner - part * c.part;
        return (double)(left < c.part ? left : c.part);
      };
      const C *means = parts + from, *squares = means + c.channels;
      mean = gpu_part_sum(c.splits, lane, add.lanes,
                          [&](int64_t part) { return count(part) * (double)means[part * 2 * c.channels]; }) /
             s.n;
      var = gpu_part_sum(c.splits, lane, add.lanes,
                         [&](int64_t part) {
                           const double d = (double)means[part * 2 * c.channels] - mean;
                           return (double)squares[part * 2 * c.channels] + d * d * count(part);
                         }) /
            s.n;
      mean += (double)gpu_load<C>(x[from * c.inner]);
    }
    if (lane > 0 || k >= c.channels) continue;
    char *running_mean = (char *)s.running_mean, *running_var = (char *)s.running_var;
    if (running_mean != nullptr) {
      running_mean += k * s.mean_size;
      running_var += k * s.var_size;
    }
    if (!s.batch_stats) {
      mean = gpu_load_as<double>(s.mean_dtype, running_mean);
      var = gpu_load_as<double>(s.var_dtype, running_var);
    } else if (running_mean != nullptr) {
      const double m = gpu_load_as<double>(s.mean_dtype, running_mean),
                   v = gpu_load_as<double>(s.var_dtype, running_var);
      gpu_store_as<double>(s.mean_dtype, running_mean, m + s.momentum * (mean - m));
      gpu_store_as<double>(s.var_dtype, running_var, v + s.momentum * (var * s.n / (s.n - 1) - v));
    }
    const double invstd = 1 / sqrt(var + s.eps);
    const C shift = (C)mean, scale = (C)(invstd * (w == nullptr ? 1 : (double)w[k]));
    mean_out[k] = shift;
    invstd_out[k] = (C)invstd;
    coefficients[k] = shift;
    coefficients[c.channels + k] = scale;
    /* what the rounding of the mean took away goes into the offset */
    coefficients[2 * c.channels + k] = (C)((b == nullptr ? 0 : (double)b[k]) - (mean - (double)shift) * (double)scale);
  }
}

// ---- elements ----

/* V neighbouring elements have one channel: V divides inner. */
template <int V> __device__ int64_t channel_of(const tl_cuda_channels &c, int64_t unit) {
  return (int64_t)((uint64_t)unit / (uint64_t)(c.inner / V) % (uint64_t)c.channels);
}

template <typename T, int V> struct alignas(V * sizeof(T)) pack { T at[V]; };

template <typename T, int V>
__global__ void apply_kernel(const T *x, tl_cuda_channels c, const gpu_compute_t<T> *coefficients, T *y) {
  typedef gpu_compute_t<T> C;
  GPU_LOOP(i, c.outer * c.channels * (c.inner / V)) {
    const int64_t k = channel_of<V>(c, i);
    const C shift = coefficients[k], scale = coefficients[c.channels + k], offset = coefficients[2 * c.channels + k];
    pack<T, V> v = ((const pack<T, V> *)x)[i];
#pragma unroll
    for (int j = 0; j < V; j++) v.at[j] = gpu_store<T>((gpu_load<C>(v.at[j]) - shift) * scale + offset);
    ((pack<T, V> *)y)[i] = v;
  }
}

/* dx = p g + q (x - mean) + r */
template <typename T, int V>
__global__ void grad_apply_kernel(const T *g, const T *x, tl_cuda_channels c, const gpu_compute_t<T> *mean,
                                  const gpu_compute_t<T> *coefficients, T *dx) {
  typedef gpu_compute_t<T> C;
  GPU_LOOP(i, c.outer * c.channels * (c.inner / V)) {
    const int64_t k = channel_of<V>(c, i);
    const C p = coefficients[k], q = coefficients[c.channels + k], r = coefficients[2 * c.channels + k], m = mean[k];
    pack<T, V> a = ((const pack<T, V> *)g)[i];
    const pack<T, V> b = ((const pack<T, V> *)x)[i];
#pragma unroll
    for (int j = 0; j < V; j++) a.at[j] = gpu_store<T>(p * gpu_load<C>(a.at[j]) + (q * (gpu_load<C>(b.at[j]) - m) + r));
    ((pack<T, V> *)dx)[i] = a;
  }
}

// ---- sums of gradients ----

template <typename T>
__global__ void sums_kernel(const T *g, const T *x, tl_cuda_channels c, const gpu_compute_t<T> *mean,
                            const gpu_compute_t<T> *rstd, int64_t step, int64_t per, gpu_compute_t<T> *parts) {
  typedef gpu_compute_t<T> C;
  __shared__ C first[GPU_BLOCK], second[GPU_BLOCK];
  place p = first_place(c);
  const int64_t step_o = p.lanes / c.inner, step_i = p.lanes % c.inner, statistics = p.channel / per;
  C s = 0, t = 0;
  while (p.e < p.end) {
    const int64_t k = p.o * step + statistics, at = take(c, step_o, step_i, &p);
    const C v = gpu_load<C>(g[at]);
    s += v;
    t += v * ((gpu_load<C>(x[at]) - (mean == nullptr ? (C)0 : mean[k])) * (rstd == nullptr ? (C)1 : rstd[k]));
  }
  first[threadIdx.x] = s;
  second[threadIdx.x] = t;
  for (int half = GPU_BLOCK / 2; half >= 1 << c.across; half /= 2) {
    __syncthreads();
    if ((int)threadIdx.x >= half) continue;
    first[threadIdx.x] += first[threadIdx.x + half];
    second[threadIdx.x] += second[threadIdx.x + half];
  }
  if ((int)threadIdx.x >= 1 << c.across || !p.in) return;
  C *to = parts + blockIdx.x / c.groups * 2 * c.channels + p.channel;
  to[0] = first[threadIdx.x];
  to[c.channels] = second[threadIdx.x];
}

/* dw, db and the coefficients (3, channels) of dx; each of dw, db may be NULL. Without parts the sums are not wanted.
 * */
template <typename C>
__global__ void grad_settle_kernel(tl_cuda_channels c, tl_cuda_part_sums add, const C *parts, bool batch_stats,
                                   double n, const C *w, const C *invstd_in, C *dw, C *db, C *coefficients) {
  GPU_LOOP(i, add.threads) {
    const int lane = (int)i & (add.lanes - 1);
    const int64_t k = i / add.lanes, from = k < c.channels ? k : 0;
    double sg = 0, sgx = 0;
    if (parts != nullptr) {
      sg = gpu_part_sum(c.splits, lane, add.lanes, [&](int64_t p) { return (double)parts[p * 2 * c.channels + from]; });
      sgx = gpu_part_sum(c.splits, lane, add.lanes,
                         [&](int64_t p) { return (double)parts[(p * 2 + 1) * c.channels + from]; });
    }
    if (lane > 0 || k >= c.channels) continue;
    const double invstd = (double)invstd_in[k], scale = invstd * (w == nullptr ? 1 : (double)w[k]);
    if (dw != nullptr) dw[k] = (C)(sgx * invstd);
    if (db != nullptr) db[k] = (C)sg;
    coefficients[k] = (C)scale;
    coefficients[c.channels + k] = batch_stats ? (C)(-scale * invstd * invstd * sgx / n) : (C)0;
    coefficients[2 * c.channels + k] = batch_stats ? (C)(-scale * sg / n) : (C)0;
  }
}

/* Several elements at once where they share a channel and lie right. */
template <typename T> bool packs(const tl_cuda_channels &c, const void *a, const void *b) {
  return c.inner % gpu_vector<T>::N == 0 && gpu_aligned(a) && gpu_aligned(b);
}

template <typename C> C *array(tl_tensor *t) { return t == NULL ? NULL : (C *)tl_first(t); }

template <typename T> tl_status forward(const tl_batch_norm_args *a) {
  typedef gpu_compute_t<T> C;
  enum { V = gpu_vector<T>::N };
  const char *op = "batch_norm";
  const tl_cuda_channels c = tl_cuda_channels_of(a->outer, a->channels, a->inner);
  const tl_cuda_part_sums add = tl_cuda_part_sums_of(&c);
  const size_t bytes = (size_t)((a->batch_stats ? 2 * c.splits : 0) + 3) * (size_t)c.channels * sizeof(C);
  C *coefficients = (C *)tl_cuda_scratch(op, bytes), *parts = coefficients + 3 * c.channels;
  if (coefficients == NULL) return TL_ERR_MEMORY;
  settings s = {a->batch_stats, a->momentum, a->eps, (double)a->outer * (double)a->inner, NULL, NULL, 0, 0, 0, 0};
  if (a->running_mean != NULL) {
    s.running_mean = tl_first(a->running_mean);
    s.mean_dtype = a->running_mean->dtype;
    s.mean_size = (int)tl_dtype_size(s.mean_dtype);
    s.running_var = tl_first(a->running_var);
    s.var_dtype = a->running_var->dtype;
    s.var_size = (int)tl_dtype_size(s.var_dtype);
  }
  const T *x = array<T>(a->x);
  T *y = array<T>(a->y);
  tl_status st = TL_OK;
  if (a->batch_stats)
    st = gpu_launch(op, moments_kernel<T>, (unsigned)tl_cuda_channel_blocks(&c), GPU_BLOCK, 0, x, c, parts);
  if (st == TL_OK)
    st = gpu_launch(op, settle_kernel<T>, gpu_blocks(add.threads), GPU_BLOCK, 0, x, c, add, parts, s, array<C>(a->w),
                    array<C>(a->b), array<C>(a->mean), array<C>(a->invstd), coefficients);
  if (st == TL_OK && packs<T>(c, x, y))
    st = gpu_launch(op, apply_kernel<T, V>, gpu_blocks(a->x->numel / V), GPU_BLOCK, 0, x, c, coefficients, y);
  else if (st == TL_OK)
    st = gpu_launch(op, apply_kernel<T, 1>, gpu_blocks(a->x->numel), GPU_BLOCK, 0, x, c, coefficients, y);
  tl_cuda_scratch_free(coefficients, bytes);
  return st;
}

template <typename T>
tl_status sums(const char *op, const tl_cuda_channels *c, const void *g, const void *x, const void *mean,
               const void *rstd, int64_t step, int64_t per, void *parts) {
  return gpu_launch(op, sums_kernel<T>, (unsigned)tl_cuda_channel_blocks(c), GPU_BLOCK, 0, (const T *)g, (const T *)x,
                    *c, (const gpu_compute_t<T> *)mean, (const gpu_compute_t<T> *)rstd, step, per,
                    (gpu_compute_t<T> *)parts);
}

template <typename T> tl_status backward(const tl_batch_norm_grad_args *a) {
  typedef gpu_compute_t<T> C;
  enum { V = gpu_vector<T>::N };
  const char *op = "batch_norm";
  const tl_cuda_channels c = tl_cuda_channels_of(a->outer, a->channels, a->inner);
  const tl_cuda_part_sums add = tl_cuda_part_sums_of(&c);
  const size_t bytes = (size_t)(2 * c.splits + 3) * (size_t)c.channels * sizeof(C);
  C *coefficients = (C *)tl_cuda_scratch(op, bytes), *parts = coefficients + 3 * c.channels;
  if (coefficients == NULL) return TL_ERR_MEMORY;
  const T *g = array<T>(a->g), *x = array<T>(a->x);
  T *dx = array<T>(a->dx);
  const bool summed = a->batch_stats || a->dw != NULL || a->db != NULL;
  tl_status st = summed ? sums<T>(op, &c, g, x, tl_first(a->mean), NULL, 0, 1, parts) : TL_OK;
  if (st == TL_OK)
    st = gpu_launch(op, grad_settle_kernel<C>, gpu_blocks(add.threads), GPU_BLOCK, 0, c, add, summed ? parts : NULL,
                    a->batch_stats, (double)a->outer * (double)a->inner, array<C>(a->w), array<C>(a->invstd),
                    array<C>(a->dw), array<C>(a->db), coefficients);
  const C *mean = array<C>(a->mean);
  if (st == TL_OK && dx != NULL && a->x->numel > 0) {
    if (packs<T>(c, x, dx) && gpu_aligned(g))
      st = gpu_launch(op, grad_apply_kernel<T, V>, gpu_blocks(a->x->numel / V), GPU_BLOCK, 0, g, x, c, mean,
                      coefficients, dx);
    else
      st = gpu_launch(op, grad_apply_kernel<T, 1>, gpu_blocks(a->x->numel), GPU_BLOCK, 0, g, x, c, mean, coefficients,
                      dx);
  }
  tl_cuda_scratch_free(coefficients, bytes);
  return st;
}

} // namespace

tl_status tl_cuda_channel_sums(const char *op, const tl_cuda_channels *c, int dtype, const void *g, const void *x,
                               const void *mean, const void *rstd, int64_t step, int64_t per, void *parts) {
  GPU_DISPATCH_FLOATING(dtype, T, { return sums<T>(op, c, g, x, mean, rstd, step, per, parts); })
  return TL_OK;
}

extern "C" tl_status tl_cuda_own_batch_norm(const tl_batch_norm_args *a) {
  if (a->x->numel == 0) return TL_OK; /* no statistics: nothing moves */
  GPU_DISPATCH_FLOATING(a->x->dtype, T, { return forward<T>(a); })
  return TL_OK;
}

extern "C" tl_status tl_cuda_own_batch_norm_grad(const tl_batch_norm_grad_args *a) {
  if (a->channels == 0) return TL_OK;
  GPU_DISPATCH_FLOATING(a->x->dtype, T, { return backward<T>(a); })
  return TL_OK;
}
