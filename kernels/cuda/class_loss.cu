// class_loss.cu: cross entropy and nll. Probabilities are never stored: forward leaves each line's maximum and the
// logarithm of its sum of exponentials, from which backward computes them again.
//
// Losses of lines are added up in double: a thread's (warp's, block's) lines in order, then the block's, then the blocks'.
#include "lines.h"

static const int64_t BLOCKS_MAX = 512;

// A sum of losses, of their weights, and the first line whose label is no class (GOOD: none).
static const int64_t GOOD = INT64_MAX;
struct partial {
  double loss, weight;
  int64_t bad;
};
struct add_partials {
  __device__ partial operator()(partial a, partial b) const {
    return {a.loss + b.loss, a.weight + b.weight, a.bad < b.bad ? a.bad : b.bad};
  }
};
static __device__ inline partial gpu_shuffle_xor(partial v, int mask) {
  return {gpu_shuffle_xor(v.loss, mask), gpu_shuffle_xor(v.weight, mask),
          (int64_t)gpu_shuffle_xor((long long)v.bad, mask)};
}

// tl_class_loss_args and _grad_args as the device sees them; what is not there is NULL.
template <typename T> struct class_args {
  typedef gpu_compute_t<T> C;
  int64_t outer, classes, inner, ignore_index, first;
  bool logits, mean, each, vectors;
  bool wide; // y and g are C
  C smoothing;
  const T *x, *probs;
  const void *g;
  const int64_t *labels;
  const C *weight, *lse_in, *total_in;
  T *dx, *dt;
  void *y;
  C *lse, *total;
  partial *partials;
  tl_cuda_fault *fault;

  __device__ C weight_of(int64_t c) const { return weight == NULL ? (C)1 : weight[c]; }
  __device__ C grad_of(int64_t line) const { return wide ? ((const C *)g)[line] : gpu_load<C>(((const T *)g)[line]); }
  __device__ void set_loss(int64_t line, C loss) const {
    if (wide) ((C *)y)[line] = loss;
    else ((T *)y)[line] = gpu_store<T>(loss);
  }
};

// ---- forward ----

// The loss of a line whose log-probabilities are x - shift - ls, for all who work on it.
template <typename BY, typename T, typename C>
static __device__ inline C label_loss(const class_args<T> &a, const T *x, int64_t label, C shift, C ls) {
  const C w = a.weight_of(label), own = w == 0 ? 0 : w * ((shift - gpu_load<C>(x[label * a.inner])) + ls);
  if (a.smoothing == 0) return own;
  C all = 0;
  for (int64_t c = BY::first(); c < a.classes; c += BY::step())
    all += a.weight_of(c) * ((shift - gpu_load<C>(x[c * a.inner])) + ls);
  return (1 - a.smoothing) * own + a.smoothing / (C)a.classes * BY::all(all, gpu_sum(), (C)0);
}

// A class of no weight or probability adds nothing, even where its logit is -inf.
template <typename BY, typename T, typename C>
static __device__ inline C probs_loss(const class_args<T> &a, const T *x, const T *t, C shift, C ls) {
  C sum = 0;
  for (int64_t c = BY::first(); c < a.classes; c += BY::step()) {
    const C q = ((1 - a.smoothing) * gpu_load<C>(t[c * a.inner]) + a.smoothing / (C)a.classes) * a.weight_of(c);
    sum += q == 0 ? 0 : q * ((shift - gpu_load<C>(x[c * a.inner])) + ls);
  }
  return BY::all(sum, gpu_sum(), (C)0);
}

template <typename BY, typename T>
static __device__ inline void line_loss(const class_args<T> &a, int64_t line, int64_t lines, partial *sum) {
  typedef gpu_compute_t<T> C;
  const int64_t base = line / a.inner * a.classes * a.inner + line % a.inner;
  C shift = 0, ls = 0, loss = 0, w = 1;
  if (a.logits) {
    const gpu_exp_sum<C> s = gpu_line_exp_sum<BY>(a.x + base, a.classes, a.inner, a.vectors);
    shift = s.shift;
    ls = s.sum == 0 ? (C)INFINITY : f_log(s.sum); // a line that is all -inf: loss inf, gradients 0
    if (BY::first() == 0) {
      a.lse[line] = shift;
      a.lse[lines + line] = ls;
    }
  }
  if (a.labels == NULL) {
    loss = probs_loss<BY>(a, a.x + base, a.probs + base, shift, ls);
  } else {
    const int64_t label = a.labels[line];
    if (label == a.ignore_index) {
      w = 0;
    } else if (label < 0 || label >= a.classes) {
      w = 0;
      if (line < sum->bad) sum->bad = line;
    } else {
      loss = label_loss<BY>(a, a.x + base, label, shift, ls);
      w = a.weight_of(label);
    }
  }
  if (BY::first() != 0) return;
  if (a.each) a.set_loss(line, loss);
  sum->loss += (double)loss;
  sum->weight += (double)w;
}

