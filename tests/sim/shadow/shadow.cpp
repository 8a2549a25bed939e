/* shadow.cpp: the access checkers, in the checker build only. g++ -fsanitize=thread puts a call before every access of the
 * .cu files (without the library that belongs to it): the functions __tsan_* below are called instead.
 *
 * Every byte of device and shared memory has a cell that names the last write and the last read as events: who, where in
 * the source, after how many barriers. What an access meets in its cell shows
 *   out-of-bounds, use-after-free   no allocation is there
 *   uninitialised                   a read of what nothing wrote
 *   race                            another thread of the grid, no barrier between, one of the two writes, not both atomic
 *   stream-race                     earlier work of another stream that nothing orders
 *   misaligned, not-device          what the hardware would refuse
 * Events are numbered upwards, so that those of this grid, of this block, and of work that is surely over, are told
 * apart by number alone. */
#include "sim_device.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>

#include "device.h"

struct cell {
  uint32_t write; /* UNWRITTEN ..., or an event */
  uint32_t read;  /* an event, with flags; 0: not read since the write */
};

enum : uint32_t {
  UNWRITTEN = 0, /* not written since it was allocated, if it is: `live` knows */
  FREED = 1,
  NOTHING = 2, /* not allocated */
  OLD = 3,     /* written, before the events were numbered anew */
  FIRST = 16,
  MOST = 0x3f000000,
  ID = 0x3fffffff,
  SEVERAL = 0x40000000, /* of reads: other threads of the block since the last barrier, too */
  BLOCKS = 0x80000000,  /* of reads: threads of other blocks, too */
};

struct event {
  const void *pc;
  uint32_t block, barriers, warp_syncs;
  uint16_t thread;
  bool atomic;
};

/* Work whose events follow one another. */
struct stretch {
  uint32_t first;
  sim_moment moment;
  const char *name;
};

enum : size_t { CHUNK = (size_t)1 << 32, STRETCHES = 2048, EVENTS = MOST, TLS_MOST = 16 << 20, LARGE = 64 << 10 };
enum { WARP = 32, MAX_THREADS = 1024, CACHE = 16 };

static cell *chunks[1 << 15]; /* by bits 32..46 of an address */
static event *events;         /* by number since grid_first */
static uint32_t next_event = FIRST, grid_first = FIRST, block_first = FIRST;
static uint32_t floor_event; /* events below are ordered before the work that runs */
static stretch stretches[STRETCHES];
static unsigned stretch_count; /* ever */

static const sim_kernel *kernel;
static bool running; /* a grid, on this OS thread or another */
static uint32_t block_number, barriers, warp_clock[MAX_THREADS / WARP], warp_syncs[MAX_THREADS];
static int thread;
static struct {
  const void *pc;
  uint64_t stamp;
  uint32_t id;
  bool atomic;
} cache[CACHE];
static uint64_t stamp;

static const char *tls_start, *dynamic_start, *dynamic_room, *image_start, *image_end;
static size_t tls_bytes, dynamic_bytes;
static cell *tls_cells, *dynamic_cells;

