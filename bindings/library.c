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

static int search(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  const char *root = getenv("TLUA_PATH");
  if (root != NULL && (strcmp(name, "tlua") == 0 || strncmp(name, "tlua.", 5) == 0) && strcmp(name, "tlua.cdef") != 0 &&
      load_file_below(L, root, name) == 1)
    return 1;
  for (const tlua_baked *b = tlua_baked_files; b->name != NULL; b++)
    if (strcmp(b->name, name) == 0) {
      if (luaL_loadbuffer(L, b->source, b->bytes, b->chunk) != 0) return lua_error(L);
      return 1;
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
