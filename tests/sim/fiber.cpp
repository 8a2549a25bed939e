/* fiber.cpp: switching stacks. */
#include "fiber.h"

#include <stdint.h>

static sim_fiber *entering; /* who is being switched to; only needed at a fiber's first entry */

#if SIM_ASAN
static void *left_bottom;
static size_t left_bytes;
static sim_fiber *left;
#endif

static void arrived(sim_fiber *self) {
#if SIM_ASAN
  const void *bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(self->asan_stack, &bottom, &bytes);
  if (left != nullptr && left->stack == nullptr) {
    left_bottom = const_cast<void *>(bottom);
    left_bytes = bytes;
  }
#else
  (void)self;
#endif
}

static void first_entry() {
  sim_fiber *self = entering;
  arrived(self);
  self->body(self);
  __builtin_unreachable();
}

#if defined(__x86_64__)

/* sim_swap(&from->sp, to->sp) */
extern "C" void sim_swap(void **from, void *to);
asm(R"(
  .text
  .globl sim_swap
  .hidden sim_swap
  .type sim_swap, @function
sim_swap:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size sim_swap, .-sim_swap
)");

void sim_fiber_reset(sim_fiber *f, void (*body)(sim_fiber *)) {
  f->body = body;
  f->asan_stack = nullptr;
  void **top = reinterpret_cast<void **>((reinterpret_cast<uintptr_t>(f->stack) + f->bytes) & ~(uintptr_t)15);
  *--top = nullptr; /* where a caller's return address would be: the stack is aligned as after a call */
  *--top = reinterpret_cast<void *>(first_entry);
  for (int i = 0; i < 6; i++) *--top = nullptr;
  f->sp = top;
}

static void swap(sim_fiber *from, sim_fiber *to) { sim_swap(&from->sp, to->sp); }

#else

void sim_fiber_reset(sim_fiber *f, void (*body)(sim_fiber *)) {
  f->body = body;
  f->asan_stack = nullptr;
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = f->stack;
  f->context.uc_stack.ss_size = f->bytes;
  f->context.uc_link = nullptr;
  makecontext(&f->context, first_entry, 0);
}

static void swap(sim_fiber *from, sim_fiber *to) { swapcontext(&from->context, &to->context); }

#endif

void sim_fiber_switch(sim_fiber *from, sim_fiber *to) {
  entering = to;
#if SIM_ASAN
  left = from;
  if (to->stack != nullptr) __sanitizer_start_switch_fiber(&from->asan_stack, to->stack, to->bytes);
  else __sanitizer_start_switch_fiber(&from->asan_stack, left_bottom, left_bytes);
#endif
  swap(from, to);
  arrived(from);
}
