/* host.c: tlua inside a C program (tlua_host.h). */
#include "tlua_host.h"

#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "library.h"
#include "reader.h"

struct tlua_host {
  lua_State *L;
  bool own;
  int call; /* registry: functions of tlua/host.lua */
  int wrap;
  int address;
  int running; /* calls inside one another */
  volatile sig_atomic_t interrupted;
  char *error;
};

static const char *new_failed = "";

/* ---- failures ---- */

static int failed(tlua_host *host, const char *text) {
  free(host->error);
  host->error = strdup(text == NULL ? "an error that is no text" : text);
  return 1;
}

/* The message on top of the stack. */
static int failed_lua(tlua_host *host) {
  failed(host, lua_tostring(host->L, -1));
  lua_pop(host->L, 1);
  return 1;
}

const char *tlua_host_error(const tlua_host *host) {
  if (host == NULL) return new_failed;
  return host->error == NULL ? "" : host->error;
}

/* ---- life ---- */

static int keep(lua_State *L, const char *name) {
  lua_getfield(L, -1, name);
  return luaL_ref(L, LUA_REGISTRYINDEX);
}

/* Runs protected: the library is loaded and its helpers are kept. */
static int open_library(lua_State *L) {
  tlua_host *host = lua_touserdata(L, 1);
  lua_getglobal(L, "require");
  lua_pushvalue(L, -1);
  lua_pushliteral(L, "tlua");
  lua_call(L, 1, 1);
  if (host->own) lua_setglobal(L, "tl");
  else lua_pop(L, 1);
  lua_pushliteral(L, "tlua.host");
  lua_call(L, 1, 1);
  host->call = keep(L, "call");
  host->wrap = keep(L, "wrap");
  host->address = keep(L, "address");
  return 0;
}

tlua_host *tlua_host_new(lua_State *L) {
  tlua_host *host = calloc(1, sizeof *host);
  new_failed = "no memory";
  if (host == NULL) return NULL;
  host->own = L == NULL;
  host->L = L != NULL ? L : luaL_newstate();
  host->call = host->wrap = host->address = LUA_NOREF;
  if (host->L == NULL) {
    free(host);
    return NULL;
  }
  if (host->own) luaL_openlibs(host->L);
  tlua_install_library(host->L);
  if (lua_cpcall(host->L, open_library, host) == 0) return host;
  static char text[256];
  const char *message = lua_tostring(host->L, -1);
  snprintf(text, sizeof text, "%s", message == NULL ? "the Lua library cannot be opened" : message);
  new_failed = text;
  lua_pop(host->L, 1);
  tlua_host_close(host);
  return NULL;
}

void tlua_host_close(tlua_host *host) {
  if (host == NULL) return;
  luaL_unref(host->L, LUA_REGISTRYINDEX, host->call);
  luaL_unref(host->L, LUA_REGISTRYINDEX, host->wrap);
  luaL_unref(host->L, LUA_REGISTRYINDEX, host->address);
  if (host->own) lua_close(host->L);
  free(host->error);
  free(host);
}

lua_State *tlua_host_state(tlua_host *host) { return host->L; }

/* ---- running code ---- */

/* Calls the function below n arguments on the stack; the message of an error has a traceback. */
static int run(tlua_host *host, int n) {
  lua_State *L = host->L;
  if (host->running == 0 && host->interrupted) { /* when nothing ran, or too late */
    lua_sethook(L, NULL, 0, 0);
    tl_take_interrupt();
  }
  if (host->running == 0) host->interrupted = 0;
  lua_rawgeti(L, LUA_REGISTRYINDEX, host->call);
  lua_insert(L, -(n + 2));
  host->running++;
  int status = lua_pcall(L, n + 1, 1, 0);
  host->running--;
  if (status != 0) return failed_lua(host);
  if (lua_toboolean(L, -1)) return failed_lua(host); /* call() gives the message of an error */
  lua_pop(L, 1);
  return 0;
}

