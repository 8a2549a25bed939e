/* race.c: happens-before, and accesses to memory that nothing orders.
 *
 * Copies, fills and library calls say what they read and write. Every allocation remembers the last of them; a new one
 * that overlaps an older one, where either writes, must come after it in stream order, through an event, or because the
 * host waited in between. Kernels' accesses are known in the checker build only (shadow.cpp), by the same clocks. */
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

enum { MOST_ACCESSES = 48 };

static uint32_t ticks[SIM_LANES]; /* the last one given out */
static int users[SIM_LANES];
static uint32_t host[SIM_LANES];

int sim_lane_open(void) {
  int best = 0;
  for (int i = 1; i < SIM_LANES; i++)
    if (users[i] < users[best]) best = i;
  users[best]++;
  return best;
}

void sim_lane_close(int lane) { users[lane]--; }

static void join(uint32_t *to, const uint32_t *from) {
  for (int i = 0; i < SIM_LANES; i++)
    if (from[i] > to[i]) to[i] = from[i];
}

void sim_clock_start(sim_item *item) {
  memcpy(item->clock, host, sizeof host);
  item->clock[item->work.lane] = ++ticks[item->work.lane];
}

void sim_clock_join(sim_item *item, const sim_item *before) { join(item->clock, before->clock); }
void sim_host_saw(const sim_item *item) { join(host, item->clock); }

void sim_host_wait(sim_item *item) {
  if (item == NULL) return;
  sim_keep(item);
  sim_wait(item);
  sim_host_saw(item);
  sim_drop(item);
}

sim_moment sim_now(void) {
  const sim_item *item = sim_running();
  if (item == NULL) return (sim_moment){0, 0};
  return (sim_moment){(uint32_t)item->work.lane, item->clock[item->work.lane]};
}

int sim_comes_after(sim_moment before) {
  const sim_item *item = sim_running();
  return item == NULL || before.tick <= item->clock[before.lane];
}

typedef struct access {
  size_t from, to;
  const char *name;
  uint32_t lane, tick;
  bool writes;
} access;

struct sim_history {
  int count;
  access list[MOST_ACCESSES];
};

void sim_history_free(sim_history *history) { free(history); }

void sim_touch(sim_history **where, const sim_item *item, size_t from, size_t to, bool writes) {
  if (*where == NULL) *where = sim_checked(calloc(1, sizeof **where));
  sim_history *h = *where;
  access new = {from, to, item->work.name, (uint32_t)item->work.lane, item->clock[item->work.lane], writes};
  int kept = 0;
  for (int i = 0; i < h->count; i++) {
    access old = h->list[i];
    bool overlaps = old.from < to && from < old.to;
    if (overlaps && (old.writes || writes) && old.tick > item->clock[old.lane]) {
      sim_fault("stream-race", "%s %s what %s of another stream %s: nothing orders the two (cudaStreamWaitEvent)",
                new.name, writes ? "writes" : "reads", old.name, old.writes ? "writes" : "reads");
      return;
    }
    bool covered = from <= old.from && old.to <= to && (writes || (!old.writes && old.lane == new.lane));
    if (!covered) h->list[kept++] = old;
  }
  if (kept == MOST_ACCESSES) memmove(h->list, h->list + 1, sizeof *h->list * (size_t)--kept);
  h->list[kept++] = new;
  h->count = kept;
}
