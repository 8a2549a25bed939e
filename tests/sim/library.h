/* library.h: what the simulated libraries (cublaslt.c, cudnn*.c) share: numbers of the low types, one matrix product,
 * the pieces of a call's memory, objects that are alive, refusals in words. */
#ifndef TLUA_SIM_LIBRARY_H
#define TLUA_SIM_LIBRARY_H

#include <stdbool.h>
#include <stdint.h>

#include "sim.h"

/* ---- numbers: everything is computed in float64 and rounded once to float32, then to the low type ---- */

typedef enum sim_type { SIM_F32, SIM_F64, SIM_F16, SIM_BF16, SIM_NO_TYPE } sim_type;

size_t sim_type_size(sim_type type);
double sim_load(sim_type type, const void *base, int64_t index);
/* Rounds to nearest even; a float16 or bfloat16 value goes through float32, as it does in the real kernels. */
void sim_store(sim_type type, void *base, int64_t index, double value);
/* out[i] = base[offset + i * stride] */
void sim_unpack(sim_type type, const void *base, int64_t offset, int64_t n, int64_t stride, double *out);
/* base[offset + i * stride] = alpha * value[i] + beta * base[...]; memory is read only where beta is not 0. In float32
 * but for SIM_F64. */
void sim_blend(sim_type type, void *base, int64_t offset, int64_t n, int64_t stride, double alpha, const double *value,
               double beta);
/* What the tensor cores keep of a float32: 10 bits of its mantissa. */
double sim_to_tf32(double value);

/* c(m, n) += a(m, k) b(k, n): element (i, p) of a is a[i * ai + p * ap], of b (p, j) b[p * bp + j * bj]; c is packed. */
void sim_product(int64_t m, int64_t n, int64_t k, const double *a, int64_t ai, int64_t ap, const double *b, int64_t bp,
                 int64_t bj, double *c);

/* Host memory of a running piece of work: never NULL. */
void *sim_scratch(size_t count, size_t size);

/* ---- a call's memory ---- */

typedef struct sim_ranges {
  sim_range range[16];
  int count;
  bool overlap; /* something that is written lies over something else: */
  sim_range one, other;
} sim_ranges;

/* Adds bytes at p. Two reads may share memory; a write must lie apart from all else unless it is the same range (in
 * place): what the real library does then is undefined, so it is a fault here. */
void sim_ranges_add(sim_ranges *r, const void *p, size_t bytes, int writes);
/* Says so, if that is the case. */
bool sim_ranges_overlap(const sim_ranges *r, const char *function);

/* ---- seeds ---- */

/* A number that follows from TLUA_SIM_SEED and the salt: orders that the real libraries leave open. */
uint64_t sim_library_seed(uint64_t salt);
/* Fills order with a permutation of 0..n-1 that follows from the seed. */
void sim_library_shuffle(int *order, int n, uint64_t salt);

/* ---- objects: handles and descriptors ---- */

/* Zeroed; the first 8 bytes hold the kind's mark. NULL: no memory. Freed ones stay mapped for a while, unmarked, so that
 * a use after destruction is refused. */
void *sim_object_create(uint64_t mark, size_t bytes);
bool sim_object_is(const void *object, uint64_t mark);
void sim_object_destroy(void *object);
/* For the leak report: says how many are alive, and returns it. */
int sim_report_objects(void);

/* ---- refusals ---- */

/* Keeps the sentence for cudnnGetLastErrorString and prints it under TLUA_SIM_LOG=1. Returns status. */
int sim_refuse(const char *function, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
const char *sim_last_refusal(void);

#endif