template <typename T> static __device__ inline void store_result(const class_args<T> &a, partial sum) {
  typedef gpu_compute_t<T> C;
  double y = sum.loss;
  if (sum.bad != GOOD) gpu_report(a.fault, TL_CUDA_FAULT_LABEL, a.labels[sum.bad], a.classes, a.first + sum.bad);
  if (a.mean) y = sum.weight == 0 ? 0 : y / sum.weight;
  a.total[0] = (C)sum.weight;
  if (!a.each) a.set_loss(0, (C)y);
}

template <typename BY, typename T> static __global__ void class_loss_kernel(class_args<T> a) {
  const int64_t lines = a.outer * a.inner;
  partial sum = {0, 0, GOOD};
  for (int64_t line = BY::line(); line < lines; line += BY::lines()) line_loss<BY>(a, line, lines, &sum);
  sum = gpu_block_reduce(sum, add_partials(), partial{0, 0, GOOD});
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) store_result(a, sum);
  else a.partials[blockIdx.x] = sum;
}

template <typename T> static __global__ void class_total_kernel(class_args<T> a, int blocks) {
  partial sum = {0, 0, GOOD};
  for (int b = (int)threadIdx.x; b < blocks; b += (int)blockDim.x) sum = add_partials()(sum, a.partials[b]);
  sum = gpu_block_reduce(sum, add_partials(), partial{0, 0, GOOD});
  if (threadIdx.x == 0) store_result(a, sum);
}

template <typename T> static const T *data_of(const tl_tensor *t) { return t == NULL ? NULL : (const T *)tl_first(t); }

static unsigned blocks_for(int64_t lines, int64_t classes, int64_t inner) {
  const int64_t a_block = gpu_lines_of_block(classes, inner), blocks = (lines + a_block - 1) / a_block;
  return (unsigned)(blocks < 1 ? 1 : blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX);
}

template <typename T> static tl_status forward(const tl_class_loss_args *a) {
  typedef gpu_compute_t<T> C;
  const bool labels = a->target->dtype == TL_INT64;
  class_args<T> k = {};
  k.outer = a->outer, k.classes = a->classes, k.inner = a->inner, k.ignore_index = a->ignore_index;
  k.logits = a->logits, k.mean = a->reduction == TL_REDUCE_MEAN, k.each = a->reduction == TL_REDUCE_NONE;
  k.smoothing = (C)a->smoothing;
  k.x = data_of<T>(a->x), k.weight = data_of<C>(a->weight);
  if (labels) k.labels = data_of<int64_t>(a->target);
  else k.probs = data_of<T>(a->target);
  k.first = a->first, k.wide = a->y->dtype != a->x->dtype;
  k.y = tl_first(a->y), k.lse = (C *)data_of<C>(a->lse), k.total = (C *)tl_first(a->total);
  k.vectors = a->inner == 1 && gpu_aligned(k.x) && a->classes % gpu_vector<T>::N == 0;
  k.fault = tl_cuda_here()->fault;
  const unsigned blocks = blocks_for(a->outer * a->inner, a->classes, a->inner);
  const size_t bytes = blocks * sizeof(partial);
  if (blocks > 1 && (k.partials = (partial *)tl_cuda_scratch("cross_entropy", bytes)) == NULL) return TL_ERR_MEMORY;
  tl_status st = TL_OK;
  GPU_DISPATCH_LINES(a->classes, a->inner, BY, {
    st = gpu_launch("cross_entropy", class_loss_kernel<BY, T>, blocks, GPU_BLOCK, 0, k);
  })
  if (blocks == 1) return st;
  if (st == TL_OK) st = gpu_launch("cross_entropy", class_total_kernel<T>, 1, GPU_BLOCK, 0, k, (int)blocks);
  tl_cuda_scratch_free(k.partials, bytes);
  return st;
}

TL_CUDA_ENTRY(class_loss)(const tl_class_loss_args *a) {
  GPU_DISPATCH_FLOATING(a->x->dtype, T, return forward<T>(a);)
  return TL_OK;
}

// ---- backward ----

// What a line's gradient is made of: dx_c = mass * softmax_c - (own if c is the label) - share * weight_c, or minus
// scale * target_c for probabilities. All zero for a line without gradient.
template <typename C> struct line_grad {
  C scale, mass, own, share;
  int64_t label;
};

