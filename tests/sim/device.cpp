/* device.cpp: runs a grid of CUDA threads on one OS thread.
 *
 * The threads of a block are run one after another as a plain loop on one fiber. When one has to wait (a barrier, a
 * warp's exchange), the fiber keeps it, and another fiber goes on with the loop or with a thread that may go on. A kernel
 * that never waits costs a function call a thread; one that does, a switch of stacks a wait.
 *
 * TLUA_SIM_ORDER: the order of threads and blocks: forward (default), reverse, or random with TLUA_SIM_SEED. */
#include "sim_device.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "device.h"
#include "fiber.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
const char *sim_stacks;

enum { MAX_THREADS = SIM_MAX_THREADS, WARP = 32, MAX_WARPS = MAX_THREADS / WARP };
enum : size_t { STACK = SIM_STACK, STACK_GUARD = 4096 };

struct site {
  const char *file;
  int line;
};

enum thread_state { UNSTARTED, READY, RUNNING, AT_BARRIER, AT_WARP, EXITED };

struct cuda_thread {
  sim_fiber *fiber;
  uint3 index;
  uint8_t state;
  /* what it waits with, and what it gets */
  unsigned mask;
  int operation, source;
  site at;
  unsigned long long value, result;
};

/* Lanes of a warp that meet under one mask. */
struct meeting {
  unsigned mask, arrived;
  int operation;
};

struct warp {
  unsigned exited; /* or never there */
  unsigned open;   /* meetings that somebody waits in */
  meeting meetings[WARP];
};

/* The grid that runs, and its block. */
static const sim_kernel *kernel;
static cuda_thread threads[MAX_THREADS];
static warp warps[MAX_WARPS];
static int count, current; /* threads of a block; the one that runs */
static int started, exited;
static uint16_t ready[MAX_THREADS]; /* a ring */
static unsigned ready_first, ready_count;
static uint16_t start_order[MAX_THREADS];
static struct {
  int arrived, sum, all, any;
  site at;
} barrier;
static sim_fiber outside, *free_fibers;
static bool broken; /* a counted fault left the block in no state to go on */
static char *shared_end;

enum : size_t { SHARED_BYTES = 256 << 10 }; /* more than any GPU gives to a block */

/* ---- order ---- */

enum { FORWARD, REVERSE, RANDOM };
static int order;
static uint64_t random_state;

static uint32_t random_below(uint32_t n) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((random_state >> 32) * n >> 32);
}

static void read_order() {
  const char *name = getenv("TLUA_SIM_ORDER"), *seed = getenv("TLUA_SIM_SEED");
  order = name == nullptr || strcmp(name, "forward") == 0 ? FORWARD : strcmp(name, "reverse") == 0 ? REVERSE : RANDOM;
  random_state = (seed == nullptr ? 0 : strtoull(seed, nullptr, 10)) * 2 + 0x9e3779b97f4a7c15u;
}

/* ---- in words ---- */

static const char *file_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

