/* reader.c: lines for the REPL: edited with libedit on a terminal, as they come from anything else.
 *
 * libedit is opened when the first terminal asks for it: a script never pays for it, and where it is missing lines are
 * read without editing. */
#define _GNU_SOURCE /* wcwidth() */
#include "reader.h"

#include <dlfcn.h>
#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include <lauxlib.h>

#include "interrupt.h"

#define READER "tlua.reader"
#define HISTORY_SIZE 2000

typedef struct reader {
  FILE *in, *out;
  EditLine *edit; /* NULL: plain lines */
  History *history;
  lua_State *L; /* during line() */
  int complete; /* its stack index, 0: none */
  const char *prompt;
} reader;

/* ---- libedit ---- */

static struct {
  bool tried, found;
  __typeof__(el_init) *init;
  __typeof__(el_end) *end;
  __typeof__(el_set) *set;
  __typeof__(el_gets) *gets;
  __typeof__(el_get) *get;
  __typeof__(el_line) *line;
  __typeof__(el_insertstr) *insert;
  __typeof__(el_source) *source;
  __typeof__(el_resize) *resize;
  __typeof__(history_init) *history_init;
  __typeof__(history_end) *history_end;
  __typeof__(history) *history;
} lib;

static bool open_library(void) {
  if (lib.tried) return lib.found;
  lib.tried = true;
  void *so = dlopen("libedit.so.2", RTLD_NOW | RTLD_LOCAL);
  if (so == NULL) return false;
  bool all = true;
#define FIND(field, symbol) all = (*(void **)&lib.field = dlsym(so, symbol)) != NULL && all
  FIND(init, "el_init");
  FIND(end, "el_end");
  FIND(set, "el_set");
  FIND(gets, "el_gets");
  FIND(get, "el_get");
  FIND(line, "el_line");
  FIND(insert, "el_insertstr");
  FIND(source, "el_source");
  FIND(resize, "el_resize");
  FIND(history_init, "history_init");
  FIND(history_end, "history_end");
  FIND(history, "history");
#undef FIND
  if (all) { /* which bytes are one character; without a locale, UTF-8's */
    const char *found = setlocale(LC_CTYPE, "");
    if (found == NULL || strcmp(nl_langinfo(CODESET), "ANSI_X3.4-1968") == 0) setlocale(LC_CTYPE, "C.UTF-8");
  }
  return lib.found = all;
}

static reader *of(EditLine *edit) {
  reader *r = NULL;
  lib.get(edit, EL_CLIENTDATA, &r);
  return r;
}

static char *prompt_of(EditLine *edit) { return (char *)of(edit)->prompt; }

/* ---- signals while a line is edited ---- */

static volatile sig_atomic_t resized, suspended, continued;

static void on_signal(int number) {
  if (number == SIGWINCH) resized = 1;
  else if (number == SIGTSTP) suspended = 1;
  else continued = 1;
}

static const int handled[] = {SIGWINCH, SIGTSTP, SIGCONT};
enum { HANDLED = sizeof handled / sizeof handled[0] };

static void catch_signals(struct sigaction *former) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal; /* no SA_RESTART: read() ends with EINTR */
  sigemptyset(&action.sa_mask);
  resized = suspended = continued = 0;
  for (int i = 0; i < HANDLED; i++) {
    sigaction(handled[i], &action, &former[i]);
    if (handled[i] == SIGTSTP && former[i].sa_handler == SIG_IGN) sigaction(SIGTSTP, &former[i], NULL);
  }
}

static void release_signals(const struct sigaction *former) {
  for (int i = 0; i < HANDLED; i++) sigaction(handled[i], &former[i], NULL);
}

