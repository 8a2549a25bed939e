/* runtime.c: the simulated CUDA runtime's errors, settings, devices and their properties.
 *
 * TLUA_SIM_DEVICES=n   how many GPUs there are (2; 0: cudaErrorNoDevice)
 * TLUA_SIM_DRIVER=old  every call fails with cudaErrorInsufficientDriver
 * TLUA_SIM_FAIL=k      the k-th call that can fail does; FUNCTION:k counts that function's calls only
 * TLUA_SIM_LOG=1       errors are explained on stderr
 * TLUA_SIM_LEAKS=1     what was not freed or destroyed is reported at exit, which is then with code 66
 * TLUA_SIM_SEED=n      orders that are left open: of threads and streams, of the algorithms that libraries offer
 * TLUA_SIM_NCCL_TIMEOUT=s  seconds after which a rank that others wait for is missed (60) */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "library.h"
#include "runtime.h"

static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local cudaError_t last_error;
static _Thread_local int current;
static _Thread_local bool in_callback;
static int devices;
static bool old_driver, log_errors, forked;
static int depth; /* of the lock */
static _Thread_local bool known_thread;
static long long calls, fail_at;
static char fail_function[64];

long long sim_setting(const char *name, long long otherwise) {
  const char *text = getenv(name);
  if (text == NULL || *text == 0) return otherwise;
  char *end;
  long long value = strtoll(text, &end, 10);
  if (*end != 0) {
    fprintf(stderr, "tlua-sim: %s=%s is not a number\n", name, text);
    exit(66);
  }
  return value;
}

static void report_leaks(void) {
  if (forked) return;
  sim_lock();
  for (int i = 0; i < devices; i++) sim_wait_device(i); /* frees that were not reached yet */
  int leaks = sim_report_handles() + sim_report_graphs() + sim_report_memory() + sim_report_objects();
  if (leaks > 0) {
    fprintf(stderr, "tlua-sim: leak: %d things were not freed\n", leaks);
    fflush(NULL);
    _exit(66);
  }
  sim_unlock();
}

static void in_child(void) { forked = true; }

static void start(void) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&lock, &attributes);
  pthread_mutexattr_destroy(&attributes);
  devices = (int)sim_setting("TLUA_SIM_DEVICES", 2);
  if (devices < 0 || devices > SIM_MAX_DEVICES) {
    fprintf(stderr, "tlua-sim: TLUA_SIM_DEVICES must be 0..%d\n", SIM_MAX_DEVICES);
    exit(66);
  }
  const char *driver = getenv("TLUA_SIM_DRIVER"), *fail = getenv("TLUA_SIM_FAIL");
  old_driver = driver != NULL && strcmp(driver, "old") == 0;
  log_errors = sim_setting("TLUA_SIM_LOG", 0) != 0;
  if (fail != NULL) {
    const char *colon = strchr(fail, ':');
    if (colon != NULL) snprintf(fail_function, sizeof fail_function, "%.*s", (int)(colon - fail), fail);
    fail_at = atoll(colon != NULL ? colon + 1 : fail);
  }
  if (sim_setting("TLUA_SIM_LEAKS", 0) != 0) atexit(report_leaks);
  pthread_atfork(NULL, NULL, in_child);
  sim_protect_start();
}

void sim_lock(void) {
  pthread_once(&once, start);
  pthread_mutex_lock(&lock);
  depth++;
  if (!known_thread) {
    known_thread = true;
    sim_protect_thread();
  }
}

void sim_unlock(void) {
  if (depth == 1) sim_open(0);
  depth--;
  pthread_mutex_unlock(&lock);
}

void sim_pause(void (*what)(void *), void *argument, bool callback) {
  int held = depth;
  sim_open(0);
  depth = 0;
  for (int i = 0; i < held; i++) pthread_mutex_unlock(&lock);
  in_callback = callback;
  what(argument);
  in_callback = false;
  for (int i = 0; i < held; i++) pthread_mutex_lock(&lock);
  depth = held;
}

int sim_current_device(void) { return current; }
int sim_devices(void) { return devices; }

int sim_call_fails(const char *function) {
  sim_lock();
  bool counts = fail_at > 0 && (fail_function[0] == 0 || strcmp(fail_function, function) == 0);
  bool fails = counts && ++calls == fail_at;
  sim_unlock();
  if (fails && log_errors) fprintf(stderr, "tlua-sim: %s is the one to fail on request\n", function);
  return fails;
}

