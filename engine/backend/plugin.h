/* plugin.h: opening shared objects that link nothing of the engine. */
#ifndef TL_BACKEND_PLUGIN_H
#define TL_BACKEND_PLUGIN_H

#include "backend/backend.h"

/* What every plug-in is given. */
const tl_plugin_host *tl_plugin_host_table(void);

/* The symbol of a shared object that lies beside this library, or wherever the system looks. NULL: *why says what is
 * wrong, until the next call of this thread. The object stays open. */
void *tl_plugin_symbol(const char *file, const char *symbol, const char **why);

#endif
