/* sums_body.h: sums for variances, in the type T; included once for float and once for double. */

#ifndef PIECE
#define PIECE 4096 /* elements added up in T before the sum goes on in double */
#endif

/* Not inlined or cloned: GCC 12 forgets the simd pragma in such copies and leaves a scalar loop. */
static __attribute__((noinline, noclone)) void F(shifted_piece)(const T *x, int64_t n, T shift, double *s1,
                                                                double *s2) {
  T a = 0, b = 0;
#pragma omp simd reduction(+ : a, b)
  for (int64_t i = 0; i < n; i++) {
    T d = x[i] - shift;
    a += d;
    b += d * d;
  }
  *s1 += (double)a;
  *s2 += (double)b;
}

/* Sums of x - shift and its square over outer pieces of inner elements, `stride` apart. */
static void F(shifted_sums)(const T *x, int64_t outer, int64_t stride, int64_t inner, T shift, double *s1, double *s2) {
  *s1 = *s2 = 0;
  for (int64_t o = 0; o < outer; o++)
    for (int64_t done = 0; done < inner; done += PIECE)
      F(shifted_piece)(x + o * stride + done, inner - done < PIECE ? inner - done : PIECE, shift, s1, s2);
}
