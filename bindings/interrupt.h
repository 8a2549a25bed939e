/* interrupt.h: Ctrl-C while Lua code runs. */
#ifndef TLUA_INTERRUPT_H
#define TLUA_INTERRUPT_H

#include <stdbool.h>

#include <lua.h>

typedef enum tlua_interrupt_mode {
  /* The first SIGINT becomes the Lua error "interrupted", raised at the next engine operation or, in interpreted code, at
   * the next instruction; the second one kills the process, as does the first in a compiled loop that neither calls an
   * operation nor ends. */
  TLUA_INTERRUPT_STOPS,
  /* The first one calls the function that tlua_on_pause() set, between two operations or instructions, and the code goes
   * on when that returns; a second one that comes before is as the first above. */
  TLUA_INTERRUPT_PAUSES,
  /* Only tlua_disarm_interrupt() tells: for code that reads from a terminal. */
  TLUA_INTERRUPT_NOTED,
  /* The first SIGINT or SIGTERM only leaves its number for tlua_deferred_signal(): for code that ends at a moment of its
   * own choice. The second one kills. A SIGINT has come for the level below, too. */
  TLUA_INTERRUPT_DEFERRED
} tlua_interrupt_mode;

/* What SIGINT means from now on for code that runs in L. System calls are interrupted (EINTR), so that a blocked read
 * ends, too. Levels nest: each needs its tlua_disarm_interrupt(). Raises an error where they are too many. */
void tlua_arm_interrupt(lua_State *L, tlua_interrupt_mode mode);

/* Ends the newest level. Returns whether a SIGINT came in it; forgets it. */
bool tlua_disarm_interrupt(void);

/* Has one come in the newest level? */
bool tlua_interrupt_came(void);

/* Is there a level? Without one the signals are a host program's own. */
bool tlua_interrupt_armed(void);

/* The signal that came in the newest level of TLUA_INTERRUPT_DEFERRED; 0: none. */
int tlua_deferred_signal(void);

/* Until the next call: when the other side of this socket is gone, what runs is interrupted as by SIGINT under
 * TLUA_INTERRUPT_STOPS. -1: none. Returns whether that of the last call went away. */
bool tlua_watch(lua_State *L, int fd);

/* Calls the function that tlua_on_pause() set; its error is the caller's. */
void tlua_pause(lua_State *L);

/* The function on top of the stack (popped; nil: none) is called by TLUA_INTERRUPT_PAUSES. */
void tlua_on_pause(lua_State *L);

#endif
