// reduce.cu: the reductions of backend/reduce.h.
//
// Sums, products and powers of floating dtypes accumulate in double, as on the CPU: that costs two double-precision
// instructions an element, which a GPU with few such units still does about as fast as memory delivers.
#include "fold.h"

#include "backend/reduce.h"

enum { FINISH_NOTHING, FINISH_DIVIDE, FINISH_DIVIDE_ROOT, FINISH_CENTRE };

// ---- the operations ----

template <typename C> using wide_t = std::conditional_t<std::is_same_v<C, int64_t>, int64_t, double>;

template <typename C> static __device__ inline C lowest() {
  if constexpr (std::is_same_v<C, int64_t>) return INT64_MIN;
  else return -(C)INFINITY;
}
template <typename C> static __device__ inline C highest() {
  if constexpr (std::is_same_v<C, int64_t>) return INT64_MAX;
  else return (C)INFINITY;
}

// v / divisor to the last bit (Markstein 2000), without the branches of a division of any two numbers.
static __device__ inline double divided(const gpu_fold &a, double v) {
  const double q = v * a.inverse, r = fma(fma(-q, a.divisor, v), a.inverse, q);
  return r == r ? r : q; // nan from an infinity
}

// How an operation ends: as it is, with a division (means), a root (norms), both (variances, standard deviations).
enum ending { PLAIN, DIVIDED, ROOT, SPREAD };

// WIDE: accumulates in double or int64; else in the type of the values. Long endings are left to the joining kernel.
template <bool WIDE, ending END> struct op_base {
  enum { ends_alone = END == SPREAD, slow = false };
  template <typename C> using acc = std::conditional_t<WIDE, wide_t<C>, C>;
  template <typename C, typename A> static __device__ inline void write(const gpu_fold &a, uint32_t o, A v) {
    char *to = a.out + (size_t)o * a.out_size;
    if constexpr (std::is_same_v<C, int64_t>) {
      gpu_store_as<int64_t>(a.out_dtype, to, v);
    } else {
      double d = (double)v;
      if ((END == DIVIDED || END == SPREAD) && a.finish != FINISH_NOTHING) d = divided(a, d);
      if (END == ROOT || (END == SPREAD && a.finish == FINISH_DIVIDE_ROOT)) d = sqrt(d);
      if (END == DIVIDED && a.finish == FINISH_CENTRE) a.centre[o] = d;
      else gpu_store_as<double>(a.out_dtype, to, d);
    }
  }
};

#define OP(name, WIDE, END, JOIN, INIT, STEP)                                                                              \
  struct name : op_base<WIDE, END> {                                                                                       \
    template <typename C> static __device__ inline acc<C> init() { return (acc<C>)(INIT); }                           \
    template <typename A> static __device__ inline A join(A a, A b) { return JOIN(a, b); }                            \
    template <typename C> static __device__ inline acc<C> step(acc<C> a, C x, int64_t, double centre, double p) {     \
      const acc<C> v = (acc<C>)x;                                                                                     \
      (void)v, (void)centre, (void)p;                                                                                 \
      return STEP;                                                                                                    \
    }                                                                                                                 \
  };
#define LARGEST(a, b) gpu_largest()(a, b)
#define SMALLEST(a, b) gpu_smallest()(a, b)
OP(op_sum, true, DIVIDED, gpu_plus, 0, gpu_plus(a, v))
OP(op_prod, true, PLAIN, gpu_times, 1, gpu_times(a, v))
OP(op_max, false, PLAIN, LARGEST, lowest<C>(), LARGEST(a, v))
OP(op_min, false, PLAIN, SMALLEST, highest<C>(), SMALLEST(a, v))
OP(op_all, false, PLAIN, SMALLEST, 1, v != 0 ? a : 0)
OP(op_any, false, PLAIN, LARGEST, 0, v != 0 ? 1 : a)
OP(op_count, true, PLAIN, gpu_plus, 0, a + (v != 0 ? 1 : 0))
OP(op_abs, true, PLAIN, gpu_plus, 0, a + fabs(v))
OP(op_square, true, ROOT, gpu_plus, 0, a + v * v)
OP(op_absmax, false, PLAIN, LARGEST, 0, LARGEST(a, (acc<C>)fabs(v)))
OP(op_absmin, false, PLAIN, SMALLEST, highest<C>(), SMALLEST(a, (acc<C>)fabs(v)))
OP(op_spread, true, SPREAD, gpu_plus, 0, a + (v - centre) * (v - centre))
// exp and log are less code than pow, and p is no integer as a rule.
OP(op_power_sum, true, PLAIN, gpu_plus, 0, a + exp(p * log(fabs(v))))

struct op_power : op_power_sum {
  enum { ends_alone = true, slow = true };
  template <typename C, typename A> static __device__ inline void write(const gpu_fold &a, uint32_t o, A v) {
    gpu_store_as<double>(a.out_dtype, a.out + (size_t)o * a.out_size, pow(v, 1 / a.p));
  }
};

// ---- which one ----