static int terminal_width(const reader *r) {
  struct winsize size;
  return ioctl(fileno(r->out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* Columns of the prompt and the text before the cursor. */
static int columns_before(reader *r) {
  const LineInfo *at = lib.line(r->edit);
  int columns = (int)strlen(r->prompt);
  mbstate_t state;
  memset(&state, 0, sizeof state);
  for (const char *p = at->buffer; p < at->cursor;) {
    wchar_t c;
    size_t used = mbrtowc(&c, p, (size_t)(at->cursor - p), &state);
    if (used == 0 || used == (size_t)-1 || used == (size_t)-2) break;
    int width = wcwidth(c);
    columns += width > 0 ? width : 0;
    p += used;
  }
  return columns;
}

/* The terminal has wrapped the line anew: it is erased where it stands now, and written again. */
static void resize(reader *r) {
  int up = columns_before(r) / terminal_width(r);
  fputc('\r', r->out);
  if (up > 0) fprintf(r->out, "\033[%dA", up);
  fputs("\033[J", r->out);
  fflush(r->out);
  lib.resize(r->edit);
  lib.set(r->edit, EL_REFRESH, NULL);
}

/* Ctrl-Z gives the terminal back as it was; whoever comes back to the program finds the line again. */
static void suspend(reader *r) {
  struct sigaction usual, own;
  lib.set(r->edit, EL_PREP_TERM, 0);
  memset(&usual, 0, sizeof usual);
  usual.sa_handler = SIG_DFL;
  sigemptyset(&usual.sa_mask);
  sigaction(SIGTSTP, &usual, &own);
  raise(SIGTSTP);
  sigaction(SIGTSTP, &own, NULL);
  continued = 1;
}

static void attend(reader *r) {
  if (suspended) {
    suspended = 0;
    suspend(r);
  }
  if (continued) { /* the shell may have set the terminal */
    continued = 0;
    lib.set(r->edit, EL_PREP_TERM, 0);
    lib.set(r->edit, EL_PREP_TERM, 1);
    lib.resize(r->edit);
    lib.set(r->edit, EL_REFRESH, NULL);
  }
  if (resized) {
    resized = 0;
    resize(r);
  }
}

/* ---- the editor ---- */

/* One character. 0 ends the line: the end of the input, or Ctrl-C. libedit's own function would go on after a signal. */
static int next_character(EditLine *edit, wchar_t *c) {
  reader *r = of(edit);
  char bytes[8];
  size_t n = 0;
  for (;;) {
    if (tlua_interrupt_came()) return 0;
    attend(r);
    ssize_t got = read(fileno(r->in), bytes + n, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    n++;
    mbstate_t state;
    memset(&state, 0, sizeof state);
    size_t used = mbrtowc(c, bytes, n, &state);
    if (used == (size_t)-2 && n < sizeof bytes) continue; /* a part of a character */
    if (used == (size_t)-1 || used == (size_t)-2) *c = (unsigned char)bytes[0];
    return 1;
  }
}

static unsigned char complete(EditLine *edit, int key) {
  (void)key;
  reader *r = of(edit);
  lua_State *L = r->L;
  if (r->complete == 0) return CC_ERROR;
  const LineInfo *at = lib.line(edit);
  lua_pushvalue(L, r->complete);
  lua_pushlstring(L, at->buffer, (size_t)(at->cursor - at->buffer));
  if (lua_pcall(L, 1, 2, 0) != 0) {
    lua_pop(L, 1);
    return CC_ERROR;
  }
  const char *text = lua_tostring(L, -2), *list = lua_tostring(L, -1);
  unsigned char result = CC_ERROR;
  if (text != NULL && text[0] != '\0' && lib.insert(edit, text) == 0) result = CC_REFRESH;
  if (list != NULL) {
    fprintf(r->out, "\n%s\n", list);
    fflush(r->out);
    result = CC_REDISPLAY;
  }
  lua_pop(L, 2);
  return result;
}

static bool open_editor(reader *r) {
  if (!isatty(fileno(r->in)) || !isatty(fileno(r->out)) || !open_library()) return false;
  const char *terminal = getenv("TERM");
  if (terminal == NULL || terminal[0] == '\0' || strcmp(terminal, "dumb") == 0) return false;
  HistEvent event;
  r->history = lib.history_init();
  r->edit = r->history == NULL ? NULL : lib.init("tlua", r->in, r->out, stderr);
  if (r->edit == NULL) return false;
  lib.history(r->history, &event, H_SETSIZE, HISTORY_SIZE);
  lib.history(r->history, &event, H_SETUNIQUE, 1);
  lib.set(r->edit, EL_CLIENTDATA, r);
  lib.set(r->edit, EL_PROMPT, prompt_of);
  lib.set(r->edit, EL_EDITOR, "emacs");
  lib.set(r->edit, EL_HIST, lib.history, r->history);
  lib.set(r->edit, EL_GETCFN, next_character);
  lib.set(r->edit, EL_ADDFN, "tlua-complete", "completes names", complete);
  lib.set(r->edit, EL_BIND, "^I", "tlua-complete", NULL);
  lib.set(r->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
  lib.set(r->edit, EL_BIND, "\\e[1;5C", "em-next-word", NULL);
  lib.set(r->edit, EL_BIND, "\\e[1;5D", "ed-prev-word", NULL);
  lib.source(r->edit, NULL); /* the user's ~/.editrc */
  return true;
}

static void close_editor(reader *r) {
  if (r->edit != NULL) lib.end(r->edit);
  if (r->history != NULL) lib.history_end(r->history);
  r->edit = NULL;
  r->history = NULL;
}

/* ---- the Lua object ---- */

static reader *check_reader(lua_State *L) { return luaL_checkudata(L, 1, READER); }

/* The line without its end on the stack, or nil. */
static void push_line(lua_State *L, const char *text, size_t n) {
  if (text == NULL) {
    lua_pushnil(L);
    return;
  }
  while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) n--;
  lua_pushlstring(L, text, n);
}

static void edited_line(lua_State *L, reader *r) {
  int count = 0;
  struct sigaction former[HANDLED];
  lib.resize(r->edit); /* it may have changed since the last line */
  catch_signals(former);
  const char *text = lib.gets(r->edit, &count);
  release_signals(former);
  push_line(L, count > 0 ? text : NULL, count > 0 ? (size_t)count : 0);
}

static void plain_line(lua_State *L, reader *r) {
  fputs(r->prompt, r->out);
  fflush(r->out);
  char *text = NULL;
  size_t room = 0;
  errno = 0;
  ssize_t n = getline(&text, &room, r->in);
  if (n < 0) clearerr(r->in); /* a terminal goes on after Ctrl-D, a signal is no error */
  push_line(L, n < 0 ? NULL : text, n < 0 ? 0 : (size_t)n);
  free(text);
}

static int line(lua_State *L) {
  reader *r = check_reader(L);
  r->prompt = luaL_checkstring(L, 2);
  r->complete = lua_isfunction(L, 3) ? 3 : 0;
  r->L = L;
  tlua_arm_interrupt(L, TLUA_INTERRUPT_NOTED);
  if (r->edit != NULL) edited_line(L, r);
  else plain_line(L, r);
  if (tlua_disarm_interrupt()) {
    fputc('\n', r->out);
    lua_pushboolean(L, 0);
  }
  return 1;
}

static int remember(lua_State *L) {
  reader *r = check_reader(L);
  HistEvent event;
  if (r->history != NULL) lib.history(r->history, &event, H_ENTER, luaL_checkstring(L, 2));
  return 0;
}

static int write_text(lua_State *L) {
  reader *r = check_reader(L);
  size_t n;
  const char *text = luaL_checklstring(L, 2, &n);
  fwrite(text, 1, n, r->out);
  fflush(r->out);
  return 0;
}

static int terminal(lua_State *L) {
  lua_pushboolean(L, check_reader(L)->edit != NULL);
  return 1;
}

/* The columns of the terminal, 80 where it is none. */
static int width(lua_State *L) {
  lua_pushinteger(L, terminal_width(check_reader(L)));
  return 1;
}

static int collect(lua_State *L) {
  close_editor(check_reader(L));
  return 0;
}

void tlua_close_reader(lua_State *L, int index) { close_editor(lua_touserdata(L, index)); }

void tlua_push_reader(lua_State *L, FILE *in, FILE *out) {
  static const luaL_Reg methods[] = {
      {"line", line},   {"remember", remember}, {"write", write_text}, {"terminal", terminal},
      {"width", width}, {"close", collect},     {NULL, NULL}};
  reader *r = lua_newuserdata(L, sizeof *r);
  *r = (reader){.in = in, .out = out};
  if (luaL_newmetatable(L, READER)) {
    lua_newtable(L);
    luaL_register(L, NULL, methods);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, collect);
    lua_setfield(L, -2, "__gc");
  }
  lua_setmetatable(L, -2);
  if (!open_editor(r)) close_editor(r);
}
