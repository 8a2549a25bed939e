/* main.c: runs the planted faults and their clean twins (selftest.h). selftest [-v] [part of a name] */
#define _GNU_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "selftest.h"

enum { FAULT_EXIT = 66, SECONDS = 60 };

static sim_case *cases;

void sim_add_case(sim_case *c) {
  c->next = cases;
  cases = c;
}

static void set_environment(const char *settings) {
  char copy[512], *rest = copy;
  snprintf(copy, sizeof copy, "%s", settings);
  for (char *one; (one = strsep(&rest, " ")) != NULL;) {
    char *value = strchr(one, '=');
    if (value == NULL) continue;
    *value++ = '\0';
    setenv(one, value, 1);
  }
}

/* Runs a case in a child; what it wrote to stderr is in `text`, its wait status returned. */
static int run(const sim_case *c, const char *order, char *text, size_t bytes) {
  int ends[2];
  if (pipe(ends) != 0) abort();
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 2);
    close(ends[0]);
    close(ends[1]);
    alarm(SECONDS);
    set_environment(order);
    set_environment(c->environment);
    c->run();
    exit(0);
  }
  close(ends[1]);
  size_t n = 0;
  for (ssize_t got; (got = read(ends[0], text + n, bytes - 1 - n)) > 0;) n += (size_t)got;
  text[n] = '\0';
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

static bool as_expected(const sim_case *c, int status, const char *text) {
  if (c->kind == NULL) return WIFEXITED(status) && WEXITSTATUS(status) == 0 && text[0] == '\0';
  char start[128];
  snprintf(start, sizeof start, "tlua-sim: %s: ", c->kind);
  const char *said = strstr(text, start);
  return WIFEXITED(status) && WEXITSTATUS(status) == FAULT_EXIT && said != NULL && strstr(said, c->text) != NULL;
}

int main(int argc, char **argv) {
  static const char *const orders[] = {"TLUA_SIM_ORDER=forward", "TLUA_SIM_ORDER=reverse",
                                       "TLUA_SIM_ORDER=random TLUA_SIM_SEED=1",
                                       "TLUA_SIM_ORDER=random TLUA_SIM_SEED=2"};
  bool verbose = argc > 1 && strcmp(argv[1], "-v") == 0;
  const char *part = argc > 1 + verbose ? argv[1 + verbose] : "";
  int runs = 0, wrong = 0;
  unsetenv("TLUA_SIM_FAULTS");
  for (const sim_case *c = cases; c != NULL; c = c->next) {
    if (strstr(c->name, part) == NULL) continue;
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
      static char text[8192];
      int status = run(c, orders[i], text, sizeof text);
      bool ok = as_expected(c, status, text);
      runs++;
      wrong += !ok;
      if (!ok) {
        printf("WRONG %s (%s): expected %s%s%s, it ", c->name, orders[i], c->kind == NULL ? "no fault" : c->kind,
               c->text[0] == '\0' ? "" : ": ... ", c->text);
        if (WIFSIGNALED(status)) printf("died of signal %d, saying\n  %s\n", WTERMSIG(status), text);
        else printf("ended with exit code %d, saying\n  %s\n", WEXITSTATUS(status), text);
      } else if (verbose) {
        printf("ok %s (%s)\n%s%s", c->name, orders[i], text[0] == '\0' ? "" : "  ", text);
      }
    }
  }
  printf("%d runs, %d wrong\n", runs, wrong);
  return wrong != 0 || runs == 0;
}