int tlua_host_run_file(tlua_host *host, const char *path, int argc, const char *const *argv) {
  lua_State *L = host->L;
  if (!lua_checkstack(L, argc + 8)) return failed(host, "too many arguments");
  if (luaL_loadfile(L, path) != 0) return failed_lua(host);
  lua_createtable(L, argc, 1);
  lua_pushstring(L, path);
  lua_rawseti(L, -2, 0);
  for (int i = 0; i < argc; i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_pushliteral(L, "arg");
  lua_insert(L, -2);
  lua_rawset(L, LUA_GLOBALSINDEX); /* whatever watches over the globals */
  for (int i = 0; i < argc; i++) lua_pushstring(L, argv[i]);
  return run(host, argc);
}

int tlua_host_run_string(tlua_host *host, const char *code, const char *name) {
  char chunk[128];
  snprintf(chunk, sizeof chunk, "=%s", name);
  if (luaL_loadbuffer(host->L, code, strlen(code), chunk) != 0) return failed_lua(host);
  return run(host, 0);
}

/* ---- tensors ---- */

int tlua_host_push_tensor(tlua_host *host, tl_tensor *t) {
  lua_State *L = host->L;
  tl_tensor *held;
  if (t == NULL) return failed(host, "a tensor was expected, got NULL");
  if (tl_tensor_retain(t, &held) != TL_OK) return failed(host, tl_last_error()->message);
  lua_rawgeti(L, LUA_REGISTRYINDEX, host->wrap);
  lua_pushlightuserdata(L, held);
  if (lua_pcall(L, 1, 1, 0) == 0) return 0;
  tl_tensor_free(held);
  return failed_lua(host);
}

tl_tensor *tlua_host_tensor(tlua_host *host, int index) {
  lua_State *L = host->L;
  lua_pushvalue(L, index);
  lua_rawgeti(L, LUA_REGISTRYINDEX, host->address);
  lua_insert(L, -2);
  if (lua_pcall(L, 1, 1, 0) != 0) {
    failed_lua(host);
    return NULL;
  }
  tl_tensor *t = (tl_tensor *)(uintptr_t)lua_tonumber(L, -1);
  lua_pop(L, 1);
  return t;
}

/* (name, value), (name): the globals may have metamethods that fail. */
static int set_global(lua_State *L) {
  lua_settable(L, LUA_GLOBALSINDEX);
  return 0;
}

static int get_global(lua_State *L) {
  lua_gettable(L, LUA_GLOBALSINDEX);
  return 1;
}

int tlua_host_set_tensor(tlua_host *host, const char *name, tl_tensor *t) {
  lua_State *L = host->L;
  lua_pushcfunction(L, set_global);
  lua_pushstring(L, name);
  if (tlua_host_push_tensor(host, t) != 0) {
    lua_pop(L, 2);
    return 1;
  }
  return lua_pcall(L, 2, 0, 0) != 0 ? failed_lua(host) : 0;
}

tl_tensor *tlua_host_get_tensor(tlua_host *host, const char *name) {
  lua_State *L = host->L;
  lua_pushcfunction(L, get_global);
  lua_pushstring(L, name);
  if (lua_pcall(L, 1, 1, 0) != 0) {
    failed_lua(host);
    return NULL;
  }
  tl_tensor *t = tlua_host_tensor(host, -1);
  lua_pop(L, 1);
  return t;
}

/* ---- REPL, interrupts ---- */

int tlua_host_repl(tlua_host *host, FILE *in, FILE *out) {
  lua_State *L = host->L;
  if (luaL_loadstring(L, "require('tlua.repl').run { reader = ... }") != 0) return failed_lua(host);
  tlua_push_reader(L, in, out);
  lua_pushvalue(L, -1);
  lua_insert(L, -3);
  int status = run(host, 1);
  tlua_close_reader(L, -1); /* the caller may close the streams now */
  lua_pop(L, 1);
  return status;
}

static void stop(lua_State *L, lua_Debug *activation) {
  (void)activation;
  lua_sethook(L, NULL, 0, 0);
  tl_take_interrupt();
  luaL_error(L, "interrupted");
}

void tlua_host_interrupt(tlua_host *host) {
  host->interrupted = 1;
  tl_interrupt();
  lua_sethook(host->L, stop, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}