void sim_hang_on_request(const char *function) {
  const char *name = getenv("TLUA_SIM_HANG");
  while (name != NULL && strcmp(name, function) == 0) pause();
}

/* ---- counts, for tests ---- */

static struct {
  const char *name; /* lives for ever */
  long long n;
} counts[512];

void sim_count(const char *name) {
  sim_lock();
  int i = 0;
  while (i < 511 && counts[i].name != NULL && strcmp(counts[i].name, name) != 0) i++;
  counts[i].name = name;
  counts[i].n++;
  sim_unlock();
}

__attribute__((visibility("default"))) long long tl_sim_calls(const char *part) {
  long long n = 0;
  sim_lock();
  for (int i = 0; i < 512 && counts[i].name != NULL; i++)
    if (strstr(counts[i].name, part) != NULL) n += counts[i].n;
  sim_unlock();
  return n;
}

cudaError_t sim_error(cudaError_t error, const char *format, ...) {
  last_error = error;
  if (log_errors) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "tlua-sim: %s: %s\n", cudaGetErrorName(error), text);
  }
  return error;
}

cudaError_t sim_enter(const char *function, cudaError_t failure) {
  sim_lock();
  sim_count(function);
  if (old_driver) return cudaErrorInsufficientDriver;
  if (devices == 0) return cudaErrorNoDevice;
  if (forked)
    return sim_error(cudaErrorInitializationError, "%s: in a child of a process that had used the runtime", function);
  if (in_callback) return sim_error(cudaErrorNotPermitted, "%s: called from a host function of a stream", function);
  if (failure != cudaSuccess && sim_call_fails(function)) return sim_error(failure, "%s: fails on request", function);
  return cudaSuccess;
}

cudaError_t sim_leave(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  sim_unlock();
  return error;
}

cudaError_t sim_check_device(int device) {
  if (device >= 0 && device < devices) return cudaSuccess;
  return sim_error(cudaErrorInvalidDevice, "there is no device %d of %d", device, devices);
}

void sim_bury(void *handle) {
  static void *graves[256];
  static unsigned next;
  void **grave = &graves[next++ % 256];
  free(*grave);
  *grave = handle;
}

/* ---- errors ---- */

cudaError_t CUDARTAPI cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t CUDARTAPI cudaPeekAtLastError(void) { return last_error; }

