/* native.c: the module "tlua.native": signals, terminals, lines for the REPL. */
#include "native.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>

#include "baked.h"
#include "interrupt.h"
#include "reader.h"

/* arm("stop" | "pause" | "note"): what Ctrl-C does from now on (interrupt.h). */
static int arm(lua_State *L) {
  static const char *const names[] = {"stop", "pause", "note", NULL};
  static const tlua_interrupt_mode modes[] = {TLUA_INTERRUPT_STOPS, TLUA_INTERRUPT_PAUSES, TLUA_INTERRUPT_NOTED};
  tlua_arm_interrupt(L, modes[luaL_checkoption(L, 1, "stop", names)]);
  return 0;
}

/* disarm() -> did Ctrl-C come? */
static int disarm(lua_State *L) {
  lua_pushboolean(L, tlua_disarm_interrupt());
  return 1;
}

/* defer() -> boolean: the first Ctrl-C or SIGTERM waits for signalled() until disarm(). False: a host program has the
 * signals, and there is nothing to disarm. */
static int defer(lua_State *L) {
  bool armed = tlua_interrupt_armed();
  if (armed) tlua_arm_interrupt(L, TLUA_INTERRUPT_DEFERRED);
  lua_pushboolean(L, armed);
  return 1;
}

/* signalled() -> the number of the signal that came since defer(); nil */
static int signalled(lua_State *L) {
  int number = tlua_deferred_signal();
  if (number == 0) lua_pushnil(L);
  else lua_pushinteger(L, number);
  return 1;
}

/* watch(fd, f, ...) -> gone, and what pcall(f, ...) returns: f is interrupted when the other side of this socket is gone,
 * and nobody else. */
static int watch(lua_State *L) {
  int fd = (int)luaL_checkinteger(L, 1);
  lua_remove(L, 1);
  tlua_watch(L, fd);
  bool ok = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0) == 0;
  lua_pushboolean(L, tlua_watch(L, -1));
  lua_insert(L, 1);
  lua_pushboolean(L, ok);
  lua_insert(L, 2);
  return lua_gettop(L);
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

/* thread() -> the running coroutine; the main one, too */
static int running_thread(lua_State *L) {
  lua_pushthread(L);
  return 1;
}

static char at_exit[256]; /* "": nothing */
static pid_t at_exit_of;

static void remove_file(void) {
  if (at_exit[0] != '\0' && getpid() == at_exit_of) unlink(at_exit); /* a child that was forked is somebody else */
}

/* remove_at_exit(path): this file goes when the process exits, however it does so; "" takes that back. */
static int remove_at_exit(lua_State *L) {
  static bool registered;
  const char *path = luaL_checkstring(L, 1);
  if (strlen(path) >= sizeof at_exit) return luaL_error(L, "the path is too long: %s", path);
  strcpy(at_exit, path);
  at_exit_of = getpid();
  if (!registered) registered = atexit(remove_file) == 0;
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
      {"defer", defer},
      {"signalled", signalled},
      {"on_pause", on_pause},
      {"pause", pause_now},
      {"watch", watch},
      {"thread", running_thread},
      {"remove_at_exit", remove_at_exit},
      {"is_terminal", is_terminal},
      {"reader", standard_reader},
      {"tools", tools},
      {NULL, NULL},
  };
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
