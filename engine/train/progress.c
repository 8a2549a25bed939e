/* progress.c: an optimizer's counts in a device's memory: steps taken, options, coefficients.
 *
 * The device counts, because it alone knows whether a gradient scaler skips a step, and because a recorded step goes on
 * counting with each replay. The host's numbers in the slots are refreshed when somebody asks. What goes to the device is
 * compared with what it has: a usual step sends nothing. */
#include "train/progress.h"

#include <string.h>

#include "backend/backend.h"
#include "core/memory.h"
#include "step.h"
#include "train/graph.h"

struct tl_counts {
  tl_counts *next;
  tl_device device;
  tl_tensor *memory;      /* on the device: the four arrays below, in this order */
  tl_progress *progress;  /* [slots] the host's copies of the first, third and fourth */
  int32_t *group;         /* [slots] */
  tl_param_group *groups; /* [groups] */
  size_t by_at, group_at, groups_at, bytes;
  bool sent;     /* group and groups were */
  bool ahead;    /* the device may have counted since the last pull */
  bool recorded; /* a recorded step counts: it always may */
  bool changed;  /* slots have numbers that the device does not */
};

bool tl_counts_itself(const tl_tensor *p) {
  return p->device != TL_CPU && tl_backend_of(p->device)->kernels->plan != NULL;
}

static bool recording(tl_device device) {
  const tl_accelerator *a = tl_backend_of(device)->accelerator;
  return a != NULL && a->recording();
}

/* ---- the memory ---- */

static void drop(tl_counts *c) {
  tl_tensor_free(c->memory);
  tl_host_free(c->progress);
  tl_host_free(c->group);
  tl_host_free(c->groups);
  tl_host_free(c);
}

void tl_counts_free(tl_optimizer *o) {
  while (o->counts != NULL) {
    tl_counts *c = o->counts;
    o->counts = c->next;
    drop(c);
  }
}

static tl_status make(const tl_optimizer *o, tl_device device, tl_counts **out) {
  size_t slots = (size_t)o->slot_count, groups = (size_t)o->group_count;
  tl_counts *c = tl_host_calloc(1, sizeof *c);
  if (c == NULL) return TL_FAIL(TL_ERR_MEMORY, tl_optimizer_name(o->kind), "no memory for an optimizer's counts");
  c->device = device;
  c->changed = true;
  c->by_at = slots * sizeof *c->progress;
  c->groups_at = c->by_at + slots * sizeof(tl_update_coefficients);
  c->group_at = c->groups_at + groups * sizeof *c->groups;
  c->bytes = c->group_at + slots * sizeof *c->group;
  c->progress = tl_host_calloc(slots, sizeof *c->progress);
  c->group = tl_host_calloc(slots, sizeof *c->group);
  c->groups = tl_host_calloc(groups, sizeof *c->groups);
  tl_status st = c->progress == NULL || c->group == NULL || c->groups == NULL
                     ? TL_FAIL(TL_ERR_MEMORY, tl_optimizer_name(o->kind), "no memory for an optimizer's counts")
                     : tl_empty(1, (const int64_t[]){(int64_t)c->bytes}, TL_UINT8, device, &c->memory);
  if (st == TL_OK) *out = c;
  else drop(c);
  return st;
}

tl_status tl_counts_on(tl_optimizer *o, tl_device device, tl_counts **out) {
  for (tl_counts *c = o->counts; c != NULL; c = c->next)
    if (c->device == device) {
      *out = c;
      return TL_OK;
    }
  tl_counts *c = NULL;
  TL_TRY(make(o, device, &c));
  c->next = o->counts;
  *out = o->counts = c;
  return TL_OK;
}

static void *at(const tl_counts *c, size_t offset) { return (char *)tl_data(c->memory) + offset; }

const tl_update_coefficients *tl_counts_by(const tl_counts *c, int i) {
  return (const tl_update_coefficients *)at(c, c->by_at) + i;
}

static tl_status send(const tl_optimizer *o, const tl_counts *c, size_t offset, const void *from, size_t bytes) {
  if (recording(c->device))
    return TL_FAIL(
        TL_ERR_STATE, tl_optimizer_name(o->kind),
        "the recorded step has to be like the one before it: the same optimizer, which has stepped before, and "
        "gradients of the same parameters");
  return tl_backend_of(c->device)->copy_in(c->device & 255, at(c, offset), from, bytes);
}