template <typename BY, typename T, typename C>
static __device__ inline line_grad<C> line_grad_of(const class_args<T> &a, int64_t line, int64_t lines, C scale,
                                                   C weights) {
  line_grad<C> d = {0, 0, 0, 0, -1};
  if (a.logits && a.lse_in[lines + line] == (C)INFINITY) return d;
  if (a.each) scale *= a.grad_of(line);
  if (a.labels != NULL) {
    const int64_t label = a.labels[line];
    if (label == a.ignore_index || label < 0 || label >= a.classes) return d;
    d.label = label;
    d.own = scale * (1 - a.smoothing) * a.weight_of(label);
    d.share = scale * a.smoothing / (C)a.classes;
    d.mass = d.own + d.share * weights;
  } else {
    const T *t = a.probs + (line / a.inner * a.classes * a.inner + line % a.inner);
    C q = 0;
    for (int64_t c = BY::first(); c < a.classes; c += BY::step())
      q += ((1 - a.smoothing) * gpu_load<C>(t[c * a.inner]) + a.smoothing / (C)a.classes) * a.weight_of(c);
    d.mass = scale * BY::all(q, gpu_sum(), (C)0);
    d.share = scale * a.smoothing / (C)a.classes;
  }
  d.scale = scale;
  return d;
}

template <typename BY, typename T> static __global__ void class_grad_kernel(class_args<T> a) {
  typedef gpu_compute_t<T> C;
  const int64_t lines = a.outer * a.inner;
  C scale = a.each ? (C)1 : a.grad_of(0), weights = (C)a.classes;
  if (a.mean) scale = a.total_in[0] == 0 ? 0 : scale / a.total_in[0];
  if (a.weight != NULL && a.smoothing != 0) {
    weights = 0;
    for (int64_t c = BY::first(); c < a.classes; c += BY::step()) weights += a.weight[c];
    weights = BY::all(weights, gpu_sum(), (C)0);
  }
  for (int64_t line = BY::line(); line < lines; line += BY::lines()) {
    const int64_t base = line / a.inner * a.classes * a.inner + line % a.inner;
    const line_grad<C> d = line_grad_of<BY>(a, line, lines, scale, weights);
    const C shift = a.logits ? a.lse_in[line] : (C)0, ls = a.logits ? a.lse_in[lines + line] : (C)0;
    const C keep = d.scale * (1 - a.smoothing);
    for (int64_t c = BY::first(); c < a.classes; c += BY::step()) {
      const int64_t at = base + c * a.inner;
      const C x = a.logits ? gpu_load<C>(a.x[at]) : (C)0, kept = keep * (a.probs == NULL ? (C)0 : a.weight_of(c));
      if (a.dx != NULL) {
        C v = !a.logits || d.mass == 0 ? 0 : f_exp(x - shift - ls) * d.mass;
        if (c == d.label) v -= d.own;
        if (d.share != 0) v -= d.share * a.weight_of(c);
        if (a.probs != NULL) v -= kept * gpu_load<C>(a.probs[at]);
        a.dx[at] = gpu_store<T>(v);
      }
      if (a.dt != NULL) a.dt[at] = gpu_store<T>(kept == 0 ? 0 : kept * (shift - x + ls));
    }
  }
}

template <typename T> static tl_status backward(const tl_class_loss_grad_args *a) {
  typedef gpu_compute_t<T> C;
  const bool labels = a->target->dtype == TL_INT64;
  class_args<T> k = {};
  k.outer = a->outer, k.classes = a->classes, k.inner = a->inner, k.ignore_index = a->ignore_index;
  k.logits = a->logits, k.mean = a->reduction == TL_REDUCE_MEAN, k.each = a->reduction == TL_REDUCE_NONE;
  k.smoothing = (C)a->smoothing;
  k.x = data_of<T>(a->x), k.weight = data_of<C>(a->weight), k.g = tl_first(a->g);
  k.wide = a->g->dtype != a->x->dtype;
  if (labels) k.labels = data_of<int64_t>(a->target);
  else k.probs = data_of<T>(a->target);
  k.lse_in = data_of<C>(a->lse), k.total_in = data_of<C>(a->total);
  k.dx = (T *)data_of<T>(a->dx), k.dt = (T *)data_of<T>(a->dt);
  const int64_t a_block = gpu_lines_of_block(a->classes, a->inner), blocks = (a->outer * a->inner + a_block - 1) / a_block;
  const int64_t most = (int64_t)tl_cuda_here()->multiprocessors * 32;
  GPU_DISPATCH_LINES(a->classes, a->inner, BY, {
    return gpu_launch("cross_entropy_grad", class_grad_kernel<BY, T>, (unsigned)(blocks < most ? blocks : most),
                      GPU_BLOCK, 0, k);
  })
}

TL_CUDA_ENTRY(class_loss_grad)(const tl_class_loss_grad_args *a) {
  if (a->x->numel == 0) return TL_OK;
  GPU_DISPATCH_FLOATING(a->x->dtype, T, return backward<T>(a);)
  return TL_OK;
}
