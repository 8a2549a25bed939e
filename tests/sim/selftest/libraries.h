/* libraries.h: what the tests of the simulated libraries share: numbers, device memory, comparison. */
#ifndef TLUA_SIM_SELFTEST_LIBRARIES_H
#define TLUA_SIM_SELFTEST_LIBRARIES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "selftest.h"

/* An array on the host as float64, in the numbers of its type, and a copy on the device. */
typedef enum number { F32, F64, F16, BF16 } number;
typedef struct array {
  number type;
  size_t n;
  double *value;
  void *device;
} array;

static inline size_t number_size(number type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }

static inline void number_write(number type, void *base, size_t i, double value) {
  if (type == F64) ((double *)base)[i] = value;
  if (type == F32) ((float *)base)[i] = (float)value;
  if (type == F16) ((_Float16 *)base)[i] = (_Float16)(float)value;
  if (type == BF16) {
    float f = (float)value, low;
    uint32_t bits, kept;
    memcpy(&bits, &f, sizeof bits);
    kept = bits & 0xffff0000u;
    memcpy(&low, &kept, sizeof low);
    uint32_t rest = bits & 0xffff;
    if (f == f && (rest > 0x8000 || (rest == 0x8000 && (kept & 0x10000) != 0))) kept += 0x10000;
    ((uint16_t *)base)[i] = (uint16_t)(kept >> 16);
  }
}

static inline double number_read(number type, const void *base, size_t i) {
  if (type == F64) return ((const double *)base)[i];
  if (type == F32) return ((const float *)base)[i];
  if (type == F16) return (double)((const _Float16 *)base)[i];
  uint32_t bits = (uint32_t)((const uint16_t *)base)[i] << 16;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static inline void array_upload(array *a) {
  void *host = malloc(a->n * number_size(a->type));
  for (size_t i = 0; i < a->n; i++) {
    number_write(a->type, host, i, a->value[i]);
    a->value[i] = number_read(a->type, host, i);
  }
  SIM_OK(cudaMemcpy(a->device, host, a->n * number_size(a->type), cudaMemcpyHostToDevice));
  SIM_OK(cudaDeviceSynchronize()); /* or streams that do not block may run before the data are there */
  free(host);
}

/* Values in -1..1 that the type holds. */
static inline array array_random(number type, size_t n, uint32_t seed) {
  array a = {.type = type, .n = n, .value = calloc(n, sizeof(double))};
  for (size_t i = 0; i < n; i++) {
    seed = seed * 1664525u + 1013904223u;
    a.value[i] = (double)(seed >> 8) / (1 << 23) - 1;
  }
  SIM_OK(cudaMalloc(&a.device, n * number_size(type)));
  array_upload(&a);
  return a;
}

static inline array array_full(number type, size_t n, double value) {
  array a = array_random(type, n, 1);
  for (size_t i = 0; i < n; i++) a.value[i] = value;
  array_upload(&a);
  return a;
}

static inline void array_free(array *a) {
  SIM_OK(cudaFree(a->device));
  free(a->value);
}

/* The device's values equal the expected ones in a->value: to the last bits of the type. */
static inline void array_check(const array *a, const char *what) {
  void *host = malloc(a->n * number_size(a->type));
  SIM_OK(cudaDeviceSynchronize());
  SIM_OK(cudaMemcpy(host, a->device, a->n * number_size(a->type), cudaMemcpyDeviceToHost));
  double eps = a->type == F64 ? 1e-13 : a->type == F32 ? 2e-6 : a->type == F16 ? 1e-3 : 8e-3;
  for (size_t i = 0; i < a->n; i++) {
    double got = number_read(a->type, host, i), wanted = a->value[i];
    if (!(fabs(got - wanted) <= eps * (1 + fabs(wanted)))) {
      fprintf(stderr, "%s: element %zu is %.9g, not %.9g\n", what, i, got, wanted);
      exit(1);
    }
  }
  free(host);
}

#endif
