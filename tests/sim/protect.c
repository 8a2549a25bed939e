/* protect.c: page protection: host code that touches device memory, or host memory that a pending copy still needs, is
 * stopped by the processor and told what it did.
 *
 * Arenas are closed (PROT_NONE) while host code runs. While an item runs, the arenas of its device, of that device's
 * peers and of its known operands are open; another one it touches is the wrong device's. A pinned source is read-only
 * until its copy has run, a pinned destination is closed. Other memory in the same pages stays usable: what it touches
 * first opens the page and leaves a checksum of the source to be compared when the copy runs. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "runtime.h"

typedef struct pending {
  const sim_item *item;
  char *base;
  size_t bytes;
  bool writes;  /* the copy writes it: nobody may look */
  bool opened;  /* its pages had to be opened */
  uint64_t sum; /* of a source, then */
} pending;

enum { HANDLER_STACK = 1 << 17 };

static unsigned open_devices;
static pending *list;
static int count, room;
static struct sigaction before;

/* ---- arenas ---- */

void sim_open(unsigned devices) {
  if (devices == open_devices) return;
  for (int i = 0; i < SIM_MAX_DEVICES; i++) {
    unsigned bit = 1u << i;
    if ((devices & bit) == (open_devices & bit)) continue;
    size_t extent;
    char *base = sim_arena(i, &extent);
    if (extent > 0) mprotect(base, extent, (devices & bit) != 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
  open_devices = devices;
}

void sim_open_also(unsigned devices) { sim_open(open_devices | devices); }
void sim_close(int device) { sim_open(open_devices & ~(1u << device)); }

/* ---- pinned memory ---- */

static char *page_of(const char *p) { return (char *)((uintptr_t)p / 4096 * 4096); }
static char *page_end(const char *p) { return page_of(p + 4095); }

/* The protection that the pending copies want for the pages of a range. Most often all have the same. */
static void protect(const char *base, size_t bytes) {
  char *from = page_of(base), *to = page_end(base + bytes), *page = from;
  int last = -1;
  for (char *at = from; at < to; at += 4096) {
    int wanted = PROT_READ | PROT_WRITE;
    for (int i = 0; i < count; i++) {
      const pending *p = &list[i];
      if (p->opened || page_end(p->base + p->bytes) <= at || page_of(p->base) > at) continue;
      wanted &= p->writes ? PROT_NONE : PROT_READ;
    }
    if (last >= 0 && wanted != last) {
      mprotect(page, (size_t)(at - page), last);
      page = at;
    }
    last = wanted;
  }
  if (last >= 0) mprotect(page, (size_t)(to - page), last);
}

static uint64_t checksum(const char *p, size_t bytes) {
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < bytes; i++) h = (h ^ (unsigned char)p[i]) * 0x100000001b3u;
  return h;
}

void sim_pend(const sim_item *item) {
  for (int i = 0; i < item->work.ranges; i++) {
    sim_range *r = &item->work.range[i];
    if (r->bytes == 0 || !sim_pinned_of(r->base, NULL, NULL)) continue;
    if (count == room) {
      room = room == 0 ? 16 : 2 * room;
      list = sim_checked(realloc(list, sizeof *list * (size_t)room));
    }
    list[count++] = (pending){.item = item, .base = (char *)r->base, .bytes = r->bytes, .writes = r->writes != 0};
    protect(r->base, r->bytes);
  }
}

void sim_unpend(const sim_item *item) {
  for (int i = 0; i < count; i++) {
    if (list[i].item != item) continue;
    pending p = list[i];
    list[i--] = list[--count];
    mprotect(page_of(p.base), (size_t)(page_end(p.base + p.bytes) - page_of(p.base)), PROT_READ | PROT_WRITE);
    if (p.opened && !p.writes && checksum(p.base, p.bytes) != p.sum)
      sim_fault("pinned-source", "%s: its pinned source of %zu bytes at %p was changed before the copy ran",
                item->work.name, p.bytes, (void *)p.base);
  }
}

void sim_close_pinned(const sim_item *item) {
  for (int i = 0; count > 0 && i < item->work.ranges; i++) {
    const sim_range *r = &item->work.range[i];
    if (r->bytes > 0 && sim_pinned_of(r->base, NULL, NULL)) protect(r->base, r->bytes);
  }
}

/* Returns whether the access may go on. */
static bool pinned_fault(char *at, bool writes) {
  bool known = false;
  for (int i = 0; i < count; i++) {
    pending *p = &list[i];
    if (p->opened || at < page_of(p->base) || at >= page_end(p->base + p->bytes)) continue;
    if (at >= p->base && at < p->base + p->bytes && (p->writes || writes)) {
      sim_fault(p->writes ? "pinned-destination" : "pinned-source",
                "host code %s byte %td of the %zu pinned bytes at %p before %s, which %s them, has run",
                writes ? "writes" : "reads", at - p->base, p->bytes, (void *)p->base, p->item->work.name,
                p->writes ? "writes" : "reads");
      _exit(66);
    }
    known = true;
    mprotect(page_of(p->base), (size_t)(page_end(p->base + p->bytes) - page_of(p->base)), PROT_READ | PROT_WRITE);
    p->opened = true;
    if (!p->writes) p->sum = checksum(p->base, p->bytes);
  }
  return known;
}

/* ---- the fault handler ---- */

static void device_fault(const char *at, bool writes) {
  int device = sim_device_of(at);
  const char *verb = writes ? "writes" : "reads";
  const void *base = NULL;
  size_t bytes = 0;
  char what[128];
  if (sim_allocation_of(at, &base, &bytes))
    snprintf(what, sizeof what, "byte %td of the %zu bytes allocated at %p", at - (const char *)base, bytes, base);
  else snprintf(what, sizeof what, "where nothing is allocated");
  const sim_item *item = sim_running();
  if (item != NULL && device == item->work.device)
    sim_fault("out-of-bounds", "%s on device %d %s %p, %s", item->work.name, device, verb, (const void *)at, what);
  else if (item != NULL)
    sim_fault("wrong-device", "%s on device %d %s %p of device %d, %s", item->work.name, item->work.device, verb,
              (const void *)at, device, what);
  else
    sim_fault("host-dereference", "host code %s %p, which is memory of device %d, %s", verb, (const void *)at, device,
              what);
  _exit(66);
}

static void on_fault(int signal_number, siginfo_t *info, void *context) {
  ucontext_t *c = context;
  bool writes = (c->uc_mcontext.gregs[REG_ERR] & 2) != 0;
  char *at = info->si_addr;
  if (sim_device_of(at) >= 0) device_fault(at, writes);
  const sim_item *item = sim_running();
  if (item == NULL) {
    sim_lock();
    bool go_on = pinned_fault(at, writes);
    sim_unlock();
    if (go_on) return;
  } else {
    char text[256];
    if (sim_explain_address(at, text, sizeof text))
      sim_fault("out-of-bounds", "%s on device %d %s %p: %s", item->work.name, item->work.device,
                writes ? "writes" : "reads", (void *)at, text);
    else
      sim_fault("illegal-address", "%s on device %d %s %p, which is nobody's memory", item->work.name,
                item->work.device, writes ? "writes" : "reads", (void *)at);
    _exit(66);
  }
  /* not ours: whoever was there before, or the process dies of it when the instruction is tried again */
  if ((before.sa_flags & SA_SIGINFO) != 0) before.sa_sigaction(signal_number, info, context);
  else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) before.sa_handler(signal_number);
  else signal(SIGSEGV, SIG_DFL);
}

