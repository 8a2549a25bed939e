/* main.c: the program. It makes a Lua state and hands the command line to bindings/lua/tlua/cli.lua, together with the
 * few things that Lua cannot do itself. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "baked.h"
#include "interrupt.h"
#include "library.h"

/* arm(): Ctrl-C is an error from now on. */
static int arm(lua_State *L) {
  tlua_arm_interrupt(L);
  return 0;
}

/* disarm() -> did Ctrl-C come? */
static int disarm(lua_State *L) {
  lua_pushboolean(L, tlua_disarm_interrupt());
  return 1;
}

/* is_terminal(fd) -> boolean */
static int is_terminal(lua_State *L) {
  lua_pushboolean(L, isatty((int)luaL_checkinteger(L, 1)));
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

static const luaL_Reg primitives[] = {
    {"arm", arm}, {"disarm", disarm}, {"is_terminal", is_terminal}, {"tools", tools}, {NULL, NULL},
};

int main(int argc, char **argv) {
  lua_State *L = luaL_newstate();
  if (L == NULL) {
    fprintf(stderr, "tlua: no memory for a Lua state\n");
    return 1;
  }
  luaL_openlibs(L);
  tlua_install_library(L);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "tlua.cli");
  int status = lua_pcall(L, 1, 1, 0);
  if (status == 0) {
    lua_createtable(L, argc, 1);
    for (int i = 0; i < argc; i++) {
      lua_pushstring(L, argv[i]);
      lua_rawseti(L, -2, i);
    }
    lua_newtable(L);
    luaL_register(L, NULL, primitives);
    status = lua_pcall(L, 2, 1, 0);
  }
  int code = 1;
  if (status == 0) code = (int)lua_tointeger(L, -1);
  else fprintf(stderr, "tlua: %s\n", lua_tostring(L, -1));
  lua_close(L);
  return code;
}
