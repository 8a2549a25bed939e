/* backend.c: finding backends, device names. */
#include "backend/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/device.h"
#include "backend/plugin.h"
#include "core/error.h"

const tl_backend *tl_backends[TL_DEVICE_KINDS] = {&tl_cpu_backend, NULL, &tl_meta_backend};
static char cuda_missing[512];

/* dlopen's reason as a sentence that says what to do. */
static void explain_missing(const char *file, bool sim, const char *reason) {
  const char *library = strstr(reason, ": cannot open shared object file");
  int length = library == NULL ? 0 : (int)(library - reason);
  if (library != NULL && strstr(reason, file) != NULL)
    snprintf(cuda_missing, sizeof cuda_missing, "%s was not built: %s", file,
             sim ? "the simulator needs NVIDIA's headers (scripts/setup --cuda brings them)"
                 : "the CUDA backend needs nvcc (scripts/setup --cuda brings it)");
  else if (library != NULL)
    snprintf(
        cuda_missing, sizeof cuda_missing,
        "%s needs %.*s, which is not installed: scripts/setup --cuda brings NVIDIA's libraries, or name their folder "
        "in LD_LIBRARY_PATH",
        file, length, reason);
  else snprintf(cuda_missing, sizeof cuda_missing, "%s cannot be opened: %s", file, reason);
}

static bool tf32;

void tl_allow_tf32(bool on) {
  tf32 = on;
  if (tl_backends[1] != NULL) tl_backends[1]->accelerator->allow_tf32(on);
}

bool tl_tf32_allowed(void) { return tf32; }

/* The CUDA plug-in. TLUA_CUDA=sim takes the simulator's, TLUA_CUDA=sim-check the one that also checks every access of a
 * kernel. Tried once; the reason for a failure is kept. */
static const tl_backend *open_cuda(void) {
  if (tl_backends[1] != NULL || cuda_missing[0] != '\0') return tl_backends[1];
  const char *choice = getenv("TLUA_CUDA"), *ranges = getenv("TLUA_NVTX"), *why = "", *file = "libtlua-cuda.so";
  bool sim = choice != NULL && (strcmp(choice, "sim") == 0 || strcmp(choice, "sim-check") == 0);
  if (sim) file = strcmp(choice, "sim") == 0 ? "libtlua-cudasim.so" : "libtlua-cudasim-check.so";
  tl_backend_plugin_fn *plugin = (tl_backend_plugin_fn *)tl_plugin_symbol(file, "tl_backend_plugin", &why);
  if (plugin == NULL) {
    explain_missing(file, sim, why);
    return NULL;
  }
  const tl_backend *b = plugin(TL_PLUGIN_ABI, tl_plugin_host_table(), &why);
  if (b == NULL) {
    snprintf(cuda_missing, sizeof cuda_missing, "%s: %s", file, why);
    return NULL;
  }
  if (ranges != NULL && strcmp(ranges, "1") == 0) tl_ranges = b->accelerator;
  b->accelerator->allow_tf32(tf32);
  return tl_backends[1] = b;
}

tl_status tl_backend_open(tl_device device, const tl_backend **out) {
  int kind = device >> 8, index = device & 255;
  if (kind < 0 || kind >= TL_DEVICE_KINDS || (kind != 1 && index != 0))
    return TL_FAIL(TL_ERR_DEVICE, "device", "there is no device number %d", device);
  const tl_backend *b = kind == 1 ? open_cuda() : tl_backends[kind];
  if (b == NULL) return TL_FAIL(TL_ERR_DEVICE, "device", "%s", cuda_missing);
  int count = b->device_count();
  if (index >= count)
    return TL_FAIL(TL_ERR_DEVICE, "device", "%s:%d was asked for, there %s %d %s device%s (the first is %s:0)", b->name,
                   index, count == 1 ? "is" : "are", count, b->name, count == 1 ? "" : "s", b->name);
  if (b->accelerator != NULL) TL_TRY(b->accelerator->open(index));
  *out = b;
  return TL_OK;
}

tl_status tl_device_parse(const char *name, tl_device *device) {
  tl_device d;
  if (strcmp(name, "cpu") == 0) {
    d = TL_CPU;
  } else if (strcmp(name, "meta") == 0) {
    d = TL_META;
  } else if (strncmp(name, "cuda", 4) == 0 && (name[4] == '\0' || name[4] == ':')) {
    char *end = NULL;
    long index = name[4] == '\0' ? 0 : strtol(name + 5, &end, 10);
    bool digits = name[4] == '\0' || (name[5] >= '0' && name[5] <= '9' && *end == '\0' && index < 256);
    if (!digits) return TL_FAIL(TL_ERR_DEVICE, "device", "'%s' has no device index (write \"cuda:0\")", name);
    d = TL_CUDA + (int)index;
  } else {
    return TL_FAIL(TL_ERR_DEVICE, "device", "there is no device '%s' (\"cpu\", \"cuda\", \"cuda:1\" ..., \"meta\")",
                   name);
  }
  const tl_backend *b;
  TL_TRY(tl_backend_open(d, &b));
  *device = d;
  return TL_OK;
}

tl_status tl_device_name(tl_device device, char *buffer, size_t bytes) {
  if (device == TL_CPU || device == TL_META) snprintf(buffer, bytes, "%s", tl_backend_of(device)->name);
  else snprintf(buffer, bytes, "cuda:%d", device & 255);
  return TL_OK;
}

int tl_device_count(const char *kind, const char **why) {
  const tl_backend *b = strcmp(kind, "cuda") == 0 ? open_cuda() : NULL;
  if (strcmp(kind, "cpu") == 0) b = &tl_cpu_backend;
  if (strcmp(kind, "meta") == 0) b = &tl_meta_backend;
  if (why != NULL) *why = b == NULL ? (strcmp(kind, "cuda") == 0 ? cuda_missing : "no such kind of device") : NULL;
  return b == NULL ? 0 : b->device_count();
}