static cell *map_cells(size_t count) {
  void *p =
      mmap(nullptr, count * sizeof(cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    fprintf(stderr, "tlua-sim: no address space for the checkers\n");
    abort();
  }
  return static_cast<cell *>(p);
}

/* ---- in words ---- */

/* "file:line" of an instruction's source, by addr2line. */
static const char *source_of(const void *pc, char *text, size_t bytes) {
  Dl_info info;
  snprintf(text, bytes, "%p", pc);
  if (pc == nullptr || dladdr(pc, &info) == 0) return text;
  uintptr_t at = reinterpret_cast<uintptr_t>(pc) - 1, base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  const ElfW(Ehdr) *head = static_cast<const ElfW(Ehdr) *>(info.dli_fbase);
  char command[4400], line[1024];
  snprintf(command, sizeof command, "addr2line -e '%s' -i 0x%zx 2>/dev/null", info.dli_fname,
           head->e_type == ET_EXEC ? at : at - base);
  FILE *pipe = popen(command, "r");
  if (pipe == nullptr) return text;
  while (fgets(line, sizeof line, pipe) != nullptr) {
    line[strcspn(line, " \n")] = '\0';
    const char *slash = strrchr(line, '/'), *name = slash == nullptr ? line : slash + 1;
    if (name[0] == '?' || strncmp(name, "sim_device.h", 12) == 0) continue; /* inlined: who called it */
    snprintf(text, bytes, "%.200s", name);
    break;
  }
  pclose(pipe);
  return text;
}

/* What is allocated: size by address. Large ranges that were freed lately: their cells are given back instead of marked. */
static std::map<const char *, size_t> live;
static struct {
  const char *base;
  size_t bytes;
} freed[256];
static unsigned freed_count;

/* The nearest allocation at or below. */
static std::map<const char *, size_t>::const_iterator below(const char *p) {
  auto next = live.upper_bound(p);
  return next == live.begin() ? live.end() : --next;
}

static bool is_live(const char *p) {
  auto near = below(p);
  return near != live.end() && p < near->first + near->second;
}

static bool was_freed(const char *p) {
  for (auto &f : freed)
    if (p >= f.base && p < f.base + f.bytes) return true;
  return false;
}

static const char *place_of(const char *p, char *text, size_t bytes) {
  auto near = below(p);
  if (p - tls_start >= 0 && (size_t)(p - tls_start) < tls_bytes) snprintf(text, bytes, "static shared memory");
  else if (p >= dynamic_start && p < dynamic_start + dynamic_bytes)
    snprintf(text, bytes, "byte %td of the %zu of dynamic shared memory", p - dynamic_start, dynamic_bytes);
  else if (is_live(p))
    snprintf(text, bytes, "byte %td of the %zu at %p", p - near->first, near->second,
             static_cast<const void *>(near->first));
  else snprintf(text, bytes, "address %p", static_cast<const void *>(p));
  return text;
}

/* An access is reported once for each kind and place in the source: where faults are only counted, a loop would repeat it. */
static bool reported(const char *kind, const void *pc) {
  static struct {
    const char *kind;
    const void *pc;
  } known[256];
  static int count;
  for (int i = 0; i < count; i++)
    if (known[i].kind == kind && known[i].pc == pc) return true;
  if (count < 256) {
    known[count].kind = kind;
    known[count++].pc = pc;
  }
  return false;
}

struct attempt {
  const char *address;
  unsigned bytes;
  bool writes, atomic;
  const void *pc;
};

static void say(const char *kind, const attempt *a, const char *more) {
  char source[256], place[128];
  if (reported(kind, a->pc)) return;
  sim_fault(kind, "%s of %u bytes at %s (%s)%s%s",
            a->atomic   ? "atomic"
            : a->writes ? "write"
                        : "read",
            a->bytes, source_of(a->pc, source, sizeof source), place_of(a->address, place, sizeof place),
            more[0] == '\0' ? "" : ": ", more);
}

/* ---- events ---- */

static uint32_t event_of(const attempt *a) {
  size_t slot = (reinterpret_cast<uintptr_t>(a->pc) >> 2) % CACHE;
  if (cache[slot].stamp == stamp && cache[slot].pc == a->pc && cache[slot].atomic == a->atomic) return cache[slot].id;
  if (next_event == MOST) {
    fprintf(stderr, "tlua-sim: kernel %s makes too many accesses for the checkers\n", kernel->name);
    abort();
  }
  uint32_t id = next_event++;
  events[id - grid_first] = event{a->pc, block_number, barriers, warp_syncs[thread], (uint16_t)thread, a->atomic};
  cache[slot].stamp = stamp;
  cache[slot].pc = a->pc;
  cache[slot].atomic = a->atomic;
  cache[slot].id = id;
  return id;
}

static bool unordered(const event *e) {
  if (e->block != block_number) return true;
  if (e->thread == thread || e->barriers < barriers) return false;
  return e->thread / WARP != thread / WARP || e->warp_syncs >= warp_syncs[thread];
}

static void report_race(const attempt *a, const event *e, bool wrote) {
  char source[256], more[512];
  if (reported("race", a->pc)) return;
  snprintf(more, sizeof more, "%s at %s by thread %u of block %u, and nothing orders the two",
           e->atomic ? "atomic"
           : wrote   ? "write"
                     : "read",
           source_of(e->pc, source, sizeof source), e->thread, e->block);
  char here[256], place[128];
  sim_fault("race", "%s of %u bytes at %s (%s) meets the %s",
            a->atomic   ? "atomic"
            : a->writes ? "write"
                        : "read",
            a->bytes, source_of(a->pc, here, sizeof here), place_of(a->address, place, sizeof place), more);
}

static const stretch *stretch_of(uint32_t id) {
  unsigned oldest = stretch_count > STRETCHES ? stretch_count - STRETCHES : 0;
  for (unsigned i = stretch_count; i-- > oldest;)
    if (stretches[i % STRETCHES].first <= id) return &stretches[i % STRETCHES];
  return nullptr;
}

/* ---- one byte ---- */

static void check(cell *c, const attempt *a, uint32_t id, bool shared) {
  uint32_t first = shared ? block_first : grid_first, w = c->write, r = c->read & ID;
  bool reads = a->atomic || !a->writes;
  if (shared) {
    if (w < first && reads) say("uninitialised", a, "no thread of the block has written it");
  } else {
    if (w == NOTHING || w == FREED || (w == UNWRITTEN && !is_live(a->address))) {
      bool gone = w == FREED || (w == UNWRITTEN && was_freed(a->address));
      char more[160];
      auto near = below(a->address);
      if (gone) snprintf(more, sizeof more, "it was freed");
      else if (near == live.end()) snprintf(more, sizeof more, "nothing is allocated there");
      else
        snprintf(more, sizeof more, "%td bytes behind the end of the %zu at %p",
                 a->address - near->first - (ptrdiff_t)near->second, near->second,
                 static_cast<const void *>(near->first));
      say(gone ? "use-after-free" : "out-of-bounds", a, more);
      return;
    }
    if (w == UNWRITTEN && reads) say("uninitialised", a, "nothing has written it since it was allocated");
    for (int i = 0; i < 2; i++) {
      uint32_t before = i == 0 ? w : r;
      if (before < FIRST || before < floor_event || before >= grid_first || (i == 1 && !a->writes)) continue;
      const stretch *s = stretch_of(before);
      if (s == nullptr || sim_comes_after(s->moment)) continue;
      char more[160];
      snprintf(more, sizeof more, "%s of another stream has %s it, and nothing orders the two", s->name,
               i == 0 ? "written" : "read");
      say("stream-race", a, more);
    }
  }
  if (w >= first) {
    const event *e = &events[w - grid_first];
    if (!(e->atomic && a->atomic) && unordered(e)) report_race(a, e, true);
  }
  if (a->writes) {
    if (r >= first) {
      const event *e = &events[r - grid_first];
      bool several = (c->read & SEVERAL) != 0 && e->block == block_number && e->barriers == barriers;
      if ((c->read & BLOCKS) != 0 || several || unordered(e)) report_race(a, e, false);
    }
    c->write = id;
    c->read = 0;
  } else if (r < first) {
    c->read = id;
  } else {
    const event *e = &events[r - grid_first];
    uint32_t flags = c->read & BLOCKS;
    if (e->block != block_number) flags |= BLOCKS;
    else if (e->thread != thread && e->barriers == barriers) flags |= SEVERAL;
    else if (e->barriers == barriers) flags |= c->read & SEVERAL;
    c->read = id | flags;
  }
}

/* ---- one access ---- */

/* Kernels' arguments lie in host memory here, as g++ packs them. */
static bool is_argument(const void *p) {
  const char *at = static_cast<const char *>(p), *arguments = static_cast<const char *>(kernel->arguments);
  return at >= arguments && at < arguments + 4096 + 64;
}

static void outside(const attempt *a) {
  const char *p = a->address;
  if (is_argument(p)) return;
  if (p >= image_start && p < image_end) return; /* constants; threadIdx and kin */
  if (sim_is_stack(p) || sim_pinned_of(p, nullptr, nullptr)) return;
  if (p >= dynamic_room && p < dynamic_start + dynamic_bytes + 4096) {
    char more[96];
    snprintf(more, sizeof more, "it is outside the block's %zu bytes of dynamic shared memory", dynamic_bytes);
    say("out-of-bounds", a, more);
    return;
  }
  unsigned char resident;
  uintptr_t page = reinterpret_cast<uintptr_t>(p) & ~(uintptr_t)4095;
  if (mincore(reinterpret_cast<void *>(page), 1, &resident) != 0) return; /* nothing there: the processor will say so */
  say("not-device", a, sim_device_of(p) >= 0 ? "nothing was ever allocated there" : "it is the host's memory");
}

/* Host code of the .cu files is watched, too, but only CUDA threads run on such a stack. */
static bool watched() { return running && sim_is_stack(__builtin_frame_address(0)); }

static void access(const void *p, unsigned bytes, bool writes, bool atomic, const void *pc) {
  if (!watched()) return;
  attempt a = {static_cast<const char *>(p), bytes, writes, atomic, pc};
  cell *c = chunks[reinterpret_cast<uintptr_t>(p) / CHUNK % (sizeof chunks / sizeof *chunks)];
  bool shared = c == nullptr;
  if (!shared) c += reinterpret_cast<uintptr_t>(p) % CHUNK;
  else if ((size_t)(a.address - tls_start) < tls_bytes) c = tls_cells + (a.address - tls_start);
  else if (a.address >= dynamic_start && a.address + bytes <= dynamic_start + dynamic_bytes)
    c = dynamic_cells + (a.address - dynamic_start);
  else return outside(&a);
  uint32_t id = event_of(&a);
  for (unsigned i = 0; i < bytes; i++, a.address++) check(c + i, &a, id, shared);
}

static void aligned(const void *p, unsigned bytes, const void *pc, bool writes) {
  if (!watched() || reinterpret_cast<uintptr_t>(p) % bytes == 0 || is_argument(p)) return;
  attempt a = {static_cast<const char *>(p), bytes, writes, false, pc};
  say("misaligned", &a, "the address is no multiple of the size");
}

void sim_check_atomic(const void *p, size_t bytes, const void *pc) { access(p, (unsigned)bytes, true, true, pc); }

#define PC __builtin_return_address(0)
#define HOOK(name, ...) extern "C" void __tsan_##name(__VA_ARGS__)
#define SIZED(n)                                                                                \
  HOOK(read##n, void *p) { aligned(p, n, PC, false), access(p, n, false, false, PC); }          \
  HOOK(write##n, void *p) { aligned(p, n, PC, true), access(p, n, true, false, PC); }           \
  HOOK(volatile_read##n, void *p) { aligned(p, n, PC, false), access(p, n, false, false, PC); } \
  HOOK(volatile_write##n, void *p) { aligned(p, n, PC, true), access(p, n, true, false, PC); }  \
  HOOK(unaligned_read##n, void *p) { access(p, n, false, false, PC); }                          \
  HOOK(unaligned_write##n, void *p) { access(p, n, true, false, PC); }                          \
  HOOK(unaligned_volatile_read##n, void *p) { access(p, n, false, false, PC); }                 \
  HOOK(unaligned_volatile_write##n, void *p) { access(p, n, true, false, PC); }
SIZED(1)
SIZED(2)
SIZED(4)
SIZED(8)
SIZED(16)
HOOK(read_range, void *p, size_t bytes) { access(p, (unsigned)bytes, false, false, PC); }
HOOK(write_range, void *p, size_t bytes) { access(p, (unsigned)bytes, true, false, PC); }
HOOK(vptr_update, void *, void *) {}
HOOK(init, void) {}

/* ---- what device.cpp tells ---- */

static int find_image(struct dl_phdr_info *info, size_t, void *) {
  uintptr_t here = reinterpret_cast<uintptr_t>(find_image), low = UINTPTR_MAX, high = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &info->dlpi_phdr[i];
    if (p->p_type != PT_LOAD) continue;
    uintptr_t start = info->dlpi_addr + p->p_vaddr;
    if (start < low) low = start;
    if (start + p->p_memsz > high) high = start + p->p_memsz;
  }
  if (here < low || here >= high) return 0;
  image_start = reinterpret_cast<const char *>(low);
  image_end = reinterpret_cast<const char *>(high);
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_TLS) {
      tls_start = static_cast<const char *>(info->dlpi_tls_data);
      tls_bytes = info->dlpi_phdr[i].p_memsz;
    }
  return 1;
}

/* The cells of a range, chunk by chunk. */
template <typename F> static void each_run(const void *base, size_t bytes, F change) {
  uintptr_t at = reinterpret_cast<uintptr_t>(base), end = at + bytes;
  while (at < end) {
    size_t n = CHUNK - at % CHUNK < end - at ? CHUNK - at % CHUNK : end - at;
    cell *&chunk = chunks[at / CHUNK % (sizeof chunks / sizeof *chunks)];
    if (chunk == nullptr) chunk = map_cells(CHUNK);
    change(chunk + at % CHUNK, n);
    at += n;
  }
}

static void set_cells(const void *base, size_t bytes, cell value) {
  each_run(base, bytes, [value](cell *c, size_t n) {
    for (size_t i = 0; i < n; i++) c[i] = value;
  });
}

/* Whole pages of cells go back to the system, which gives zeros again. */
static void clear_cells(const void *base, size_t bytes) {
  each_run(base, bytes, [](cell *c, size_t n) {
    cell *end = c + n, *low = reinterpret_cast<cell *>((reinterpret_cast<uintptr_t>(c) + 4095) & ~(uintptr_t)4095),
         *high = reinterpret_cast<cell *>(reinterpret_cast<uintptr_t>(end) & ~(uintptr_t)4095);
    if (n < LARGE) low = high = end;
    else madvise(low, (size_t)(high - low) * sizeof(cell), MADV_DONTNEED);
    for (; c < low; c++) *c = cell{UNWRITTEN, 0};
    for (c = high; c < end; c++) *c = cell{UNWRITTEN, 0};
  });
}

/* Events are numbered from the start again: all that was written before is just old. */
static void renumber() {
  for (auto &range : live)
    each_run(range.first, range.second, [](cell *c, size_t n) {
      for (size_t i = 0; i < n; i++) c[i] = cell{c[i].write >= FIRST ? (uint32_t)OLD : c[i].write, 0};
    });
  madvise(tls_cells, TLS_MOST * sizeof(cell), MADV_DONTNEED);
  madvise(dynamic_cells, (256 << 10) * sizeof(cell), MADV_DONTNEED);
  next_event = FIRST;
  stretch_count = 0;
}

/* New events belong to the work that runs now. */
static void begin_stretch(const char *name) {
  if (next_event > MOST / 2) renumber();
  sim_moment now = sim_now();
  stretches[stretch_count++ % STRETCHES] = stretch{next_event, now, name};
  floor_event = next_event;
  unsigned oldest = stretch_count > STRETCHES ? stretch_count - STRETCHES : 0;
  for (unsigned i = oldest; i < stretch_count; i++)
    if (!sim_comes_after(stretches[i % STRETCHES].moment)) {
      floor_event = stretches[i % STRETCHES].first;
      break;
    }
}

void sim_shadow_grid(const sim_kernel *k, int device) {
  (void)device;
  if (events == nullptr) {
    void *p = mmap(nullptr, EVENTS * sizeof(event), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) abort();
    events = static_cast<event *>(p);
    tls_cells = map_cells(TLS_MOST);
    dynamic_cells = map_cells(256 << 10);
  }
  dl_iterate_phdr(find_image, nullptr);
  kernel = k;
  begin_stretch(k->name);
  if (next_event - grid_first > 1 << 20) /* the last grid's */
    madvise(events, (size_t)(next_event - grid_first) * sizeof(event), MADV_DONTNEED);
  grid_first = next_event;
  block_number = 0;
  dynamic_start = static_cast<const char *>(sim_dynamic_shared());
  dynamic_bytes = k->shared;
  dynamic_room = dynamic_start + ((k->shared + 15) & ~(size_t)15) - (256 << 10);
  running = true;
}

void sim_shadow_grid_done() {
  running = false;
  next_event++; /* the next grid's first event is none of this one */
}

void sim_shadow_block() {
  block_number = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  block_first = next_event;
  barriers = 0;
  memset(warp_clock, 0, sizeof warp_clock);
  memset(warp_syncs, 0, sizeof warp_syncs);
}

void sim_shadow_thread(int t) {
  thread = t;
  stamp++;
}

void sim_shadow_barrier() { barriers++; }

void sim_shadow_warp(int first, unsigned lanes) {
  uint32_t now = ++warp_clock[first / WARP];
  for (; lanes != 0; lanes &= lanes - 1) warp_syncs[first + __builtin_ctz(lanes)] = now;
}

/* ---- what memory.c and work.c tell ---- */

/* Those that begin inside are none any more. */
static void forget(const void *base, size_t bytes) {
  const char *from = static_cast<const char *>(base);
  live.erase(live.lower_bound(from), live.lower_bound(from + bytes));
}

static void mark_freed(const void *base, size_t bytes) {
  forget(base, bytes);
  if (bytes < LARGE) return set_cells(base, bytes, cell{FREED, 0});
  clear_cells(base, bytes);
  freed[freed_count].base = static_cast<const char *>(base);
  freed[freed_count].bytes = bytes;
  freed_count = (freed_count + 1) % (sizeof freed / sizeof *freed);
}

static void mark_live(const void *base, size_t bytes, size_t room) {
  forget(base, room);
  clear_cells(base, bytes);
  set_cells(static_cast<const char *>(base) + bytes, room - bytes, cell{NOTHING, 0});
  live[static_cast<const char *>(base)] = bytes;
}

/* The guard bytes of memory.c come behind it. */
void sim_memory_allocated(const void *base, size_t bytes) { mark_live(base, bytes, bytes); }
void sim_memory_freed(const void *base, size_t bytes) { mark_freed(base, bytes); }

void sim_block_changed(void *base, size_t room, size_t bytes) {
  if (bytes > 0) return mark_live(base, bytes, room);
  mark_freed(base, room);
}

void sim_memory_touched(const void *base, size_t bytes, int writes) {
  if (sim_device_of(base) < 0) return; /* pinned memory */
  begin_stretch(sim_work_name());
  uint32_t id = next_event++;
  char other[160] = "";
  if (floor_event < id)
    each_run(base, bytes, [&](cell *c, size_t n) {
      for (size_t i = 0; i < n && other[0] == '\0'; i++)
        for (int k = 0; k < 1 + (writes != 0); k++) {
          uint32_t before = k == 0 ? c[i].write : c[i].read & ID;
          if (before < FIRST || before < floor_event || before >= id) continue;
          const stretch *s = stretch_of(before);
          if (s != nullptr && !sim_comes_after(s->moment))
            snprintf(other, sizeof other, "what %s of another stream has %s", s->name, k == 0 ? "written" : "read");
        }
    });
  if (writes == 1) set_cells(base, bytes, cell{id, 0});
  else if (writes == 0)
    each_run(base, bytes, [id](cell *c, size_t n) {
      for (size_t i = 0; i < n; i++) c[i].read = id;
    });
  if (other[0] != '\0')
    sim_fault("stream-race", "%s %s %s: nothing orders the two", sim_work_name(), writes ? "writes" : "reads", other);
}

void sim_memory_read(const void *base, size_t bytes) {
  if (sim_device_of(base) < 0) return;
  const cell *fresh = nullptr, *first = nullptr;
  each_run(base, bytes, [&](const cell *c, size_t n) {
    if (first == nullptr) first = c;
    for (size_t i = 0; i < n && fresh == nullptr; i++)
      if (c[i].write == UNWRITTEN) fresh = c + i;
  });
  if (fresh != nullptr)
    sim_fault("uninitialised", "%s reads byte %td of %zu at %p, which nothing has written since it was allocated",
              sim_work_name(), fresh - first, bytes, base);
}
