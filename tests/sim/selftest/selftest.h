/* selftest.h: faults planted on purpose, to show that the simulator catches each, and clean twins that it must not blame.
 *
 * To add one, write in a file of this folder (C, or CUDA C++ for kernels):
 *
 *     SIM_FAULT(free_twice, "bad-free", "is no allocation") { ... }   must be reported as that kind, with that text
 *     SIM_CLEAN(free_once) { ... }                                    must run to its end without a word
 *
 * The checker build alone reports what SIM_CHECK_FAULT plants. A fourth argument of the _WITH forms sets environment
 * variables ("TLUA_SIM_FAIL=3 TLUA_SIM_DEVICES=2"). Each case runs in a process of its own that has not touched the
 * simulator before, once for each order of threads; it may use SIM_OK for calls that must succeed and SIM_EXPECT for
 * conditions. A planted fault ends the process inside sim_fault: what follows it in the case is reached only if the
 * simulator missed it, or, where the fault shows at exit, when main would return. */
#ifndef TLUA_SIM_SELFTEST_H
#define TLUA_SIM_SELFTEST_H

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sim_case {
  const char *name, *kind, *text; /* kind NULL: clean */
  const char *environment;
  void (*run)(void);
  struct sim_case *next;
} sim_case;
void sim_add_case(sim_case *c);

#ifdef __cplusplus
}
#endif

#define SIM_CASE_(name_, kind_, text_, environment_)                              \
  static void case_##name_(void);                                                 \
  __attribute__((constructor)) static void add_##name_(void) {                    \
    static sim_case c = {#name_, kind_, text_, environment_, case_##name_, NULL}; \
    sim_add_case(&c);                                                             \
  }                                                                               \
  static void case_##name_(void)
#define SIM_FAULT(name, kind, text) SIM_CASE_(name, kind, text, "")
#define SIM_FAULT_WITH(name, kind, text, environment) SIM_CASE_(name, kind, text, environment)
#define SIM_CLEAN(name) SIM_CASE_(name, NULL, "", "")
#define SIM_CLEAN_WITH(name, environment) SIM_CASE_(name, NULL, "", environment)
#ifdef SIM_CHECK
#define SIM_CHECK_FAULT(name, kind, text) SIM_CASE_(name, kind, text, "")
#define SIM_CHECK_FAULT_WITH(name, kind, text, environment) SIM_CASE_(name, kind, text, environment)
#else
#define SIM_CHECK_FAULT(name, kind, text) __attribute__((unused)) static void case_##name(void)
#define SIM_CHECK_FAULT_WITH(name, kind, text, environment) __attribute__((unused)) static void case_##name(void)
#endif

#define SIM_EXPECT(condition)                                                 \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)
#define SIM_OK(call) SIM_EXPECT((call) == cudaSuccess)

#endif
