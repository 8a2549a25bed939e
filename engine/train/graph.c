/* graph.c: recorded steps: what the host has to do so that a replay is the step made anew: the default generator moves on,
 * optimizers' changed options reach the device. The recording itself is the backend's. */
#include "train/graph.h"

#include "backend/device.h"
#include "core/memory.h"
#include "core/random.h"
#include "train/progress.h"

/* An optimizer that steps in the recording. */
typedef struct member {
  struct member *next;
  tl_optimizer *optimizer; /* held */
  int slots, groups, steps;
  int rule[]; /* [groups] what was recorded */
} member;

struct tl_graph {
  const tl_accelerator *on;
  tl_device device;
  void *native;
  double seed, offset; /* the default generator's when it was recorded */
  double numbers;      /* how many the step takes */
  member *members;
};

static _Thread_local tl_graph *recording;

/* The kind of update that a group's options ask for. */
static int rule_of(const tl_optimizer *o, int group) {
  unsigned states;
  const tl_param_group *g = &o->groups[group]->options;
  return tl_group_rule(o->kind, g, &states) * 2 + g->stochastic_rounding;
}

tl_status tl_graph_note(tl_optimizer *o) {
  if (recording == NULL) return TL_OK;
  for (member *m = recording->members; m != NULL; m = m->next)
    if (m->optimizer == o) {
      m->steps++;
      return TL_OK;
    }
  member *m = tl_host_alloc(sizeof *m + (size_t)o->group_count * sizeof m->rule[0]);
  if (m == NULL) return TL_FAIL(TL_ERR_MEMORY, "graph", "no memory for a recorded step");
  o->refs++;
  *m = (member){
      .next = recording->members, .optimizer = o, .slots = o->slot_count, .groups = o->group_count, .steps = 1};
  for (int k = 0; k < m->groups; k++) m->rule[k] = rule_of(o, k);
  recording->members = m;
  return TL_OK;
}

void tl_graph_free(tl_graph *g) {
  if (g == NULL) return;
  if (g->native != NULL) g->on->graph_free(g->native);
  while (g->members != NULL) {
    member *m = g->members;
    g->members = m->next;
    tl_optimizer_free(m->optimizer);
    tl_host_free(m);
  }
  tl_host_free(g);
}

tl_status tl_graph_begin(tl_device device, tl_graph **out) {
  const tl_accelerator *a = NULL;
  TL_TRY(tl_accelerator_of("graph", device, &a));
  if (recording != NULL) return TL_FAIL(TL_ERR_STATE, "graph", "a step is being recorded already");
  tl_graph *g = tl_host_calloc(1, sizeof *g);
  if (g == NULL) return TL_FAIL(TL_ERR_MEMORY, "graph", "no memory for a recorded step");
  g->on = a;
  g->device = device;
  tl_status st = tl_generator_state(NULL, &g->seed, &g->offset);
  if (st == TL_OK) st = a->graph_begin(device & 255, &g->native);
  if (st != TL_OK) {
    tl_graph_free(g);
    return st;
  }
  tl_other_generator_used = false;
  recording = g;
  *out = g;
  return TL_OK;
}

/* Nothing has run: the numbers are there again. */
static tl_status count_numbers(tl_graph *g) {
  double seed, offset;
  TL_TRY(tl_generator_state(NULL, &seed, &offset));
  g->numbers = offset - g->offset;
  TL_TRY(tl_generator_set_state(NULL, g->seed, g->offset));
  if (seed != g->seed) return TL_FAIL(TL_ERR_STATE, "graph", "the step seeds the generator: do that outside of it");
  if (tl_other_generator_used)
    return TL_FAIL(TL_ERR_STATE, "graph",
                   "the step takes random numbers of a generator of its own: only the default one goes on in replays");
  return TL_OK;
}

tl_status tl_graph_end(tl_graph **graph, bool keep) {
  tl_graph *g = *graph;
  recording = NULL;
  tl_status st = count_numbers(g);
  tl_status ended = g->on->graph_end(keep && st == TL_OK, &g->native);
  if (!keep) st = TL_OK;
  else if (st == TL_OK) st = ended;
  if (keep && st == TL_OK) return TL_OK;
  tl_graph_free(g);
  *graph = NULL;
  return st;
}

static tl_status refresh(const member *m) {
  const tl_optimizer *o = m->optimizer;
  bool same = o->slot_count == m->slots && o->group_count == m->groups;
  for (int k = 0; same && k < m->groups; k++) same = rule_of(o, k) == m->rule[k];
  if (!same)
    return TL_FAIL(
        TL_ERR_STATE, "graph",
        "%s has other groups or another kind of update than when the step was recorded (momentum from or to 0, "
        "nesterov, amsgrad, centered): record it anew",
        tl_optimizer_name(o->kind));
  return tl_counts_refresh(m->optimizer);
}

tl_status tl_graph_replay(tl_graph *g) {
  TL_CHECK_INTERRUPT("graph");
  double seed, offset;
  for (const member *m = g->members; m != NULL; m = m->next) TL_TRY(refresh(m));
  TL_TRY(tl_generator_state(NULL, &seed, &offset));
  bool random = g->numbers > 0;
  TL_TRY(g->on->graph_replay(g->native, random ? (uint64_t)seed ^ (uint64_t)g->seed : 0,
                             random ? (uint64_t)offset - (uint64_t)g->offset : 0));
  for (const member *m = g->members; m != NULL; m = m->next) m->optimizer->calls += m->steps;
  return random ? tl_generator_set_state(NULL, seed, offset + g->numbers) : TL_OK;
}
