/* autocast.h: mixed precision at the entry of an operation (Micikevicius et al. 2018; PyTorch's op lists).
 *
 * An operation of one of the lists has one line at its top:
 *
 *   TL_AUTOCAST(TL_CAST_LOW, tl_mm(cast[0], cast[1], out), a, b);
 *
 * Inside an autocast block, when one of the tensors has a dtype that the list does not want, the operation is run again
 * on converted tensors (in the same order, NULLs stay NULL); else the line costs one test of a thread-local flag. */
#ifndef TL_OPS_AUTOCAST_H
#define TL_OPS_AUTOCAST_H

#include "core/tensor.h"

enum tl_cast {
  TL_CAST_LOW,    /* runs in the block's low precision type: matrix products, convolutions */
  TL_CAST_FULL,   /* needs float32's range: softmax, losses, norms, sums, exp, log, pow */
  TL_CAST_WIDEST, /* float32 unless all have one low precision type: operations that do not promote by themselves */
};

extern TL_HOT_THREAD_LOCAL bool tl_autocast_on; /* an enabled block is open for some device on this thread */

/* Should these tensors be converted? Not if one is float64 or lies on a device without an open block. */
bool tl_autocast_wants(enum tl_cast policy, int n, tl_tensor *const *in);
/* in[i] become converted tensors or further references; all are owned by the caller afterwards. */
tl_status tl_autocast_convert(enum tl_cast policy, int n, tl_tensor **in);

/* Nothing is converted until the former value goes back into tl_autocast_on: backward, and operations that are made of
 * others. */
static inline bool tl_autocast_pause(void) {
  bool former = tl_autocast_on;
  tl_autocast_on = false;
  return former;
}

#define TL_AUTOCAST(policy, again, ...)                           \
  do {                                                            \
    if (__builtin_expect(tl_autocast_on, 0)) {                    \
      tl_tensor *cast[] = {__VA_ARGS__};                          \
      const int n_ = (int)(sizeof cast / sizeof *cast);           \
      if (tl_autocast_wants(policy, n_, cast)) {                  \
        TL_TRY(tl_autocast_convert(policy, n_, cast));            \
        tl_status again_ = (again);                               \
        for (int i_ = 0; i_ < n_; i_++) tl_tensor_free(cast[i_]); \
        return again_;                                            \
      }                                                           \
    }                                                             \
  } while (0)

#endif
