/* interrupt.c: Ctrl-C while Lua code runs. */
#include "interrupt.h"

#include <signal.h>
#include <string.h>

#include <lauxlib.h>

#include "tlua.h"

#define MAX_LEVELS 32 /* a REPL in a breakpoint in a REPL ... */

/* One process has one SIGINT; levels[depth - 1] is who gets it. */
static struct level {
  lua_State *L;
  tlua_interrupt_mode mode;
  volatile sig_atomic_t came;
} levels[MAX_LEVELS];
static volatile sig_atomic_t depth;
static struct sigaction former; /* what it meant before the first level */
static const char pause_key;

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

/* Only async-signal-safe calls here; lua_sethook is one by LuaJIT's own use of it. */
static void on_sigint(int signal_number) {
  if (depth == 0) return;
  struct level *now = &levels[depth - 1];
  int count = ++now->came;
  if (now->mode == TLUA_INTERRUPT_NOTED) return;
  const int mask = LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT;
  if (now->mode == TLUA_INTERRUPT_PAUSES && count == 1) {
    tl_request_pause();
    lua_sethook(now->L, pause_here, mask, 1);
    return;
  }
  if (count > (now->mode == TLUA_INTERRUPT_PAUSES ? 2 : 1)) {
    signal(signal_number, SIG_DFL);
    raise(signal_number);
    return;
  }
  tl_interrupt();
  lua_sethook(now->L, stop, mask, 1);
}

void tlua_arm_interrupt(lua_State *L, tlua_interrupt_mode mode) {
  if (depth < MAX_LEVELS) levels[depth] = (struct level){.L = L, .mode = mode};
  if (++depth > 1) return;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_sigint;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &former);
}

bool tlua_interrupt_came(void) { return depth > 0 && depth <= MAX_LEVELS && levels[depth - 1].came != 0; }

bool tlua_disarm_interrupt(void) {
  if (depth == 0) return false;
  if (depth == 1) sigaction(SIGINT, &former, NULL);
  depth--;
  if (depth >= MAX_LEVELS) return false;
  struct level *ended = &levels[depth];
  if (ended->came == 0) return false;
  if (ended->mode != TLUA_INTERRUPT_NOTED) {
    lua_sethook(ended->L, NULL, 0, 0);
    tl_take_interrupt();
    tl_take_pause();
  }
  return true;
}

void tlua_pause(lua_State *L) {
  if (depth > 0 && depth <= MAX_LEVELS) levels[depth - 1].came = 0; /* heard */
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
