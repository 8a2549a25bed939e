/* interrupt.h: Ctrl-C while Lua code runs. */
#ifndef TLUA_INTERRUPT_H
#define TLUA_INTERRUPT_H

#include <stdbool.h>

#include <lua.h>

/* From now on the first SIGINT becomes the Lua error "interrupted", raised at the next engine operation or, in
 * interpreted code, at the next instruction; the second one kills the process, as does the first in a compiled loop
 * that neither calls an operation nor ends. System calls are interrupted (EINTR), so that a blocked read ends, too. */
void tlua_arm_interrupt(lua_State *L);

/* SIGINT has its former meaning again. Returns whether one came since tlua_arm_interrupt(); forgets it. */
bool tlua_disarm_interrupt(void);

#endif
