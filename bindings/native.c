/* native.c: the module "tlua.native": Ctrl-C, terminals, lines for the REPL. */
#include "native.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>

#include "baked.h"
#include "interrupt.h"
#include "reader.h"

/* arm("stop" | "pause"): what Ctrl-C does from now on (interrupt.h). */
static int arm(lua_State *L) {
  static const char *const modes[] = {"stop", "pause", NULL};
  tlua_arm_interrupt(L, luaL_checkoption(L, 1, "stop", modes) == 1 ? TLUA_INTERRUPT_PAUSES : TLUA_INTERRUPT_STOPS);
  return 0;
}

/* disarm() -> did Ctrl-C come? */
static int disarm(lua_State *L) {
  lua_pushboolean(L, tlua_disarm_interrupt());
  return 1;
}

/* on_pause(f): f() is called by Ctrl-C under arm("pause"). */
static int on_pause(lua_State *L) {
  lua_settop(L, 1);
  tlua_on_pause(L);
  return 0;
}

/* pause(): calls what on_pause() set, for code that was asked to pause and is between two operations. */
static int pause_now(lua_State *L) {
  tlua_pause(L);
  return 0;
}

/* is_terminal(fd) -> boolean */
static int is_terminal(lua_State *L) {
  lua_pushboolean(L, isatty((int)luaL_checkinteger(L, 1)));
  return 1;
}

/* reader() -> a reader of standard input that writes to standard output (reader.h) */
static int standard_reader(lua_State *L) {
  tlua_push_reader(L, stdin, stdout);
  return 1;
}

/* tools() -> { "bench", "doctor", ... }: those that are baked in */
static int tools(lua_State *L) {
  int n = 0;
  lua_newtable(L);
  for (const tlua_baked *b = tlua_baked_files; b->name != NULL; b++)
    if (strncmp(b->name, "tool:", 5) == 0) {
      lua_pushstring(L, b->name + 5);
      lua_rawseti(L, -2, ++n);
    }
  return 1;
}

int tlua_open_native(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"arm", arm},
      {"disarm", disarm},
      {"on_pause", on_pause},
      {"pause", pause_now},
      {"is_terminal", is_terminal},
      {"reader", standard_reader},
      {"tools", tools},
      {NULL, NULL},
  };
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