/* ---- what the device has counted ---- */

static tl_status pull(const tl_optimizer *o, tl_counts *c) {
  if (!c->ahead && !c->recorded) return TL_OK;
  const tl_backend *b = tl_backend_of(c->device);
  TL_TRY(b->copy_out(c->device & 255, c->progress, at(c, 0), (size_t)o->slot_count * sizeof *c->progress));
  for (int i = 0; i < o->slot_count; i++) {
    tl_slot *s = &o->slots[i];
    if (s->counted_on != c->device) continue;
    s->step = (int64_t)c->progress[i].step;
    s->mu_product = c->progress[i].mu_product;
    s->primed = c->progress[i].primed != 0;
  }
  c->ahead = false;
  return TL_OK;
}

tl_status tl_counts_pull(const tl_optimizer *o) {
  for (tl_counts *c = o->counts; c != NULL; c = c->next)
    if (!c->changed) TL_TRY(pull(o, c));
  return TL_OK;
}

void tl_counts_changed(const tl_optimizer *o) {
  for (tl_counts *c = o->counts; c != NULL; c = c->next) c->changed = true;
}

/* ---- the plan of a step ---- */

static tl_status send_progress(const tl_optimizer *o, tl_counts *c) {
  for (int i = 0; i < o->slot_count; i++) {
    const tl_slot *s = &o->slots[i];
    c->progress[i] = (tl_progress){.step = (double)s->step, .mu_product = s->mu_product, .primed = s->primed};
  }
  TL_TRY(send(o, c, 0, c->progress, (size_t)o->slot_count * sizeof *c->progress));
  c->changed = false;
  return TL_OK;
}

static tl_status send_options(const tl_optimizer *o, tl_counts *c) {
  bool same = c->sent;
  for (int k = 0; k < o->group_count; k++) {
    if (memcmp(&c->groups[k], &o->groups[k]->options, sizeof *c->groups) == 0) continue;
    memcpy(&c->groups[k], &o->groups[k]->options, sizeof *c->groups);
    same = false;
  }
  if (same) return TL_OK;
  c->sent = false;
  TL_TRY(send(o, c, c->groups_at, c->groups, (size_t)o->group_count * sizeof *c->groups));
  c->sent = true;
  return TL_OK;
}

/* Which slots take part, and with which group's options. */
static tl_status send_members(const tl_optimizer *o, tl_counts *c, int n, const int *slots) {
  bool same = c->sent;
  int next = 0;
  for (int k = 0; k < o->group_count; k++)
    for (int i = o->groups[k]->first; i < o->groups[k]->first + o->groups[k]->count; i++) {
      bool member = next < n && slots[next] == i;
      int32_t group = member ? k : -1;
      same = same && c->group[i] == group;
      c->group[i] = group;
      next += member;
    }
  return same ? TL_OK : send(o, c, c->group_at, c->group, (size_t)o->slot_count * sizeof *c->group);
}

tl_status tl_counts_plan(tl_optimizer *o, tl_counts *c, int n, const int *slots, const float *found) {
  bool moved = false;
  for (int i = 0; i < n; i++) moved = moved || o->slots[slots[i]].counted_on != c->device;
  if (moved || c->changed) {
    TL_TRY(tl_counts_pull(o));
    for (int i = 0; i < n; i++) o->slots[slots[i]].counted_on = c->device;
    TL_TRY(send_progress(o, c));
  }
  TL_TRY(send_members(o, c, n, slots));
  if (recording(c->device)) { /* changed options go there before each replay */
    c->recorded = true;
    TL_TRY(tl_graph_note(o));
  } else {
    TL_TRY(send_options(o, c));
  }
  const tl_plan plan = {
      .kind = o->kind,
      .n = o->slot_count,
      .groups = at(c, c->groups_at),
      .group = at(c, c->group_at),
      .progress = at(c, 0),
      .by = at(c, c->by_at),
      .found = found,
  };
  c->ahead = true;
  return tl_kernels_of(c->memory)->plan(&plan);
}

tl_status tl_counts_refresh(tl_optimizer *o) {
  for (tl_counts *c = o->counts; c != NULL; c = c->next) {
    if (c->changed) TL_TRY(send_progress(o, c));
    TL_TRY(send_options(o, c));
  }
  return TL_OK;
}
