/* native.h: the module "tlua.native": what the Lua side cannot do itself. */
#ifndef TLUA_NATIVE_H
#define TLUA_NATIVE_H

#include <lua.h>

/* lua_CFunction: pushes the module. */
int tlua_open_native(lua_State *L);

#endif
