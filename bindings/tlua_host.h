/* tlua_host.h: tlua inside a C program: run Lua code, share tensors, open the REPL.
 *
 *     tlua_host *host = tlua_host_new(NULL);
 *     if (host == NULL || tlua_host_run_string(host, "model = ...", "setup") != 0) puts(tlua_host_error(host));
 *     tlua_host_close(host);
 *
 * Link libtlua-host (pkg-config tlua-host, or tlua::host after find_package(tlua)); it brings libtlua, whose header tlua.h
 * has the tensors, and LuaJIT. A host belongs to one thread at a time; only tlua_host_interrupt() may be called from
 * others. Functions that return int give 0, or another value and a message in tlua_host_error(). */
#ifndef TLUA_HOST_H
#define TLUA_HOST_H

#include <stdio.h>

#include "tlua.h"

#ifdef __cplusplus
extern "C" {
#endif

struct lua_State;
typedef struct tlua_host tlua_host;

/* tlua in an existing Lua state of LuaJIT (its standard libraries opened, made for GC64), which stays the caller's; or,
 * with NULL, in a new one. The global `tl` is set in a new state only. NULL: no memory, or a LuaJIT that does not fit. */
TL_API tlua_host *tlua_host_new(struct lua_State *L);
/* Frees the host, and its state if it made that. Tensors that the program retained stay alive. NULL is nothing. */
TL_API void tlua_host_close(tlua_host *host);

/* The newest failure: message and traceback. "" when there was none; of a NULL host: why tlua_host_new() failed. */
TL_API const char *tlua_host_error(const tlua_host *host);
TL_API struct lua_State *tlua_host_state(tlua_host *host);

/* Runs a file with its arguments in `arg` and `...`, or a string; `name` is for messages. Results are dropped. SIGINT
 * keeps the program's meaning. */
TL_API int tlua_host_run_file(tlua_host *host, const char *path, int argc, const char *const *argv);
TL_API int tlua_host_run_string(tlua_host *host, const char *code, const char *name);

/* A tensor as a Lua value on top of the state's stack: the same storage, no copy. Lua holds a reference of its own. */
TL_API int tlua_host_push_tensor(tlua_host *host, tl_tensor *t);
/* The tensor at a stack index, borrowed: it lives as long as the Lua value; tl_tensor_retain() for longer. NULL and an
 * error text when something else is there. */
TL_API tl_tensor *tlua_host_tensor(tlua_host *host, int index);
/* The same by the name of a global variable. */
TL_API int tlua_host_set_tensor(tlua_host *host, const char *name, tl_tensor *t);
TL_API tl_tensor *tlua_host_get_tensor(tlua_host *host, const char *name);

/* The REPL on two streams, with editing where they are a terminal, until the input ends or :quit. Ctrl-C interrupts the
 * code that a line runs. */
TL_API int tlua_host_repl(tlua_host *host, FILE *in, FILE *out);

/* What runs in the host stops with the error "interrupted" at its next operation or interpreted instruction; where nothing
 * runs, nothing happens. From any thread, or a signal handler: one with SA_ONSTACK and a stack by sigaltstack(), for
 * oneDNN's matrix products have no stack where the stack pointer is. Hosts that run at the same time share the engine's
 * flag: the one whose operation comes next may be the one that stops. */
TL_API void tlua_host_interrupt(tlua_host *host);

#ifdef __cplusplus
}
#endif
#endif
