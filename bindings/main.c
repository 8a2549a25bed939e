/* main.c: the program. It makes a Lua state and hands the command line to bindings/lua/tlua/cli.lua. */
#include <stdio.h>

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
  lua_getglobal(L, "require");
  lua_pushliteral(L, "tlua.cli");
  int status = lua_pcall(L, 1, 1, 0);
  if (status == 0) {
    lua_createtable(L, argc, 1);
    for (int i = 0; i < argc; i++) {
      lua_pushstring(L, argv[i]);
      lua_rawseti(L, -2, i);
    }
    status = lua_pcall(L, 1, 1, 0);
  }
  int code = 1;
  if (status == 0) code = (int)lua_tointeger(L, -1);
  else fprintf(stderr, "tlua: %s\n", lua_tostring(L, -1));
  lua_close(L);
  return code;
}
