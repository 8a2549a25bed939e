/* hook.c: registering hooks on gradients. */
#include "autograd/hook.h"

#include "autograd/watch.h"
#include "core/memory.h"

tl_status tl_hooks_add(struct tl_hook **list, int id, int slot, tl_tensor *keeper) {
  struct tl_hook *h = tl_small_alloc(sizeof *h);
  if (h == NULL) return TL_FAIL(TL_ERR_MEMORY, "register_hook", "no memory for a hook");
  *h = (struct tl_hook){NULL, id, slot, keeper, NULL};
  while (*list != NULL) list = &(*list)->next;
  *list = h;
  return TL_OK;
}

bool tl_hooks_remove(struct tl_hook **list, int id) {
  for (; *list != NULL; list = &(*list)->next)
    if ((*list)->id == id) {
      struct tl_hook *h = *list;
      *list = h->next;
      tl_small_free(h, sizeof *h);
      return true;
    }
  return false;
}

void tl_hooks_forget(struct tl_hook **list, const tl_tensor *keeper) {
  while (*list != NULL) {
    struct tl_hook *h = *list;
    if (h->keeper == keeper) {
      *list = h->next;
      tl_small_free(h, sizeof *h);
    } else {
      list = &h->next;
    }
  }
}

void tl_hooks_free(struct tl_hook **list) {
  while (*list != NULL) {
    struct tl_hook *h = *list;
    *list = h->next;
    if (h->id >= 0) tl_host_number_dead(h->id);
    tl_small_free(h, sizeof *h);
  }
}

void tl_history_drop(tl_tensor *t) {
  tl_hooks_free(&t->hooks);
  if (t->node == NULL) return;
  if (t->retains_grad) tl_hooks_forget(&t->node->hooks, t);
  tl_node_drop(t->node);
}

tl_status tl_register_hook(tl_tensor *t, int id) {
  if (!t->requires_grad) return TL_FAIL(TL_ERR_STATE, "register_hook", "the tensor does not require gradients");
  return t->node != NULL ? tl_hooks_add(&t->node->hooks, id, t->slot, NULL) : tl_hooks_add(&t->hooks, id, 0, NULL);
}

tl_status tl_retain_grad(tl_tensor *t) {
  if (!t->requires_grad) return TL_FAIL(TL_ERR_STATE, "retain_grad", "the tensor does not require gradients");
  if (t->node == NULL || t->retains_grad) return TL_OK;
  TL_TRY(tl_hooks_add(&t->node->hooks, TL_HOOK_RETAIN_GRAD, t->slot, t));
  t->retains_grad = true;
  return TL_OK;
}

tl_status tl_remove_hook(tl_tensor *t, int id) {
  if (!tl_hooks_remove(&t->hooks, id) && t->node != NULL) tl_hooks_remove(&t->node->hooks, id);
  return TL_OK;
}

/* ---- watches ---- */

tl_status tl_watch_leaf(tl_tensor *leaf, tl_watch *w, int index) {
  TL_TRY(tl_hooks_add(&leaf->hooks, TL_HOOK_WATCH, index, NULL));
  struct tl_hook *h = leaf->hooks;
  while (h->next != NULL) h = h->next;
  h->watch = w;
  return TL_OK;
}

void tl_unwatch_leaf(tl_tensor *leaf, const tl_watch *w) {
  for (struct tl_hook **at = &leaf->hooks; *at != NULL;) {
    struct tl_hook *h = *at;
    if (h->watch == w) {
      *at = h->next;
      tl_small_free(h, sizeof *h);
    } else {
      at = &h->next;
    }
  }
}
