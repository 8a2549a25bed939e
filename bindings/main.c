/* main.c: the command line of tlua. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "library.h"

int main(int argc, char **argv) {
  lua_State *L = luaL_newstate();
  if (L == NULL) {
    fprintf(stderr, "tlua: no memory for a Lua state\n");
    return 1;
  }
  luaL_openlibs(L);
  tlua_install_library(L);
  lua_newtable(L);
  for (int i = 0; i < argc; i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i);
  }
  lua_setglobal(L, "arg");
  /* the command line itself is read in Lua: bindings/lua/tlua/cli.lua */
  lua_getglobal(L, "require");
  lua_pushliteral(L, "tlua.cli");
  int status = lua_pcall(L, 1, 1, 0);
  if (status == 0) status = lua_pcall(L, 0, 1, 0);
  if (status != 0) {
    fprintf(stderr, "tlua: %s\n", lua_tostring(L, -1));
    lua_close(L);
    return 1;
  }
  int code = (int)lua_tointeger(L, -1);
  lua_close(L);
  return code;
}