const char *sim_where(char *text, size_t bytes) {
  if (kernel == nullptr) return "";
  if (current < 0)
    snprintf(text, bytes, " [kernel %s, block (%u,%u,%u)]", kernel->name, blockIdx.x, blockIdx.y, blockIdx.z);
  else
    snprintf(text, bytes, " [kernel %s, block (%u,%u,%u), thread (%u,%u,%u)]", kernel->name, blockIdx.x, blockIdx.y,
             blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  return text;
}

const char *sim_running_kernel() { return kernel == nullptr ? nullptr : kernel->name; }
int sim_running_thread() { return current; }

/* ---- fibers ---- */

static int stack_count;

static void fiber_body(sim_fiber *self);

static sim_fiber *take_fiber() {
  if (free_fibers == nullptr) {
    static char *stacks;
    if (stacks == nullptr)
      sim_stacks = stacks = static_cast<char *>(
          mmap(nullptr, STACK * MAX_THREADS, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    char *stack = stacks == MAP_FAILED || stack_count == MAX_THREADS ? nullptr : stacks + STACK * stack_count;
    if (stack == nullptr || mprotect(stack + STACK_GUARD, STACK - STACK_GUARD, PROT_READ | PROT_WRITE) != 0) {
      fprintf(stderr, "tlua-sim: no memory for the stacks of a block's threads\n");
      abort();
    }
    sim_fiber *f = new sim_fiber();
    /* Tops at different places in a page, or all of them would compete for the same lines of the cache. */
    f->stack = stack + STACK_GUARD;
    f->bytes = STACK - STACK_GUARD - (size_t)(stack_count % 29) * 128;
    stack_count++;
    sim_fiber_reset(f, fiber_body);
    return f;
  }
  sim_fiber *f = free_fibers;
  free_fibers = f->next;
  return f;
}

static void put_fiber(sim_fiber *f) {
  f->next = free_fibers;
  free_fibers = f;
}

/* ---- which thread goes on ---- */

static void push_ready(int t) {
  threads[t].state = READY;
  ready[(ready_first + ready_count++) % MAX_THREADS] = (uint16_t)t;
}

static int pop_ready() {
  if (order == RANDOM) {
    unsigned i = (ready_first + random_below(ready_count)) % MAX_THREADS,
             last = (ready_first + --ready_count) % MAX_THREADS;
    int t = ready[i];
    ready[i] = ready[last];
    return t;
  }
  int t = ready[ready_first];
  ready_first = (ready_first + 1) % MAX_THREADS;
  ready_count--;
  return t;
}

/* Threads that may go on come before those that have not started, except that a random order throws dice. */
static bool resume_first() { return ready_count > 0 && (started == count || order != RANDOM || random_below(4) != 0); }

static void set_current(int t) {
  current = t;
  threads[t].state = RUNNING;
  threadIdx = threads[t].index;
  sim_shadow_thread(t);
}

/* Leaves `from` for whatever can go on; for the outside when nothing can. */
static void leave(sim_fiber *from) {
  sim_fiber *to = &outside;
  if (resume_first()) {
    int t = pop_ready();
    to = threads[t].fiber;
    set_current(t);
  } else if (started < count) {
    to = take_fiber();
  }
  if (to != from) sim_fiber_switch(from, to);
}

static void release_meetings(int t);

static void thread_exits(int t) {
  threads[t].state = EXITED;
  exited++;
  warps[t / WARP].exited |= 1u << t % WARP;
  if (barrier.arrived > 0)
    sim_fault("barrier", "a thread has left the kernel while %d of its block wait in __syncthreads at %s:%d",
              barrier.arrived, file_name(barrier.at.file), barrier.at.line);
  release_meetings(t);
}

static void fiber_body(sim_fiber *self) {
  for (;;) {
    while (started < count && !(ready_count > 0 && resume_first())) {
      int t = start_order[started++];
      threads[t].fiber = self;
      set_current(t);
      kernel->run(kernel->arguments);
      /* The thread may have waited; it is still on this fiber. */
      thread_exits(t);
    }
    put_fiber(self);
    leave(self);
  }
}

/* The current thread waits; returns when it goes on. */
static void wait(uint8_t state) {
  int t = current;
  threads[t].state = state;
  leave(threads[t].fiber);
}

/* ---- barriers ---- */

/* Lets waiting threads go on, in the chosen order (a random one is made when they are taken). */
template <typename F> static void release(int first, int n, F waits) {
  for (int i = 0; i < n; i++) {
    int t = first + (order == REVERSE ? n - 1 - i : i);
    if (waits(t)) push_ready(t);
  }
}

int sim_barrier_wait(int kind, int predicate, const char *file, int line) {
  int t = current;
  if (barrier.arrived == 0) {
    barrier.at = site{file, line};
    barrier.sum = barrier.any = 0;
    barrier.all = 1;
  } else if (barrier.at.line != line || strcmp(barrier.at.file, file) != 0) {
    sim_fault("barrier", "a thread waits in __syncthreads at %s:%d while %d others of its block wait at %s:%d",
              file_name(file), line, barrier.arrived, file_name(barrier.at.file), barrier.at.line);
  }
  if (exited > 0)
    sim_fault("barrier", "a thread waits in __syncthreads at %s:%d, but %d of its block left the kernel",
              file_name(file), line, exited);
  threads[t].operation = kind;
  threads[t].at = site{file, line};
  threads[t].state = AT_BARRIER;
  barrier.arrived++;
  barrier.sum += predicate != 0;
  barrier.any |= predicate != 0;
  barrier.all &= predicate != 0;
  if (barrier.arrived + exited == count) {
    for (int i = 0; i < count; i++) {
      cuda_thread *w = &threads[i];
      if (w->state != AT_BARRIER) continue;
      w->result = (unsigned long long)(w->operation == SIM_COUNT ? barrier.sum
                                       : w->operation == SIM_AND ? barrier.all
                                                                 : barrier.any);
    }
    barrier.arrived = 0;
    sim_shadow_barrier();
    release(0, count, [](int i) { return threads[i].state == AT_BARRIER; });
  }
  wait(threads[t].state);
  return (int)threads[t].result;
}

/* ---- warps ---- */

int sim_lane() { return current % WARP; }

/* Which lanes run together is the hardware's affair: what a program may rely on is its own lane. */
unsigned __activemask() { return 1u << current % WARP; }

static unsigned long long result_of(int t, unsigned arrived) {
  cuda_thread *w = &threads[t];
  int first = t - t % WARP;
  if (w->operation == SIM_SHUFFLE) {
    if (w->source >= 0 && w->source < WARP && (arrived >> w->source & 1)) return threads[first + w->source].value;
    int here = current;
    current = t;
    threadIdx = w->index;
    sim_fault("shuffle", "lane %d reads lane %d at %s:%d, which takes no part (mask 0x%08x%s)", t % WARP, w->source,
              file_name(w->at.file), w->at.line, w->mask,
              w->source >= 0 && w->source < WARP && (w->mask >> w->source & 1)
                  ? ", but that thread has left or is not there"
                  : "");
    current = here;
    threadIdx = threads[here].index;
    return ~0ull;
  }
  unsigned long long lanes = 0;
  for (int lane = 0; lane < WARP; lane++) {
    if (!(arrived >> lane & 1)) continue;
    unsigned long long v = threads[first + lane].value;
    if (w->operation == SIM_BALLOT ? v != 0 : v == w->value) lanes |= 1ull << lane;
  }
  return lanes;
}

static void complete(int first, meeting *m) {
  unsigned arrived = m->arrived;
  warps[first / WARP].open &= ~(1u << (m - warps[first / WARP].meetings));
  if (m->operation == SIM_SYNCWARP) {
    sim_shadow_warp(first, arrived);
  } else {
    unsigned long long ballot = m->operation == SIM_BALLOT ? result_of(first + __builtin_ctz(arrived), arrived) : 0;
    for (unsigned left = arrived; left != 0; left &= left - 1) {
      int t = first + __builtin_ctz(left);
      threads[t].result = m->operation == SIM_BALLOT ? ballot : result_of(t, arrived);
    }
  }
  release(first, WARP, [=](int t) { return (arrived >> (t - first) & 1) != 0; });
}

/* After a lane has left: those who wait only for it go on. */
static void release_meetings(int t) {
  warp *w = &warps[t / WARP];
  for (unsigned left = w->open; left != 0; left &= left - 1) {
    meeting *m = &w->meetings[__builtin_ctz(left)];
    if ((m->mask & ~w->exited) == m->arrived) complete(t - t % WARP, m);
  }
}

unsigned long long sim_warp_wait(int operation, unsigned mask, unsigned long long value, int source, const char *file,
                                 int line) {
  int t = current, lane = t % WARP, first = t - lane;
  warp *w = &warps[t / WARP];
  if (!(mask >> lane & 1)) {
    sim_fault("shuffle", "lane %d calls a warp function at %s:%d with mask 0x%08x, which does not name it", lane,
              file_name(file), line, mask);
    return value;
  }
  meeting *m = nullptr;
  for (unsigned left = w->open; left != 0 && m == nullptr; left &= left - 1) {
    m = &w->meetings[__builtin_ctz(left)];
    if (m->mask != mask) m = nullptr;
  }
  if (m == nullptr) {
    int place = __builtin_ctz(~w->open);
    w->open |= 1u << place;
    m = &w->meetings[place];
    *m = meeting{mask, 0, operation};
  } else if (m->operation != operation) {
    int other = __builtin_ctz(m->arrived);
    sim_fault("shuffle", "lane %d calls a warp function at %s:%d while lane %d waits in another kind of it at %s:%d",
              lane, file_name(file), line, other, file_name(threads[first + other].at.file),
              threads[first + other].at.line);
    return value;
  }
  cuda_thread *self = &threads[t];
  self->operation = operation;
  self->mask = mask;
  self->value = value;
  self->source = source;
  self->at = site{file, line};
  self->state = AT_WARP;
  m->arrived |= 1u << lane;
  if ((mask & ~w->exited) == m->arrived) complete(first, m);
  wait(self->state);
  return self->result;
}

/* ---- shared memory ---- */

void *sim_dynamic_shared() { return shared_end - ((kernel->shared + 15) & ~(size_t)15); }

static void open_shared() {
  char *p = static_cast<char *>(mmap(nullptr, SHARED_BYTES + 2 * STACK_GUARD, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  mprotect(p, STACK_GUARD, PROT_NONE);
  mprotect(p + STACK_GUARD + SHARED_BYTES, STACK_GUARD, PROT_NONE);
  shared_end = p + STACK_GUARD + SHARED_BYTES;
}

int sim_explain_address(const void *p, char *text, size_t bytes) {
  const char *a = static_cast<const char *>(p);
  char where[160];
  if (kernel == nullptr) return 0;
  if (a >= shared_end && a < shared_end + STACK_GUARD)
    snprintf(text, bytes, "an access beyond the %zu bytes of dynamic shared memory%s", kernel->shared,
             sim_where(where, sizeof where));
  else if (sim_is_stack(p))
    snprintf(text, bytes, "a thread's local variables need more than %zu KB%s", STACK >> 10,
             sim_where(where, sizeof where));
  else return 0;
  return 1;
}

/* Kernels that were allowed more dynamic shared memory than the 48 KB every launch may have. */
enum { MAX_OPTED = 256 };
static struct {
  const void *function;
  int bytes;
} opted[MAX_OPTED];
static int opted_count;

static int shared_limit(const void *function) {
  for (int i = 0; i < opted_count; i++)
    if (opted[i].function == function) return opted[i].bytes;
  return 48 << 10;
}

/* ---- grids ---- */

/* Nothing can go on and not all threads have left. */
static void report_deadlock() {
  int at_barrier = -1, at_warp = -1;
  for (int t = count - 1; t >= 0; t--) {
    if (threads[t].state == AT_BARRIER) at_barrier = t;
    if (threads[t].state == AT_WARP) at_warp = t;
  }
  current = at_barrier >= 0 ? at_barrier : at_warp;
  threadIdx = threads[current].index;
  cuda_thread *w = &threads[at_warp < 0 ? at_barrier : at_warp], *b = &threads[current];
  if (at_warp < 0)
    sim_fault("barrier", "%d threads wait for ever in __syncthreads at %s:%d", barrier.arrived, file_name(b->at.file),
              b->at.line);
  else if (at_barrier >= 0)
    sim_fault("barrier", "%d threads wait for ever in __syncthreads at %s:%d, others in a warp function at %s:%d",
              barrier.arrived, file_name(b->at.file), b->at.line, file_name(w->at.file), w->at.line);
  else
    sim_fault("shuffle", "lane %d waits for ever in a warp function at %s:%d with mask 0x%08x", at_warp % WARP,
              file_name(w->at.file), w->at.line, w->mask);
  for (int t = 0; t < count; t++) {
    if (threads[t].state == EXITED) continue;
    sim_fiber_reset(threads[t].fiber, fiber_body);
    put_fiber(threads[t].fiber);
  }
  broken = true;
}

static void run_block() {
  started = exited = 0;
  ready_first = ready_count = 0;
  barrier.arrived = 0;
  for (int w = 0; w * WARP < count; w++) {
    int lanes = count - w * WARP;
    warps[w].exited = lanes >= WARP ? 0 : ~0u << lanes;
    warps[w].open = 0;
  }
  if (order == RANDOM)
    for (int i = count - 1; i > 0; i--) {
      int j = (int)random_below((uint32_t)i + 1);
      uint16_t t = start_order[i];
      start_order[i] = start_order[j];
      start_order[j] = t;
    }
  current = -1;
  sim_shared_begin(kernel->function, static_cast<char *>(sim_dynamic_shared()), kernel->shared);
  sim_shadow_block();
  sim_fiber_switch(&outside, take_fiber());
  if (exited < count) report_deadlock();
  current = -1;
}

/* Where block i of n comes in a random order: multiplication by a number without common divisor with n. */
static uint64_t gcd(uint64_t a, uint64_t b) { return b == 0 ? a : gcd(b, a % b); }

static pthread_mutex_t one_grid = PTHREAD_MUTEX_INITIALIZER;

void sim_run_grid(const sim_kernel *k, int device) {
  pthread_mutex_lock(&one_grid);
  if (shared_end == nullptr) {
    open_shared();
    read_order();
  }
  kernel = k;
  broken = false;
  gridDim = k->grid;
  blockDim = k->block;
  count = (int)(k->block.x * k->block.y * k->block.z);
  for (int t = 0, x = 0, y = 0, z = 0; t < count; t++) {
    threads[t].index = uint3{(unsigned)x, (unsigned)y, (unsigned)z};
    start_order[t] = (uint16_t)(order == REVERSE ? count - 1 - t : t);
    if (++x == (int)k->block.x) x = 0, y++;
    if (y == (int)k->block.y) y = 0, z++;
  }
  sim_shared_grid(k->function);
  sim_shadow_grid(k, device);
  uint64_t blocks = (uint64_t)k->grid.x * k->grid.y * k->grid.z, step = 1, at = 0;
  if (order == REVERSE) {
    at = step = blocks - 1;
  } else if (order == RANDOM) {
    at = random_below((uint32_t)(blocks < UINT32_MAX ? blocks : UINT32_MAX));
    step = blocks < 3 ? 1 : 1 + random_below((uint32_t)((blocks < UINT32_MAX ? blocks : UINT32_MAX) - 1));
    while (gcd(step, blocks) != 1) step++;
  }
  for (uint64_t i = 0; i < blocks && !broken; i++, at = (at + step) % blocks) {
    blockIdx.x = (unsigned)(at % k->grid.x);
    blockIdx.y = (unsigned)(at / k->grid.x % k->grid.y);
    blockIdx.z = (unsigned)(at / k->grid.x / k->grid.y);
    run_block();
    if (i == 0) sim_shared_first(k->function);
  }
  sim_shadow_grid_done();
  if (!broken) sim_shared_end(k, (size_t)shared_limit(k->function));
  kernel = nullptr;
  pthread_mutex_unlock(&one_grid);
}

/* ---- launches ---- */

struct packed {
  sim_kernel kernel;
  alignas(16) char arguments[4096 + 64];
};

static void run_packed(void *data, int device) {
  packed *p = static_cast<packed *>(data);
  p->kernel.arguments = p->arguments;
  sim_run_grid(&p->kernel, device);
}

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute, int value) {
  if (sim_call_fails("cudaFuncSetAttribute")) return sim_error(cudaErrorUnknown, "cudaFuncSetAttribute: made to fail");
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess; /* a hint */
  int device = 0, most = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (value < 0 || value > most)
    return sim_error(cudaErrorInvalidValue, "cudaFuncSetAttribute: %d bytes of dynamic shared memory, a block has %d",
                     value, most);
  pthread_mutex_lock(&one_grid);
  int i = 0;
  while (i < opted_count && opted[i].function != function) i++;
  if (i < MAX_OPTED) {
    opted[i].function = function;
    opted[i].bytes = value;
    if (i == opted_count) opted_count++;
  }
  pthread_mutex_unlock(&one_grid);
  return i < MAX_OPTED ? cudaSuccess : sim_error(cudaErrorUnknown, "cudaFuncSetAttribute: too many kernels");
}

cudaError_t sim_enqueue_kernel(const sim_kernel *k, size_t bytes, cudaStream_t stream) {
  sim_count(k->name);
  if (sim_call_fails("cudaLaunchKernel")) return sim_error(cudaErrorLaunchOutOfResources, "%s: made to fail", k->name);
  dim3 g = k->grid, b = k->block;
  if (g.x == 0 || g.y == 0 || g.z == 0 || b.x == 0 || b.y == 0 || b.z == 0)
    return sim_error(cudaErrorInvalidConfiguration,
                     "%s: a grid of (%u,%u,%u) blocks of (%u,%u,%u) threads has no thread", k->name, g.x, g.y, g.z, b.x,
                     b.y, b.z);
  if (g.x > 2147483647u || g.y > 65535 || g.z > 65535)
    return sim_error(cudaErrorInvalidConfiguration, "%s: a grid of (%u,%u,%u) blocks; y and z may be 65535", k->name,
                     g.x, g.y, g.z);
  if (b.x > 1024 || b.y > 1024 || b.z > 64 || (uint64_t)b.x * b.y * b.z > MAX_THREADS)
    return sim_error(cudaErrorInvalidConfiguration, "%s: a block of (%u,%u,%u) threads; 1024 are the most", k->name,
                     b.x, b.y, b.z);
  if (k->shared > (size_t)shared_limit(k->function))
    return sim_error(cudaErrorInvalidValue,
                     "%s: %zu bytes of dynamic shared memory, %d are allowed (cudaFuncSetAttribute)", k->name,
                     k->shared, shared_limit(k->function));
  if (bytes > sizeof(packed::arguments))
    return sim_error(cudaErrorInvalidValue, "%s: %zu bytes of arguments", k->name, bytes);
  packed p;
  p.kernel = *k;
  memcpy(p.arguments, k->arguments, bytes);
  return sim_enqueue(stream, k->name, run_packed, &p, offsetof(packed, arguments) + bytes, 0, nullptr);
}
