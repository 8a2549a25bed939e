/* error.h: how engine code fails. See tlua.h for the contract of tl_last_error(). */
#ifndef TL_CORE_ERROR_H
#define TL_CORE_ERROR_H

#include <stdarg.h>

#include "tlua.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Thread-local variables on hot paths: found without a function call. They must stay few: a program that opens the
 * library with dlopen has about a kilobyte for all of them. */
#define TL_HOT_THREAD_LOCAL __attribute__((tls_model("initial-exec"))) _Thread_local

/* Records the failure and returns its code. `op` must be a string that lives for ever. */
tl_status tl_fail(int code, const char *op, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
tl_status tl_vfail(int code, const char *op, const char *file, int line, const char *format, va_list args)
    __attribute__((format(printf, 5, 0)));

#define TL_FAIL(code, op, ...) tl_fail((code), (op), __FILE__, __LINE__, __VA_ARGS__)

/* Passes a failure on. */
#define TL_TRY(call)                              \
  do {                                            \
    tl_status try_status_ = (call);               \
    if (try_status_ != TL_OK) return try_status_; \
  } while (0)

/* A 0-based position (dim or index) as the user of this thread counts: for messages. Negatives stay. */
int64_t tl_position(int64_t i);

/* This thread's texts go back to the system (part of tl_thread_exit). */
void tl_error_thread_exit(void);

extern volatile int tl_interrupt_flag;
tl_status tl_interrupted(const char *op); /* clears the flag, fails with TL_ERR_INTERRUPT */

/* Every operation tests the interrupt flag once, before it does anything. */
#define TL_CHECK_INTERRUPT(op)                                             \
  do {                                                                     \
    if (__builtin_expect(tl_interrupt_flag, 0)) return tl_interrupted(op); \
  } while (0)

/* "(2x3)" of a shape, "()" of a scalar, in `buffer`; returns buffer. */
#define TL_SHAPE_CHARS 192
const char *tl_shape_text(int ndim, const int64_t *shape, char buffer[TL_SHAPE_CHARS]);
/* The same for a tensor, in a rotating per-thread buffer (8 of them): for message arguments only. */
const char *tl_shape_of(const tl_tensor *t);

#ifdef __cplusplus
}
#endif
#endif
