/* loss_body.h: the rows of ops/losses.def as loops in the type T; loss.c includes it for float and double. Each loop takes
 * n <= TL_CHUNK elements. */

#define TL_LOSS(name, value, dx_, dt_)                                                                             \
  static void F(name)(int64_t n, T *restrict y, const T *restrict xs, const T *restrict ts, const T *restrict pws, \
                      T p) {                                                                                       \
    (void)p, (void)pws;                                                                                            \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                          \
      const T x = xs[i], t = ts[i], pw = pws == NULL ? 1 : pws[i], d = x - t, a = f_abs(d);                        \
      (void)x, (void)t, (void)pw, (void)a;                                                                         \
      y[i] = (value);                                                                                              \
    }                                                                                                              \
  }                                                                                                                \
  static void F(name##_dx)(int64_t n, T *restrict y, const T *restrict xs, const T *restrict ts,                   \
                           const T *restrict pws, T p) {                                                           \
    (void)p, (void)pws;                                                                                            \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                          \
      const T x = xs[i], t = ts[i], pw = pws == NULL ? 1 : pws[i], d = x - t, a = f_abs(d);                        \
      (void)x, (void)t, (void)pw, (void)a;                                                                         \
      y[i] = (dx_);                                                                                                \
    }                                                                                                              \
  }                                                                                                                \
  static void F(name##_dt)(int64_t n, T *restrict y, const T *restrict xs, const T *restrict ts,                   \
                           const T *restrict pws, T p) {                                                           \
    (void)p, (void)pws;                                                                                            \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                                          \
      const T x = xs[i], t = ts[i], pw = pws == NULL ? 1 : pws[i], d = x - t, a = f_abs(d);                        \
      (void)x, (void)t, (void)pw, (void)a;                                                                         \
      y[i] = (dt_);                                                                                                \
    }                                                                                                              \
  }
#include "ops/losses.def"

typedef void (*F(loss_loop))(int64_t n, T *restrict y, const T *restrict x, const T *restrict t, const T *restrict pw,
                             T p);

static const struct {
  F(loss_loop) value, dx, dt;
} F(loss_loops)[TL_LOSS_KINDS] = {
#define TL_LOSS(name, value_, dx_, dt_) [TL_LOSS_##name] = {F(name), F(name##_dx), F(name##_dt)},
#include "ops/losses.def"
};

/* Arrays of one loss in the type T; NULL as in tl_loss_args. */
typedef struct F(loss_arrays) {
  const T *x, *t, *w, *pw, *g;
  T *y, *dx, *dt;
} F(loss_arrays);

/* Sum of elements first..end-1 of the loss, each with its weight; y != NULL gets them one by one. */
static double F(loss_range)(const tl_loss_args *a, const F(loss_arrays) * v, int64_t first, int64_t end) {
  const F(loss_loop) loop = F(loss_loops)[a->kind].value;
  T buffer[TL_CHUNK];
  double total = 0;
  for (int64_t i = first; i < end; i += TL_CHUNK) {
    int64_t n = end - i < TL_CHUNK ? end - i : TL_CHUNK;
    T *y = a->reduce ? buffer : v->y + i, s = 0;
    loop(n, y, v->x + i, v->t + i, v->pw == NULL ? NULL : v->pw + i, (T)a->p);
    if (v->w != NULL)
      for (int64_t k = 0; k < n; k++) y[k] *= v->w[i + k];
    if (!a->reduce) continue;
#pragma omp simd reduction(+ : s)
    for (int64_t k = 0; k < n; k++) s += y[k];
    total += (double)s;
  }
  return total;
}

/* out = derivative * weight * scale * g, for elements first..end-1; g is one value or one for each element */
static void F(loss_grad_range)(const tl_loss_grad_args *a, const F(loss_arrays) * v, F(loss_loop) loop, T *out,
                               int64_t first, int64_t end) {
  bool one = a->g->numel == 1;
  const T factor = (T)a->scale * (one ? v->g[0] : 1);
  for (int64_t i = first; i < end; i += TL_CHUNK) {
    int64_t n = end - i < TL_CHUNK ? end - i : TL_CHUNK;
    T *o = out + i;
    loop(n, o, v->x + i, v->t + i, v->pw == NULL ? NULL : v->pw + i, (T)a->p);
#pragma omp simd
    for (int64_t k = 0; k < n; k++) o[k] *= factor;
    if (!one)
      for (int64_t k = 0; k < n; k++) o[k] *= v->g[i + k];
    if (v->w != NULL)
      for (int64_t k = 0; k < n; k++) o[k] *= v->w[i + k];
  }
}

/* The first element of x or t in first..end-1 that is outside 0..1 (nan is not), -1 if there is none */
static int64_t F(outside_unit)(const F(loss_arrays) * v, int64_t first, int64_t end) {
  int64_t bad = -1;
  for (int64_t i = end - 1; i >= first; i--)
    if (v->x[i] < 0 || v->x[i] > 1 || v->t[i] < 0 || v->t[i] > 1) bad = i;
  return bad;
}