template <typename C>
static tl_status floating(int kind, double p, const tl_iter *it, int reduced, int compute, const gpu_fold *as) {
  switch (kind) {
    case TL_REDUCE_KIND_PROD: return gpu_fold_some<op_prod, C>("prod", it, reduced, compute, as);
    case TL_REDUCE_KIND_MAX: return gpu_fold_some<op_max, C>("max", it, reduced, compute, as);
    case TL_REDUCE_KIND_MIN: return gpu_fold_some<op_min, C>("min", it, reduced, compute, as);
    case TL_REDUCE_KIND_ALL: return gpu_fold_some<op_all, C>("all", it, reduced, compute, as);
    case TL_REDUCE_KIND_ANY: return gpu_fold_some<op_any, C>("any", it, reduced, compute, as);
    case TL_REDUCE_KIND_NORM:
      if (p == 2) return gpu_fold_some<op_square, C>("norm", it, reduced, compute, as);
      if (p == 1) return gpu_fold_some<op_abs, C>("norm", it, reduced, compute, as);
      if (p == 0) return gpu_fold_some<op_count, C>("norm", it, reduced, compute, as);
      if (p == INFINITY) return gpu_fold_some<op_absmax, C>("norm", it, reduced, compute, as);
      if (p == -INFINITY) return gpu_fold_some<op_absmin, C>("norm", it, reduced, compute, as);
      return gpu_fold_some<op_power, C>("norm", it, reduced, compute, as);
    default: return gpu_fold_some<op_sum, C>("sum", it, reduced, compute, as);
  }
}

static tl_status integer(int kind, const tl_iter *it, int reduced, const gpu_fold *as) {
  typedef int64_t C;
  switch (kind) {
    case TL_REDUCE_KIND_SUM: return gpu_fold_some<op_sum, C>("sum", it, reduced, TL_INT64, as);
    case TL_REDUCE_KIND_PROD: return gpu_fold_some<op_prod, C>("prod", it, reduced, TL_INT64, as);
    case TL_REDUCE_KIND_MAX: return gpu_fold_some<op_max, C>("max", it, reduced, TL_INT64, as);
    case TL_REDUCE_KIND_MIN: return gpu_fold_some<op_min, C>("min", it, reduced, TL_INT64, as);
    case TL_REDUCE_KIND_ALL: return gpu_fold_some<op_all, C>("all", it, reduced, TL_INT64, as);
    case TL_REDUCE_KIND_ANY: return gpu_fold_some<op_any, C>("any", it, reduced, TL_INT64, as);
    default: return TL_FAIL(TL_ERR_UNSUPPORTED, "reduce", "kind %d does not reduce integers", kind);
  }
}

static tl_status one(int kind, double p, const tl_iter *it, int reduced, int compute, const gpu_fold *as) {
  if (compute == TL_INT64) return integer(kind, it, reduced, as);
  return compute == TL_FLOAT64 ? floating<double>(kind, p, it, reduced, compute, as)
                               : floating<float>(kind, p, it, reduced, compute, as);
}

// Two passes: the means, then the squares of what differs from them.
static tl_status spread(const tl_iter *it, int reduced, int compute, int64_t outs, int64_t count, gpu_fold *as) {
  size_t bytes = (size_t)outs * sizeof(double);
  double divisor = as->divisor;
  int finish = as->finish;
  as->centre = (double *)tl_cuda_scratch("var", bytes);
  if (as->centre == NULL) return TL_ERR_MEMORY;
  as->divisor = (double)count;
  as->inverse = 1 / as->divisor;
  as->finish = FINISH_CENTRE;
  tl_status st = one(TL_REDUCE_KIND_SUM, 0, it, reduced, compute, as);
  as->divisor = divisor;
  as->inverse = 1 / divisor;
  as->finish = finish;
  if (st == TL_OK)
    st = compute == TL_FLOAT64 ? gpu_fold_some<op_spread, double>("var", it, reduced, compute, as)
                               : gpu_fold_some<op_spread, float>("var", it, reduced, compute, as);
  tl_cuda_scratch_free(as->centre, bytes);
  return st;
}

TL_CUDA_ENTRY(reduce)(int kind, const tl_iter *whole, int reduced, double p) {
  int64_t outs = 1, count = 1;
  for (int d = 0; d < whole->ndim - reduced; d++) outs *= whole->shape[d];
  for (int d = whole->ndim - reduced; d < whole->ndim; d++) count *= whole->shape[d];
  if (outs == 0) return TL_OK;
  const bool spreads = kind == TL_REDUCE_KIND_VAR || kind == TL_REDUCE_KIND_STD;
  const int compute = tl_compute_type(whole->op[1].dtype);
  if (spreads && compute == TL_INT64) return TL_FAIL(TL_ERR_UNSUPPORTED, "reduce", "kind %d does not reduce integers", kind);
  gpu_fold as = {};
  as.p = p;
  as.out_dtype = whole->op[0].dtype;
  as.out_size = (int)tl_dtype_size(as.out_dtype);
  as.divisor = spreads ? ((double)count - p > 0 ? (double)count - p : 0) : (double)count;
  as.inverse = 1 / as.divisor;
  as.finish = kind == TL_REDUCE_KIND_MEAN || kind == TL_REDUCE_KIND_VAR ? FINISH_DIVIDE
              : kind == TL_REDUCE_KIND_STD                               ? FINISH_DIVIDE_ROOT
                                                                         : FINISH_NOTHING;
  // outputs in parts, unless one has more elements than that
  const int64_t most = count > GPU_FOLD_MOST ? count : GPU_FOLD_MOST;
  return gpu_split(whole, whole->ndim - reduced, most, 0, [&](const tl_iter *it, int64_t) {
    gpu_fold some = as;
    some.out = it->op[0].data;
    if (!spreads) return one(kind, p, it, reduced, compute, &some);
    int64_t n = 1;
    for (int d = 0; d < it->ndim - reduced; d++) n *= it->shape[d];
    return spread(it, reduced, compute, n, count, &some);
  });
}