void sim_protect_start(void) {
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &before);
}

void sim_protect_thread(void) {
  stack_t stack;
  if (sigaltstack(NULL, &stack) != 0 || (stack.ss_flags & SS_DISABLE) == 0) return;
  void *p = mmap(NULL, HANDLER_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p != MAP_FAILED) sigaltstack(&(stack_t){.ss_sp = p, .ss_size = HANDLER_STACK}, NULL);
}

/* ---- peers ---- */

static unsigned peers[SIM_MAX_DEVICES]; /* a bit for each device whose memory this one may touch */

unsigned sim_peers(int device) { return 1u << device | peers[device]; }

static cudaError_t can_access(int *can, int device, int peer) {
  cudaError_t e = sim_check_device(device);
  if (e == cudaSuccess) e = sim_check_device(peer);
  *can = e == cudaSuccess && device != peer;
  return e;
}

cudaError_t CUDARTAPI cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  SIM_API(cudaErrorUnknown, can_access(can, device, peer));
}

static cudaError_t change_access(int peer, unsigned flags, bool enable) {
  int device = sim_current_device();
  cudaError_t e = sim_check_device(peer);
  if (e != cudaSuccess) return e;
  if (flags != 0 || peer == device)
    return sim_error(cudaErrorInvalidValue, "peer access of device %d to %d", device, peer);
  bool enabled = (peers[device] >> peer & 1) != 0;
  if (enabled == enable) return enable ? cudaErrorPeerAccessAlreadyEnabled : cudaErrorPeerAccessNotEnabled;
  peers[device] ^= 1u << peer;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  SIM_API(cudaErrorUnknown, change_access(peer, flags, true));
}

cudaError_t CUDARTAPI cudaDeviceDisablePeerAccess(int peer) {
  SIM_API(cudaErrorUnknown, change_access(peer, 0, false));
}