/* What the runtime says about the errors that the simulator gives; the names are the enumerators'. */
#define SIM_ERRORS(X)                                                                                                 \
  X(cudaSuccess, "no error")                                                                                          \
  X(cudaErrorInvalidValue, "invalid argument")                                                                        \
  X(cudaErrorMemoryAllocation, "out of memory")                                                                       \
  X(cudaErrorInitializationError, "initialization error")                                                             \
  X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                                  \
  X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")                      \
  X(cudaErrorInvalidDeviceFunction, "invalid device function")                                                        \
  X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                                          \
  X(cudaErrorInvalidDevice, "invalid device ordinal")                                                                 \
  X(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices")                         \
  X(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")                                              \
  X(cudaErrorPeerAccessNotEnabled, "peer access has not been enabled")                                                \
  X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                                        \
  X(cudaErrorIllegalState, "the operation cannot be performed in the present state")                                  \
  X(cudaErrorNotReady, "device not ready")                                                                            \
  X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                                              \
  X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                                         \
  X(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped")              \
  X(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region")                    \
  X(cudaErrorLaunchFailure, "unspecified launch failure")                                                             \
  X(cudaErrorNotPermitted, "operation not permitted")                                                                 \
  X(cudaErrorNotSupported, "operation not supported")                                                                 \
  X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")                            \
  X(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")                     \
  X(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences")                   \
  X(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began")                          \
  X(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")                                             \
  X(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream")                       \
  X(cudaErrorStreamCaptureImplicit, "operation would make the legacy stream depend on a capturing blocking stream")   \
  X(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream")                \
  X(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread")    \
  X(cudaErrorGraphExecUpdateFailure, "the graph update was not performed because it included changes which violated " \
                                     "constraints specific to instantiated graph update")                             \
  X(cudaErrorUnknown, "unknown error")

const char *CUDARTAPI cudaGetErrorString(cudaError_t error) {
#define X(name, text) \
  case name: return text;
  switch (error) {
    SIM_ERRORS(X)
    default: return "unrecognized error code";
  }
#undef X
}

const char *CUDARTAPI cudaGetErrorName(cudaError_t error) {
#define X(name, text) \
  case name: return #name;
  switch (error) {
    SIM_ERRORS(X)
    default: return "unrecognized error code";
  }
#undef X
}

/* ---- versions and devices ---- */

cudaError_t CUDARTAPI cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDriverGetVersion(int *version) {
  sim_lock();
  *version = old_driver ? 11040 : CUDART_VERSION;
  sim_unlock();
  return cudaSuccess;
}

static cudaError_t get_count(int *count) {
  *count = devices;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetDeviceCount(int *count) {
  *count = 0;
  SIM_API(cudaErrorUnknown, get_count(count));
}

static cudaError_t set_device(int device) {
  cudaError_t e = sim_check_device(device);
  if (e == cudaSuccess) current = device;
  return e;
}

cudaError_t CUDARTAPI cudaSetDevice(int device) { SIM_API(cudaErrorUnknown, set_device(device)); }

static cudaError_t get_device(int *device) {
  *device = current;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetDevice(int *device) { SIM_API(cudaErrorUnknown, get_device(device)); }

/* A small data-centre GPU, so that limits that our code must respect are met by small tests. */
enum {
  MULTIPROCESSORS = 4,
  THREADS_PER_MULTIPROCESSOR = 2048,
  SHARED_PER_MULTIPROCESSOR = 100 * 1024,
  REGISTERS = 65536,
  L2_BYTES = 4 << 20
};

static cudaError_t attribute(int *value, enum cudaDeviceAttr name, int device) {
  cudaError_t e = sim_check_device(device);
  if (e != cudaSuccess) return e;
  switch (name) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxBlockDimX: *value = 1024; break;
    case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = INT32_MAX; break;
    case cudaDevAttrMaxGridDimY: *value = 65535; break;
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = SIM_DEFAULT_SHARED; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = SIM_MAX_SHARED; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = SHARED_PER_MULTIPROCESSOR; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = REGISTERS; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = REGISTERS; break;
    case cudaDevAttrMultiProcessorCount: *value = MULTIPROCESSORS; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = THREADS_PER_MULTIPROCESSOR; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 8; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrL2CacheSize: *value = L2_BYTES; break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    case cudaDevAttrAsyncEngineCount: *value = 2; break;
    case cudaDevAttrConcurrentKernels: *value = 1; break;
    case cudaDevAttrUnifiedAddressing: *value = 1; break;
    case cudaDevAttrCanMapHostMemory: *value = 0; break;
    case cudaDevAttrManagedMemory: *value = 0; break;
    case cudaDevAttrPageableMemoryAccess: *value = 0; break;
    case cudaDevAttrCooperativeLaunch: *value = 0; break;
    case cudaDevAttrStreamPrioritiesSupported: *value = 1; break;
    case cudaDevAttrPciBusId: *value = device + 1; break;
    case cudaDevAttrPciDeviceId: *value = 0; break;
    case cudaDevAttrPciDomainId: *value = 0; break;
    default: return sim_error(cudaErrorNotSupported, "cudaDeviceGetAttribute: attribute %d is not modelled", (int)name);
  }
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr name, int device) {
  SIM_API(cudaErrorUnknown, attribute(value, name, device));
}

static cudaError_t properties(struct cudaDeviceProp *p, int device) {
  cudaError_t e = sim_check_device(device);
  if (e != cudaSuccess) return e;
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "simulated GPU %d", device);
  memcpy(p->uuid.bytes, "tlua simulator", 14);
  p->uuid.bytes[15] = (char)device;
  p->totalGlobalMem = sim_device_memory();
  p->sharedMemPerBlock = SIM_DEFAULT_SHARED;
  p->sharedMemPerBlockOptin = SIM_MAX_SHARED;
  p->sharedMemPerMultiprocessor = SHARED_PER_MULTIPROCESSOR;
  p->reservedSharedMemPerBlock = 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = REGISTERS;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = INT32_MAX;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->major = 8;
  p->multiProcessorCount = MULTIPROCESSORS;
  p->maxThreadsPerMultiProcessor = THREADS_PER_MULTIPROCESSOR;
  p->maxBlocksPerMultiProcessor = 32;
  p->l2CacheSize = L2_BYTES;
  p->memoryBusWidth = 256;
  p->asyncEngineCount = 2;
  p->concurrentKernels = p->unifiedAddressing = p->memoryPoolsSupported = p->streamPrioritiesSupported = 1;
  p->pciBusID = device + 1;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  SIM_API(cudaErrorUnknown, properties(p, device));
}
