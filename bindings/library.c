/* library.c: a package searcher over the baked Lua sources. */
#include "library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>

#include "baked.h"
#include "native.h"

static int load_file_below(lua_State *L, const char *root, const char *name) {
  char path[4096];
  const char *file = luaL_gsub(L, name, ".", "/");
  for (int i = 0; i < 2; i++) {
    int n = snprintf(path, sizeof path, i == 0 ? "%s/%s.lua" : "%s/%s/init.lua", root, file);
    if (n < 0 || n >= (int)sizeof path) break;
    FILE *f = fopen(path, "r");
    if (f == NULL) continue;
    fclose(f);
    if (luaL_loadfile(L, path) != 0) return lua_error(L);
    return 1;
  }
  return 0;
}

/* ---- the library's globals ----
 *
 * What a user does at the prompt (`type = 5`, `table = {}`) must not break the library: its modules have the standard
 * names in a table of their own. All other names, print (which is meant to be replaced) and assignments are the user's. */

static const char environment_key;

static void push_environment(lua_State *L) {
  static const char *const standard[] = {
      "_G",       "assert",     "bit",          "collectgarbage", "coroutine", "debug",    "dofile",
      "error",    "getfenv",    "io",           "getmetatable",   "ipairs",    "jit",      "load",
      "loadfile", "loadstring", "math",         "newproxy",       "next",      "os",       "package",
      "pairs",    "pcall",      "rawequal",     "rawget",         "rawset",    "require",  "select",
      "setfenv",  "string",     "setmetatable", "table",          "tonumber",  "tostring", "type",
      "unpack",   "xpcall"};
  lua_pushlightuserdata(L, (void *)&environment_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (lua_istable(L, -1)) return;
  lua_pop(L, 1);
  lua_newtable(L);
  for (size_t i = 0; i < sizeof standard / sizeof standard[0]; i++) {
    lua_pushstring(L, standard[i]);
    lua_pushvalue(L, -1);
    lua_rawget(L, LUA_GLOBALSINDEX);
    lua_rawset(L, -3);
  }
  lua_createtable(L, 0, 2);
  lua_pushvalue(L, LUA_GLOBALSINDEX);
  lua_setfield(L, -2, "__index");
  lua_pushvalue(L, LUA_GLOBALSINDEX);
  lua_setfield(L, -2, "__newindex");
  lua_setmetatable(L, -2);
  lua_pushlightuserdata(L, (void *)&environment_key);
  lua_pushvalue(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

/* The chunk on top of the stack sees the library's globals. */
static int with_environment(lua_State *L) {
  push_environment(L);
  lua_setfenv(L, -2);
  return 1;
}

/* ---- modules ---- */

static int search(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  const char *root = getenv("TLUA_PATH");
  if (root != NULL && (strcmp(name, "tlua") == 0 || strncmp(name, "tlua.", 5) == 0) && strcmp(name, "tlua.cdef") != 0 &&
      load_file_below(L, root, name) == 1)
    return with_environment(L);
  for (const tlua_baked *b = tlua_baked_files; b->name != NULL; b++)
    if (strcmp(b->name, name) == 0) {
      if (luaL_loadbuffer(L, b->source, b->bytes, b->chunk) != 0) return lua_error(L);
      return strncmp(name, "tool:", 5) == 0 ? 1 : with_environment(L);
    }
  lua_pushfstring(L, "\n\tno module '%s' in tlua", name);
  return 1;
}

void tlua_install_library(lua_State *L) {
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "loaders");
  /* second place: after package.preload, before the file system */
  for (int i = (int)lua_objlen(L, -1); i >= 2; i--) {
    lua_rawgeti(L, -1, i);
    lua_rawseti(L, -2, i + 1);
  }
  lua_pushcfunction(L, search);
  lua_rawseti(L, -2, 2);
  lua_pop(L, 1);
  lua_getfield(L, -1, "preload");
  lua_pushcfunction(L, tlua_open_native);
  lua_setfield(L, -2, "tlua.native");
  lua_pop(L, 2);
}
