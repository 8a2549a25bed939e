/* fiber.h: a stack that can be left and entered again; what CUDA threads run on when they have to wait.
 *
 * A switch saves the registers that a C call preserves and nothing else (swapcontext also saves the signal mask, which
 * costs a system call). Off x86-64 it is swapcontext. */
#ifndef TLUA_SIM_FIBER_H
#define TLUA_SIM_FIBER_H

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#define SIM_ASAN 1
#include <sanitizer/common_interface_defs.h>
#else
#define SIM_ASAN 0
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

struct sim_fiber {
#if defined(__x86_64__)
  void *sp;
#else
  ucontext_t context;
#endif
  char *stack; /* lowest address; 0 for the OS thread's own stack */
  size_t bytes;
  void (*body)(sim_fiber *);
  void *asan_stack;
  sim_fiber *next; /* in a list of free ones */
};

/* A new fiber's first entry calls body(f), which never returns. Also makes an abandoned fiber a new one. */
void sim_fiber_reset(sim_fiber *f, void (*body)(sim_fiber *));
void sim_fiber_switch(sim_fiber *from, sim_fiber *to);

#endif
