/* reader.h: lines for the REPL. */
#ifndef TLUA_READER_H
#define TLUA_READER_H

#include <stdio.h>

#include <lua.h>

/* Pushes a reader of lines from `in`, with prompts and editing on `out`; both stay the caller's and must outlive it. Its
 * methods (Lua):
 *   reader:line(prompt, complete) -> the line; nil at the end of the input; false when Ctrl-C came instead.
 *     complete(text before the cursor) -> text to insert, list of candidates to show (or nil)
 *   reader:remember(entry)    adds a statement to the history that the arrow keys show
 *   reader:write(text)        to `out`, at once
 *   reader:terminal()         is it a terminal with editing?
 *   reader:width()            its columns
 *   reader:close()            leaves the streams alone from now on: no editing any more */
void tlua_push_reader(lua_State *L, FILE *in, FILE *out);

/* What reader:close() does, for the one at a stack index. */
void tlua_close_reader(lua_State *L, int index);

#endif
