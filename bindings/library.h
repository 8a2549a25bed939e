/* library.h: makes `require "tlua"` work in a Lua state. */
#ifndef TLUA_LIBRARY_H
#define TLUA_LIBRARY_H

#include <lua.h>

/* Adds a searcher for the baked modules. TLUA_PATH (a directory that holds tlua/init.lua) goes first: development. */
void tlua_install_library(lua_State *L);

#endif
