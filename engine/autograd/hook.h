/* hook.h: lists of host-numbered hooks (the host runs them; the tape only keeps their numbers). */
#ifndef TL_AUTOGRAD_HOOK_H
#define TL_AUTOGRAD_HOOK_H

#include "autograd/tape.h"

tl_status tl_hooks_add(struct tl_hook **list, int id, int slot,
                       tl_tensor *keeper); /* at the end: hooks run in the order they were added */
bool tl_hooks_remove(struct tl_hook **list, int id);
void tl_hooks_forget(struct tl_hook **list, const tl_tensor *keeper);
void tl_hooks_free(struct tl_hook **list); /* the host learns the numbers from tl_function_dead() */
void tl_host_number_dead(int id);          /* function.c: queues a number for tl_function_dead() */

#endif
