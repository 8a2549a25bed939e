/* trace.h: what tape.c tells a running trace. */
#ifndef TL_AUTOGRAD_TRACE_H
#define TL_AUTOGRAD_TRACE_H

#include "core/tensor.h"

extern TL_HOT_THREAD_LOCAL tl_trace *tl_trace_running; /* of this thread, NULL when none is */

/* An operation was recorded: appends it to the running trace. What goes wrong is reported by tl_trace_end(). */
void tl_trace_note(const char *op, int inputs, tl_tensor *const *in, int outputs, tl_tensor *const *out);

#endif
