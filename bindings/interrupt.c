/* interrupt.c: Ctrl-C while Lua code runs. */
#include "interrupt.h"

#include <signal.h>
#include <string.h>

#include <lauxlib.h>

#include "tlua.h"

/* One process has one SIGINT: the state that is armed. */
static lua_State *volatile armed;
static volatile sig_atomic_t came;
static struct sigaction former;

static void stop(lua_State *L, lua_Debug *activation) {
  (void)activation;
  lua_sethook(L, NULL, 0, 0);
  tl_take_interrupt();
  lua_pushliteral(L, "interrupted");
  lua_error(L);
}

/* Only async-signal-safe calls here; lua_sethook is one by LuaJIT's own use of it. */
static void on_sigint(int signal_number) {
  signal(signal_number, SIG_DFL);
  came = 1;
  tl_interrupt();
  if (armed != NULL) lua_sethook(armed, stop, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

void tlua_arm_interrupt(lua_State *L) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_sigint;
  sigemptyset(&action.sa_mask);
  came = 0;
  armed = L;
  sigaction(SIGINT, &action, &former);
}

bool tlua_disarm_interrupt(void) {
  sigaction(SIGINT, &former, NULL);
  if (armed != NULL && came) lua_sethook(armed, NULL, 0, 0);
  armed = NULL;
  bool was = came != 0;
  came = 0;
  if (was) tl_take_interrupt();
  return was;
}
