/* plugin.c: opening shared objects that link nothing of the engine. */
#define _GNU_SOURCE /* dladdr */
#include "backend/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/memory.h"

const tl_plugin_host *tl_plugin_host_table(void) {
  static const tl_plugin_host host = {tl_vfail, tl_allocation_fails, tl_position, &tl_cpu_backend};
  return &host;
}

void *tl_plugin_symbol(const char *file, const char *symbol, const char **why) {
  Dl_info here;
  char path[4096];
  void *so = NULL;
  bool beside = false;
  if (dladdr((void *)&tl_backends, &here) != 0 && here.dli_fname != NULL) {
    const char *slash = strrchr(here.dli_fname, '/');
    int folder = slash == NULL ? 0 : (int)(slash - here.dli_fname) + 1;
    int n = snprintf(path, sizeof path, "%.*s%s", folder, here.dli_fname, file);
    beside = folder > 0 && n < (int)sizeof path && access(path, F_OK) == 0;
  }
  so = dlopen(beside ? path : file, RTLD_NOW | RTLD_LOCAL);
  void *found = so == NULL ? NULL : dlsym(so, symbol);
  if (found == NULL) *why = so == NULL ? dlerror() : "it is no plug-in of tlua";
  return found;
}
