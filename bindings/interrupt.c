/* interrupt.c: Ctrl-C while Lua code runs. */
#define _GNU_SOURCE /* F_SETOWN_EX, gettid() */
#include "interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>

#include "tlua.h"

#define MAX_LEVELS 256 /* a REPL in a breakpoint in a REPL ... */

/* One process has one SIGINT; levels[depth - 1] is who gets it. */
static struct level {
  lua_State *L;
  tlua_interrupt_mode mode;
  volatile sig_atomic_t came;
  volatile sig_atomic_t deferred;  /* TLUA_INTERRUPT_DEFERRED: the signal that came first */
  struct sigaction former_sigterm; /* and what SIGTERM meant before */
} levels[MAX_LEVELS];
static volatile sig_atomic_t depth;
static struct sigaction former; /* what it meant before the first level */
static const char pause_key;

#define EVERYWHERE (LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT)

static void stop(lua_State *L, lua_Debug *activation) {
  (void)activation;
  lua_sethook(L, NULL, 0, 0);
  tl_take_interrupt();
  lua_pushliteral(L, "interrupted");
  lua_error(L);
}

/* Runs with the interrupted code's frames below it; errors of the function are errors of that code. */
static void pause_here(lua_State *L, lua_Debug *activation) {
  (void)activation;
  lua_sethook(L, NULL, 0, 0);
  if (tl_take_pause()) tlua_pause(L); /* else a tensor operation was faster */
}

static struct level *newest_deferred(void) {
  for (int i = depth - 1; i >= 0; i--)
    if (levels[i].mode == TLUA_INTERRUPT_DEFERRED) return &levels[i];
  return NULL;
}

static void defer(struct level *l, int signal_number) {
  if (l->deferred == 0) {
    l->deferred = signal_number;
    return;
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

static void on_sigterm(int signal_number) {
  struct level *l = newest_deferred();
  if (l != NULL) defer(l, signal_number);
}

/* Only async-signal-safe calls here; lua_sethook is one by LuaJIT's own use of it. */
static void on_sigint(int signal_number) {
  if (depth == 0) return;
  struct level *now = &levels[depth - 1];
  int count = ++now->came;
  if (now->mode == TLUA_INTERRUPT_NOTED) return;
  if (now->mode == TLUA_INTERRUPT_DEFERRED) {
    defer(now, signal_number);
    return;
  }
  if (now->mode == TLUA_INTERRUPT_PAUSES && count == 1) {
    tl_request_pause();
    lua_sethook(now->L, pause_here, EVERYWHERE, 1);
    return;
  }
  if (count > (now->mode == TLUA_INTERRUPT_PAUSES ? 2 : 1)) {
    signal(signal_number, SIG_DFL);
    raise(signal_number);
    return;
  }
  tl_interrupt();
  lua_sethook(now->L, stop, EVERYWHERE, 1);
}

/* oneDNN's matrix products use the stack pointer for an address in the heap meanwhile: what a handler pushed there would
 * overwrite whatever lies below. It has a stack of its own, unless the thread has one for signals already. */
static void give_handlers_a_stack(void) {
  static char memory[1 << 16]; /* a frame holds all vector and matrix registers: 11 KB */
  stack_t now;
  if (sigaltstack(NULL, &now) == 0 && (now.ss_flags & SS_DISABLE) != 0)
    sigaltstack(&(stack_t){.ss_sp = memory, .ss_size = sizeof memory}, NULL);
}

void tlua_arm_interrupt(lua_State *L, tlua_interrupt_mode mode) {
  if (depth == MAX_LEVELS) luaL_error(L, "too many REPLs inside one another");
  levels[depth] = (struct level){.L = L, .mode = mode};
  struct sigaction action;
  memset(&action, 0, sizeof action);
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_ONSTACK;
  action.sa_handler = on_sigterm;
  if (depth == 0) give_handlers_a_stack();
  depth++;
  if (mode == TLUA_INTERRUPT_DEFERRED) sigaction(SIGTERM, &action, &levels[depth - 1].former_sigterm);
  action.sa_handler = on_sigint;
  if (depth == 1) sigaction(SIGINT, &action, &former);
}

bool tlua_interrupt_armed(void) { return depth > 0; }

int tlua_deferred_signal(void) {
  const struct level *l = newest_deferred();
  return l == NULL ? 0 : l->deferred;
}

bool tlua_interrupt_came(void) { return depth > 0 && levels[depth - 1].came != 0; }

bool tlua_disarm_interrupt(void) {
  if (depth == 0) return false;
  if (depth == 1) sigaction(SIGINT, &former, NULL);
  struct level *ended = &levels[--depth];
  if (ended->mode == TLUA_INTERRUPT_DEFERRED) {
    sigaction(SIGTERM, &ended->former_sigterm, NULL);
    if (ended->came != 0 && depth > 0) levels[depth - 1].came++;
    return ended->came != 0;
  }
  if (ended->came == 0) return false;
  if (ended->mode != TLUA_INTERRUPT_NOTED) {
    lua_sethook(ended->L, NULL, 0, 0);
    tl_take_interrupt();
    tl_take_pause();
  }
  return true;
}

/* ---- the other side of a socket ---- */

static struct {
  lua_State *volatile L;
  volatile sig_atomic_t fd, gone;
  int depth; /* of the levels before */
  struct sigaction former;
} watched = {.fd = -1};

static void on_sigio(int signal_number) {
  (void)signal_number;
  struct pollfd p = {.fd = watched.fd, .events = POLLIN};
  const int number = errno;
  if (watched.fd >= 0 && poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0) { /* else it only sent more */
    watched.gone = 1;
    tl_interrupt();
    lua_sethook(watched.L, stop, EVERYWHERE, 1);
  }
  errno = number;
}

bool tlua_watch(lua_State *L, int fd) {
  bool gone = false;
  if (watched.fd >= 0) {
    fcntl(watched.fd, F_SETFL, fcntl(watched.fd, F_GETFL) & ~O_ASYNC);
    /* one that is on its way finds a handler: SIGIO would end the process */
    if (watched.former.sa_handler != SIG_DFL) sigaction(SIGIO, &watched.former, NULL);
    watched.fd = -1;
    gone = watched.gone != 0;
    if (gone) { /* nothing of it may reach other code */
      lua_sethook(L, NULL, 0, 0);
      tl_take_interrupt();
      while (depth > watched.depth) tlua_disarm_interrupt();
    }
  }
  if (fd < 0) return gone;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_sigio;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  watched.L = L;
  watched.gone = 0;
  watched.depth = depth;
  watched.fd = fd;
  sigaction(SIGIO, &action, &watched.former);
  const struct f_owner_ex owner = {.type = F_OWNER_TID, .pid = gettid()}; /* not whichever thread has time */
  fcntl(fd, F_SETOWN_EX, &owner);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC);
  on_sigio(SIGIO); /* gone already? */
  return gone;
}

void tlua_pause(lua_State *L) {
  if (depth > 0) levels[depth - 1].came = 0; /* heard */
  lua_sethook(L, NULL, 0, 0);
  lua_pushlightuserdata(L, (void *)&pause_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (lua_isfunction(L, -1)) lua_call(L, 0, 0);
  else lua_pop(L, 1);
}

void tlua_on_pause(lua_State *L) {
  lua_pushlightuserdata(L, (void *)&pause_key);
  lua_insert(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}
