/* host.c: what tlua_host.h promises, from a program outside the tree. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tlua_host.h"

#define EXPECT(condition)                                                                         \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, tlua_host_error(host)); \
      exit(1);                                                                                    \
    }                                                                                             \
  } while (0)

static int failed_with(tlua_host *host, int status, const char *text) {
  return status != 0 && strstr(tlua_host_error(host), text) != NULL;
}

static void tensors(tlua_host *host) {
  const double values[4] = {1, 2, 3, 4};
  const int64_t shape[2] = {2, 2};
  tl_tensor *t, *kept;
  EXPECT(tl_from_doubles(2, shape, TL_FLOAT32, TL_CPU, values, &t) == TL_OK);
  EXPECT(tlua_host_set_tensor(host, "t", t) == 0);
  EXPECT(tlua_host_run_string(host, "t:mul_(10) u = t + 1", "scale") == 0);
  EXPECT(((float *)tl_data(t))[3] == 40); /* the same elements */
  tl_tensor_free(t);                      /* Lua still has one */
  EXPECT(tlua_host_run_string(host, "assert(t:sum():item() == 100)", "sum") == 0);
  tl_tensor *u = tlua_host_get_tensor(host, "u");
  EXPECT(u != NULL && tl_tensor_retain(u, &kept) == TL_OK);
  EXPECT(tlua_host_run_string(host, "t, u = nil collectgarbage() collectgarbage()", "drop") == 0);
  EXPECT(((float *)tl_data(kept))[0] == 11); /* ours */
  tl_tensor_free(kept);
  EXPECT(tlua_host_get_tensor(host, "nothing") == NULL && failed_with(host, 1, "a tensor was expected, got nil"));
}

static void errors(tlua_host *host) {
  EXPECT(failed_with(host, tlua_host_run_string(host, "local x = = 1", "typo"), "typo:1:"));
  EXPECT(failed_with(host, tlua_host_run_string(host, "tl.ones(2):matmul(tl.ones(3))", "shapes"), "shapes:1: matmul"));
  EXPECT(failed_with(host, tlua_host_run_string(host, "error({})", "object"), "table"));
  EXPECT(failed_with(host, tlua_host_run_file(host, "/nowhere.lua", 0, NULL), "/nowhere.lua"));
  EXPECT(tlua_host_run_string(host, "after = 1", "after") == 0);
}

static void files(tlua_host *host) {
  const char *arguments[] = {"one", "two"};
  FILE *f = fopen("script.lua", "w");
  fputs("assert(arg[0] == 'script.lua' and arg[2] == 'two' and select('#', ...) == 2 and (...) == 'one')", f);
  fclose(f);
  EXPECT(tlua_host_run_file(host, "script.lua", 2, arguments) == 0);
}

static void repl(tlua_host *host) {
  FILE *in = tmpfile(), *out = tmpfile();
  char text[512];
  fputs("1 + 1\nprint('printed')\nnope.x\n'last'\n", in);
  rewind(in);
  EXPECT(tlua_host_repl(host, in, out) == 0);
  rewind(out);
  text[fread(text, 1, sizeof text - 1, out)] = '\0';
  EXPECT(strstr(text, "> 2\n") != NULL && strstr(text, "> printed\n") != NULL && strstr(text, "nope") != NULL &&
         strstr(text, "> last\n") != NULL);
  fclose(in);
  fclose(out);
  EXPECT(tlua_host_run_string(host, "collectgarbage() collectgarbage()", "after the streams") == 0);

  in = tmpfile(), out = tmpfile(); /* a breakpoint reads on from the same stream */
  fputs("function f() local inside = 7; tl.breakpoint() end\nf()\ninside\n:continue\n'outside'\n", in);
  rewind(in);
  EXPECT(tlua_host_repl(host, in, out) == 0);
  rewind(out);
  text[fread(text, 1, sizeof text - 1, out)] = '\0';
  EXPECT(strstr(text, "debug> 7\n") != NULL && strstr(text, "> outside\n") != NULL);
  fclose(in);
  fclose(out);
}

/* Globals whose metamethods raise errors, as those of "strict" modules do. */
static void strict(tlua_host *host) {
  const int64_t one = 1;
  tl_tensor *t;
  EXPECT(tl_full(1, &one, 3, TL_FLOAT32, TL_CPU, &t) == TL_OK);
  EXPECT(tlua_host_run_string(host, "setmetatable(_G, {__index = error, __newindex = error})", "strict") == 0);
  EXPECT(tlua_host_get_tensor(host, "nothing") == NULL && failed_with(host, 1, ""));
  EXPECT(failed_with(host, tlua_host_set_tensor(host, "new", t), ""));
  EXPECT(failed_with(host, tlua_host_set_tensor(host, "new", NULL), "NULL"));
  files(host);
  EXPECT(tlua_host_run_string(host, "setmetatable(_G, nil)", "strict") == 0);
  tl_tensor_free(t);
}

static void *stop_soon(void *host) {
  usleep(50000);
  tlua_host_interrupt(host);
  return NULL;
}

static void interrupt(tlua_host *host) {
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, stop_soon, host) == 0);
  EXPECT(failed_with(host, tlua_host_run_string(host, "while true do local x = tl.ones(2) + 1 end", "loop"),
                     "interrupted"));
  pthread_join(thread, NULL);
  EXPECT(tlua_host_run_string(host, "after = 2", "after") == 0);
  tlua_host_interrupt(host); /* nothing runs: nothing happens */
  EXPECT(tlua_host_run_string(host, "after = tl.ones(2)", "after") == 0);
}

int main(void) {
  for (int round = 0; round < 2; round++) { /* a second one after the first is closed */
    tlua_host *host = tlua_host_new(NULL);
    EXPECT(host != NULL);
    tensors(host);
    errors(host);
    files(host);
    repl(host);
    strict(host);
    interrupt(host);
    tlua_host_close(host);
  }
  tlua_host_close(NULL);
  return 0;
}
