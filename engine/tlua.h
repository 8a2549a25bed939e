/* tlua.h: the public C API of the tlua engine, and the only header that bindings and host programs read.
 *
 * Conventions
 * - Every function that can fail returns a tl_status (TL_OK = 0); results leave through out-pointers, which are
 *   written only on success. tl_last_error() describes the newest failure of the calling thread.
 * - A tensor that leaves through an out-pointer carries one reference, to be dropped with tl_tensor_free().
 *   Arguments are borrowed. A failed call leaves its arguments as they were.
 * - Dims and indices are 0-based here and negatives count from the end (-1 is the last). Language bindings that count
 *   from 1 call tl_error_index_base(1), so that messages speak the user's numbers.
 * - Sizes are int64_t; shapes have at most TL_MAX_DIMS dims; zero-size and 0-d tensors are legal everywhere.
 * - A tensor handle belongs to one thread at a time.
 *
 * The FFI declarations of the Lua binding are generated from this file by the C preprocessor (TLUA_CDEF defined).
 */
#ifndef TLUA_H
#define TLUA_H

#ifndef TLUA_CDEF
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#endif

enum { TL_ABI = 1, TL_MAX_DIMS = 8 };

#if defined(__GNUC__) && !defined(TLUA_CDEF)
#define TL_API __attribute__((visibility("default")))
#else
#define TL_API
#endif

/* ---- errors and status (engine/core/error.c) --------------------------------------------------------------------- */

#ifdef TLUA_CDEF
typedef int tl_status; /* LuaJIT boxes enums, an int stays a number */
enum {
#else
typedef enum tl_status {
#endif
  TL_OK = 0,
  TL_ERR_SHAPE,       /* sizes or dims that do not fit together */
  TL_ERR_DTYPE,       /* a dtype the operation does not take */
  TL_ERR_DEVICE,      /* tensors on different devices, or a device that is not there */
  TL_ERR_INDEX,       /* a position or a stored index out of range */
  TL_ERR_VALUE,       /* an argument out of its domain */
  TL_ERR_MEMORY,      /* no memory, even after the cache was emptied */
  TL_ERR_STATE,       /* right call, wrong moment (graph already freed, saved tensor modified, ...) */
  TL_ERR_IO,          /* the operating system refused */
  TL_ERR_FORMAT,      /* a file that is not what it claims to be */
  TL_ERR_UNSUPPORTED, /* legal, but not built (the message says what and where) */
  TL_ERR_INTERRUPT    /* tl_interrupt() was called */
#ifdef TLUA_CDEF
};
#else
} tl_status;
#endif

typedef struct tl_error {
  int code;            /* a tl_status */
  const char *op;      /* the operation, e.g. "matmul" */
  const char *message; /* one line, without the op */
  const char *file;    /* where in the engine it was noticed */
  int line;
} tl_error;

TL_API const tl_error *tl_last_error(void); /* never NULL; code is TL_OK when nothing failed yet */
TL_API void tl_clear_error(void);
TL_API void tl_error_index_base(int base); /* 0 (default) or 1: how this thread's messages count positions */
TL_API int tl_abi(void);                   /* TL_ABI of the built library */
TL_API const char *tl_version(void);       /* "0.1.0" */

/* Interrupts: async-signal-safe; the next operation on any thread fails with TL_ERR_INTERRUPT and clears the flag. */
TL_API void tl_interrupt(void);
TL_API bool tl_take_interrupt(void); /* clears the flag, for a host that stopped by itself; was it set? */

/* ---- dtypes and devices (engine/core/dtype.c, engine/backend/backend.c) ------------------------------------------ */

typedef enum tl_dtype {
  TL_FLOAT32 = 0,
  TL_FLOAT16,
  TL_BFLOAT16,
  TL_FLOAT64,
  TL_INT64,
  TL_INT32,
  TL_UINT8,
  TL_BOOL,
  TL_DTYPES /* how many there are */
} tl_dtype;

TL_API const char *tl_dtype_name(int dtype);                   /* "float32"; NULL if there is no such dtype */
TL_API tl_status tl_dtype_parse(const char *name, int *dtype); /* also "float", "double", "half", "long", "int" */
TL_API size_t tl_dtype_size(int dtype);                        /* bytes of one element */
TL_API int tl_promote(int a, int b);                           /* PyTorch's promotion of two dtypes */

typedef int tl_device; /* kind << 8 | index */
enum {
  TL_CPU = 0,
  TL_CUDA = 256, /* + device index */
  TL_META = 512, /* shapes without data: memory is counted, nothing is computed; what asks for an element fails */
};

TL_API tl_status tl_device_parse(const char *name, tl_device *device); /* "cpu", "cuda", "cuda:1"; opens the plug-in */
TL_API tl_status tl_device_name(tl_device device, char *buffer, size_t bytes);
TL_API int tl_device_count(const char *kind, const char **why); /* 0 and *why (may be NULL) when there is none */
TL_API const char *tl_cpu_kernel_set(void);                     /* "x86-64-v4", "x86-64-v3", "x86-64-v2", "generic" */
TL_API tl_status tl_set_num_threads(int n);                     /* threads of CPU kernels, n >= 1 */
TL_API int tl_get_num_threads(void);

/* ---- memory (engine/core/memory.c) -------------------------------------------------------------------------------- */

typedef struct tl_memory_stats {
  double live;       /* bytes in use by storages */
  double peak;       /* largest value of live since the last reset */
  double cached;     /* bytes held for reuse */
  double soft_limit; /* a collector should run once live passes this */
  double tensors;    /* live tensor handles, all devices */
} tl_memory_stats;

TL_API tl_status tl_memory(tl_device device, tl_memory_stats *stats);
/* An accelerator's allocator, in bytes where nothing else is said. */
typedef struct tl_memory_details {
  double allocated, allocated_peak;     /* in blocks that are in use, as they were rounded */
  double reserved, reserved_peak;       /* taken from the device */
  double largest_free;                  /* the largest cached block */
  double segments, blocks, free_blocks; /* counts */
  double device_allocations;            /* count: calls that asked the device for memory */
  double retries;                       /* count: such calls that first failed */
  double device_free, device_total;     /* what the device says */
  double pinned;                        /* host memory held for copies */
} tl_memory_details;

TL_API tl_status tl_memory_details_of(tl_device device, tl_memory_details *details); /* TL_ERR_DEVICE for the CPU */
TL_API tl_status tl_reset_peak_memory(tl_device device);
TL_API tl_status tl_empty_cache(tl_device device); /* gives cached memory back to the system */
/* Points to a flag that is 1 once live bytes passed the soft limit. A garbage-collecting host then collects and calls
 * tl_collected(), which clears the flag and moves the limit to 1.4 x what survived (32 MB at least).
 * tl_garbage_limits() sets these two numbers, and hands the former ones back: what measures memory wants no garbage. */
TL_API const int *tl_collect_flag(void);
TL_API void tl_collected(void);
TL_API void tl_garbage_limits(double *factor, double *floor);
/* The same flag asks a binding to pause: to call whoever wants to look in between two operations. tl_request_pause() is
 * async-signal-safe. */
TL_API void tl_request_pause(void);
TL_API bool tl_take_pause(void); /* was it asked for? forgets it */
/* Test harness: the k-th engine allocation from now fails (0 switches off). Returns
 * how many the harness counted since the last call. */
TL_API int64_t tl_fail_allocation(int64_t k);

/* ---- tensors (engine/core/tensor.c; values: engine/ops/value.c) ----------------------------------------------------- */

typedef struct tl_tensor tl_tensor;
typedef struct tl_generator tl_generator;

TL_API tl_status tl_empty(int ndim, const int64_t *shape, int dtype, tl_device device, tl_tensor **out);
TL_API tl_status tl_tensor_retain(tl_tensor *t, tl_tensor **out); /* the same handle with one more reference */
TL_API void tl_tensor_free(tl_tensor *t);                         /* drops one reference; NULL is fine; never fails */
/* t takes over value's elements, shape, dtype and device (x.data = value): every holder of the handle sees them. Its
 * gradient is converted along with it, or dropped when the shape changes. TL_ERR_STATE if an operation computed t. */
TL_API tl_status tl_set_data(tl_tensor *t, tl_tensor *value);
TL_API void tl_tensor_release_storage(
    tl_tensor *t); /* Lua's t:free(): gives the bytes back now; the handle becomes empty (0 elements) */
TL_API int tl_ndim(const tl_tensor *t);
TL_API int tl_dtype_of(const tl_tensor *t);
TL_API tl_device tl_device_of(const tl_tensor *t);
TL_API double tl_size(const tl_tensor *t, int d);   /* 0 <= d < ndim, unchecked beyond that: NaN */
TL_API double tl_stride(const tl_tensor *t, int d); /* in elements */
TL_API double tl_numel(const tl_tensor *t);
TL_API double tl_version_of(const tl_tensor *t); /* counts in-place changes of the storage */
TL_API bool tl_is_contiguous(const tl_tensor *t);
TL_API bool tl_same_storage(const tl_tensor *a, const tl_tensor *b);
TL_API void *tl_data(const tl_tensor *t); /* first element; host memory for CPU tensors */
TL_API tl_status tl_item(const tl_tensor *t,
                         double *value); /* a one-element tensor's value; any NaN as the plain one */
TL_API tl_status tl_get(const tl_tensor *t, int n, const int64_t *index, double *value);
/* Copies all elements, row-major, as doubles (n must be numel), any NaN as the plain one: printing, tolist. */
TL_API tl_status tl_to_doubles(const tl_tensor *t, int64_t n, double *values);
/* A host buffer of `count` doubles, row-major, becomes a tensor: nested Lua tables. */
TL_API tl_status tl_from_doubles(int ndim, const int64_t *shape, int dtype, tl_device device, const double *values,
                                 tl_tensor **out);
/* A copy of host memory that holds row-major elements of `dtype`. */
TL_API tl_status tl_from_memory(int ndim, const int64_t *shape, int dtype, tl_device device, const void *data,
                                tl_tensor **out);

/* ---- accelerators (engine/backend/device.c): TL_ERR_DEVICE for the CPU --------------------------------------------- */

typedef struct tl_device_properties {
  char name[256];
  double major, minor; /* compute capability */
  double multiprocessors, warp;
  double total_memory, shared_memory, l2_cache; /* bytes; shared: the most of one block */
} tl_device_properties;

TL_API tl_status tl_device_properties_of(tl_device device, tl_device_properties *properties);
/* Waits for all work of the device. Operations return when their work was given to it; what kernels found wrong (an id
 * out of range) is reported here, or by the next call that gives values to the host. */
TL_API tl_status tl_synchronize(tl_device device); /* the CPU's is always done */

/* May float32 products and convolutions of a CUDA device round their factors to TF32, which its matrix units take? Off at
 * first; may be said before there is a device. */
TL_API void tl_allow_tf32(bool on);
TL_API bool tl_tf32_allowed(void);
/* A named range on the time line of NVIDIA's profilers; they nest. TLUA_NVTX=1 opens ranges for backward nodes and (in Lua)
 * modules. */
TL_API void tl_range_push(const char *name);
TL_API void tl_range_pop(void);

/* Work of one stream runs in order, that of different ones at the same time. Each thread has a current stream a device,
 * at first the device's own, which all threads share. */
typedef struct tl_stream tl_stream;
typedef struct tl_event tl_event;
TL_API tl_status tl_stream_new(tl_device device, bool urgent, tl_stream **out);
TL_API void tl_stream_free(tl_stream *s); /* its work goes on; NULL is fine */
TL_API tl_device tl_stream_device(const tl_stream *s);
TL_API tl_status tl_stream_current(tl_device device, tl_stream **out); /* a handle on it */
/* s becomes the current stream (NULL: the device's own). *former, if wanted, is a new handle for the one before. */
TL_API tl_status tl_stream_use(tl_device device, tl_stream *s, tl_stream **former);
TL_API tl_status tl_stream_query(tl_stream *s, bool *done);
TL_API tl_status tl_stream_synchronize(tl_stream *s);
TL_API tl_status tl_stream_wait(tl_stream *s,
                                tl_event *e); /* later work of s waits for e; not recorded yet: for nothing */
TL_API tl_status tl_stream_wait_stream(tl_stream *s, tl_stream *before); /* ... for what the other one holds now */
/* t's memory is used by work on s, which is not the stream that was current when t was made: freed, it is not reused
 * before that work is done. */
TL_API tl_status tl_record_stream(tl_tensor *t, tl_stream *s);

/* A copy of a CPU tensor in pinned memory, from which the device copies by itself (unrecorded); t itself if it lies there. */
TL_API tl_status tl_pin_memory(tl_tensor *t, tl_tensor **out);
TL_API bool tl_is_pinned(const tl_tensor *t);

TL_API tl_status tl_event_new(bool timing, tl_event **out);
TL_API void tl_event_free(tl_event *e); /* NULL is fine */
TL_API tl_status tl_event_record(tl_event *e, tl_stream *s);
TL_API tl_status tl_event_query(tl_event *e, bool *done); /* true when it was never recorded */
TL_API tl_status tl_event_synchronize(tl_event *e);
/* Milliseconds between two events with timing, both done. */
TL_API tl_status tl_event_elapsed(tl_event *from, tl_event *to, double *milliseconds);

/* ---- recorded steps (engine/train/graph.c) ------------------------------------------------------------------------- */

/* From begin to end, this thread's work on the device's current stream is recorded instead of run; replay then runs it all
 * with one call, on the same memory: new input is copied into the tensors that were used. What was allocated meanwhile, and
 * what was in use, stays as long as the graph. Random numbers and optimizers go on as if the step were made anew; changed
 * options (lr) of optimizers count. Whatever needs the host meanwhile (values, copies from it, an optimizer's first step)
 * is TL_ERR_STATE. end with keep = false, or its failure, throws the recording away: the graph is freed, *g = NULL. */
typedef struct tl_graph tl_graph;
TL_API tl_status tl_graph_begin(tl_device device, tl_graph **out);
TL_API tl_status tl_graph_end(tl_graph **g, bool keep);
TL_API tl_status tl_graph_replay(tl_graph *g);
TL_API void tl_graph_free(tl_graph *g); /* NULL is fine */

/* ---- creation (engine/ops/create.c) ------------------------------------------------------------------------------- */

TL_API tl_status tl_full(int ndim, const int64_t *shape, double value, int dtype, tl_device device, tl_tensor **out);
TL_API tl_status tl_arange(double first, double last, double step, int dtype, tl_device device, tl_tensor **out);
TL_API tl_status tl_linspace(double first, double last, int64_t n, int dtype, tl_device device, tl_tensor **out);
TL_API tl_status tl_eye(int64_t rows, int64_t columns, int dtype, tl_device device, tl_tensor **out);
TL_API tl_status tl_fill_(tl_tensor *t, double value);

/* ---- random numbers (engine/core/random.c, engine/ops/random.c): Philox4x32-10, Salmon et al. 2011 --------------- */

TL_API tl_status tl_generator_new(double seed, tl_generator **out);
TL_API void tl_generator_free(tl_generator *g);
TL_API tl_status tl_generator_seed(tl_generator *g, double seed); /* g = NULL: this thread's default generator */
TL_API tl_status tl_generator_state(tl_generator *g, double *seed, double *offset);
TL_API tl_status tl_generator_set_state(tl_generator *g, double seed, double offset);
/* In-place fills; g = NULL is the default generator. Element i gets the i-th number, whatever the strides or threads. */
TL_API tl_status tl_uniform_(tl_tensor *t, double low, double high, tl_generator *g); /* [low, high) */
TL_API tl_status tl_normal_(tl_tensor *t, double mean, double std, tl_generator *g);
TL_API tl_status tl_randint_(tl_tensor *t, double low, double high, tl_generator *g); /* low .. high-1 */
TL_API tl_status tl_bernoulli_(tl_tensor *t, double p, tl_generator *g);
TL_API tl_status tl_randperm(int64_t n, int dtype, tl_device device, tl_generator *g, tl_tensor **out); /* 0-based */
/* n draws from rows of weights (.., C), with or without replacement: int64 (.., n) */
TL_API tl_status tl_multinomial(const tl_tensor *weights, int64_t n, bool replacement, tl_generator *g,
                                tl_tensor **out);
/* y = x * mask / (1-p) in training, x otherwise (Srivastava et al. 2014) */
TL_API tl_status tl_dropout(tl_tensor *x, double p, bool training, tl_generator *g, tl_tensor **out);

/* ---- views and copies (engine/ops/view.c, engine/ops/copy.c) ------------------------------------------------------ */

TL_API tl_status tl_view(tl_tensor *t, int ndim, const int64_t *shape, tl_tensor **out); /* one size may be -1 */
TL_API tl_status tl_reshape(tl_tensor *t, int ndim, const int64_t *shape,
                            tl_tensor **out); /* view if possible, else copy */
TL_API tl_status tl_permute(tl_tensor *t, int n, const int *dims, tl_tensor **out);
TL_API tl_status tl_transpose(tl_tensor *t, int a, int b, tl_tensor **out);
TL_API tl_status tl_flatten(tl_tensor *t, int first, int last, tl_tensor **out);
TL_API tl_status tl_squeeze(tl_tensor *t, int d, tl_tensor **out); /* a dim that is not 1 stays */
TL_API tl_status tl_squeeze_all(tl_tensor *t, tl_tensor **out);
TL_API tl_status tl_unsqueeze(tl_tensor *t, int d, tl_tensor **out);
TL_API tl_status tl_expand(tl_tensor *t, int ndim, const int64_t *shape, tl_tensor **out); /* -1 keeps a size */
TL_API tl_status tl_select(tl_tensor *t, int d, int64_t i, tl_tensor **out);
TL_API tl_status tl_narrow(tl_tensor *t, int d, int64_t first, int64_t length, tl_tensor **out);
TL_API tl_status tl_slice(tl_tensor *t, int d, int64_t first, int64_t end, int64_t step,
                          tl_tensor **out); /* end excluded, step >= 1 */
TL_API tl_status tl_detach(tl_tensor *t, tl_tensor **out);
TL_API tl_status tl_contiguous(tl_tensor *t, tl_tensor **out); /* the same handle retained, or a copy */
TL_API tl_status tl_clone(tl_tensor *t, tl_tensor **out);
TL_API tl_status tl_to(tl_tensor *t, int dtype, tl_device device, tl_tensor **out); /* retained when nothing changes */
TL_API tl_status tl_copy_(tl_tensor *dst, tl_tensor *src);                          /* broadcasts, converts */
/* The same two, but a copy from pinned memory to a device returns at once: src must stay as it is until it is done. */
TL_API tl_status tl_to_async(tl_tensor *t, int dtype, tl_device device, tl_tensor **out);
TL_API tl_status tl_copy_async_(tl_tensor *dst, tl_tensor *src);

/* ---- pointwise (engine/ops/pointwise.c): one row of ops.def each --------------------------------------------------- */
/* unary  tl_NAME(x, out), tl_NAME_(x); with parameters tl_NAME(x, p, q, out)
 * binary tl_NAME(a, b, out), tl_NAME_(a, b), tl_NAME_scalar(a, s, out), tl_NAME_scalar_(a, s), tl_NAME_rscalar(s, b, out)
 * A scalar with an integral value does not promote an integer tensor. */
#define TL_UNARY(name, kind, f, df, saves)                   \
  TL_API tl_status tl_##name(tl_tensor *x, tl_tensor **out); \
  TL_API tl_status tl_##name##_(tl_tensor *x);
#define TL_UNARY1(name, kind, f, df, saves)                            \
  TL_API tl_status tl_##name(tl_tensor *x, double p, tl_tensor **out); \
  TL_API tl_status tl_##name##_(tl_tensor *x, double p);
#define TL_UNARY2(name, kind, f, df, saves)                                      \
  TL_API tl_status tl_##name(tl_tensor *x, double p, double q, tl_tensor **out); \
  TL_API tl_status tl_##name##_(tl_tensor *x, double p, double q);
#define TL_BINARY(name, kind, f, da, db, saves)                                 \
  TL_API tl_status tl_##name(tl_tensor *a, tl_tensor *b, tl_tensor **out);      \
  TL_API tl_status tl_##name##_(tl_tensor *a, tl_tensor *b);                    \
  TL_API tl_status tl_##name##_scalar(tl_tensor *a, double s, tl_tensor **out); \
  TL_API tl_status tl_##name##_scalar_(tl_tensor *a, double s);                 \
  TL_API tl_status tl_##name##_rscalar(double s, tl_tensor *b, tl_tensor **out);
#include "ops/ops.def"

TL_API tl_status tl_add_scaled(tl_tensor *a, tl_tensor *b, double alpha, tl_tensor **out); /* a + alpha * b */
TL_API tl_status tl_add_scaled_(tl_tensor *a, tl_tensor *b, double alpha);
TL_API tl_status tl_addcmul(tl_tensor *a, tl_tensor *b, tl_tensor *c, double value,
                            tl_tensor **out); /* a + value*b*c */
TL_API tl_status tl_addcdiv(tl_tensor *a, tl_tensor *b, tl_tensor *c, double value,
                            tl_tensor **out); /* a + value*b/c */
TL_API tl_status tl_addcmul_(tl_tensor *a, tl_tensor *b, tl_tensor *c, double value);
TL_API tl_status tl_addcdiv_(tl_tensor *a, tl_tensor *b, tl_tensor *c, double value);
TL_API tl_status tl_lerp(tl_tensor *a, tl_tensor *b, double weight, tl_tensor **out); /* a + weight*(b-a) */
TL_API tl_status tl_where(tl_tensor *cond, tl_tensor *a, tl_tensor *b, tl_tensor **out);
TL_API tl_status tl_masked_fill(tl_tensor *x, tl_tensor *mask, double value, tl_tensor **out);
TL_API tl_status tl_masked_fill_(tl_tensor *x, tl_tensor *mask, double value);

/* ---- reductions (engine/ops/reduce.c) ------------------------------------------------------------------------------ */
/* dims: n of them; n = 0 with dims = NULL reduces everything. keepdim keeps reduced dims with size 1.
 * Sums of integers are int64; mean, var, std, norm, logsumexp need a floating dtype. */

TL_API tl_status tl_sum(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out);
TL_API tl_status tl_mean(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out);
TL_API tl_status tl_prod(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out);
TL_API tl_status tl_var(tl_tensor *x, int n, const int *dims, double correction, bool keepdim, tl_tensor **out);
TL_API tl_status tl_std(tl_tensor *x, int n, const int *dims, double correction, bool keepdim, tl_tensor **out);
TL_API tl_status tl_norm(tl_tensor *x, double p, int n, const int *dims, bool keepdim,
                         tl_tensor **out); /* p may be inf, 0 */
TL_API tl_status tl_logsumexp(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out);
TL_API tl_status tl_amax(tl_tensor *x, int n, const int *dims, bool keepdim,
                         tl_tensor **out); /* nan wins; ties share the gradient */
TL_API tl_status tl_amin(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out);
TL_API tl_status tl_all(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out);
TL_API tl_status tl_any(tl_tensor *x, int n, const int *dims, bool keepdim, tl_tensor **out);
/* values and 0-based int64 ids of the first extreme along d */
TL_API tl_status tl_max_dim(tl_tensor *x, int d, bool keepdim, tl_tensor **values, tl_tensor **ids);
TL_API tl_status tl_min_dim(tl_tensor *x, int d, bool keepdim, tl_tensor **values, tl_tensor **ids);
TL_API tl_status tl_argmax(tl_tensor *x, int d, bool keepdim, tl_tensor **out);
TL_API tl_status tl_argmin(tl_tensor *x, int d, bool keepdim, tl_tensor **out);
TL_API tl_status tl_argmax_all(tl_tensor *x, tl_tensor **out); /* over the flattened tensor */
TL_API tl_status tl_argmin_all(tl_tensor *x, tl_tensor **out);
TL_API tl_status tl_cumsum(tl_tensor *x, int d, tl_tensor **out);
TL_API tl_status tl_allclose(tl_tensor *a, tl_tensor *b, double rtol, double atol, bool equal_nan, bool *result);
TL_API tl_status tl_equal(tl_tensor *a, tl_tensor *b, bool *result); /* same shape and all elements equal */
TL_API tl_status tl_sum_to(tl_tensor *x, int ndim, const int64_t *shape, tl_tensor **out); /* undoes a broadcast */

/* ---- indexing and joining (engine/ops/index.c, join.c, sort.c) ----------------------------------------------------- */

TL_API tl_status tl_index_select(tl_tensor *x, int d, tl_tensor *ids, tl_tensor **out); /* ids 1-d integer */
TL_API tl_status tl_gather(tl_tensor *x, int d, tl_tensor *ids, tl_tensor **out);       /* ids like out */
TL_API tl_status tl_scatter_add(tl_tensor *x, int d, tl_tensor *ids, tl_tensor *src, tl_tensor **out);
TL_API tl_status tl_scatter_add_(tl_tensor *x, int d, tl_tensor *ids, tl_tensor *src);
TL_API tl_status tl_index_add_(tl_tensor *x, int d, tl_tensor *ids, tl_tensor *src, double alpha);
TL_API tl_status tl_masked_select(tl_tensor *x, tl_tensor *mask, tl_tensor **out); /* 1-d */
TL_API tl_status tl_nonzero(tl_tensor *x, tl_tensor **out);                        /* int64 (n, ndim) */
TL_API tl_status tl_cat(int n, tl_tensor *const *tensors, int d, tl_tensor **out);
TL_API tl_status tl_stack(int n, tl_tensor *const *tensors, int d, tl_tensor **out);
TL_API tl_status tl_tile(tl_tensor *x, int n, const int64_t *repeats, tl_tensor **out);
TL_API tl_status tl_repeat_interleave(tl_tensor *x, int64_t repeats, int d, tl_tensor **out);
TL_API tl_status tl_flip(tl_tensor *x, int n, const int *dims, tl_tensor **out);
TL_API tl_status tl_triu(tl_tensor *x, int64_t diagonal, tl_tensor **out);
TL_API tl_status tl_tril(tl_tensor *x, int64_t diagonal, tl_tensor **out);
TL_API tl_status tl_sort(tl_tensor *x, int d, bool descending, tl_tensor **values,
                         tl_tensor **ids); /* stable, nan last */
TL_API tl_status tl_topk(tl_tensor *x, int64_t k, int d, bool largest, bool sorted, tl_tensor **values,
                         tl_tensor **ids);
TL_API tl_status tl_one_hot(tl_tensor *ids, int64_t classes, tl_tensor **out); /* classes = -1: largest id + 1 */

/* ---- matrices (engine/ops/matmul.c, einsum.c) ---------------------------------------------------------------------- */

TL_API tl_status tl_matmul(tl_tensor *a, tl_tensor *b,
                           tl_tensor **out); /* PyTorch's rules: 1-d, 2-d, broadcast batches */
TL_API tl_status tl_mm(tl_tensor *a, tl_tensor *b, tl_tensor **out);
TL_API tl_status tl_bmm(tl_tensor *a, tl_tensor *b, tl_tensor **out);
TL_API tl_status tl_addmm(tl_tensor *c, tl_tensor *a, tl_tensor *b, double beta, double alpha, tl_tensor **out);
TL_API tl_status tl_dot(tl_tensor *a, tl_tensor *b, tl_tensor **out);
TL_API tl_status tl_outer(tl_tensor *a, tl_tensor *b, tl_tensor **out);
TL_API tl_status tl_einsum(const char *equation, int n, tl_tensor *const *tensors, tl_tensor **out);
/* y = x w^T + b: x (.., in), w (out, in), b (out) or NULL, y (.., out) */
TL_API tl_status tl_linear(tl_tensor *x, tl_tensor *w, tl_tensor *b, tl_tensor **out);
/* tl_gelu_tanh of that: one kernel on CUDA in float16 and bfloat16 */
TL_API tl_status tl_linear_gelu(tl_tensor *x, tl_tensor *w, tl_tensor *b, tl_tensor **out);

/* ---- convolution and pooling (engine/ops/conv.c, pool.c) ----------------------------------------------------------- */
/* n spatial dims (1 or 2): x (N, C, L..), w (O, C/groups, K..), b (O) or NULL */

TL_API tl_status tl_conv(tl_tensor *x, tl_tensor *w, tl_tensor *b, int n, const int64_t *stride, const int64_t *padding,
                         const int64_t *dilation, int64_t groups, tl_tensor **out);
/* w (C, O/groups, KH, KW) */
TL_API tl_status tl_conv_transpose2d(tl_tensor *x, tl_tensor *w, tl_tensor *b, const int64_t *stride,
                                     const int64_t *padding, const int64_t *output_padding, const int64_t *dilation,
                                     int64_t groups, tl_tensor **out);
TL_API tl_status tl_max_pool2d(tl_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                               const int64_t *dilation, bool ceil_mode, tl_tensor **out);
TL_API tl_status tl_avg_pool2d(tl_tensor *x, const int64_t *kernel, const int64_t *stride, const int64_t *padding,
                               bool ceil_mode, bool count_include_pad, tl_tensor **out);
TL_API tl_status tl_adaptive_avg_pool2d(tl_tensor *x, int64_t height, int64_t width, tl_tensor **out);

/* ---- normalisation (engine/ops/norm.c) ----------------------------------------------------------------------------- */

/* Ioffe & Szegedy 2015. x (N, C, ..); w, b (C), each may be NULL; running_mean, running_var (C) or both NULL. In training
 * the running statistics move by `momentum` (the new value's weight; the variance is the unbiased one); one value per
 * channel is TL_ERR_SHAPE then. Without running statistics, eval normalises with those of the batch, too. */
TL_API tl_status tl_batch_norm(tl_tensor *x, tl_tensor *w, tl_tensor *b, tl_tensor *running_mean,
                               tl_tensor *running_var, bool training, double momentum, double eps, tl_tensor **out);
TL_API tl_status tl_layer_norm(tl_tensor *x, int n, const int64_t *shape, tl_tensor *w, tl_tensor *b, double eps,
                               tl_tensor **out); /* over the last n dims, which must have this shape */
TL_API tl_status tl_group_norm(tl_tensor *x, int64_t groups, tl_tensor *w, tl_tensor *b, double eps, tl_tensor **out);
TL_API tl_status tl_rms_norm(tl_tensor *x, int n, const int64_t *shape, tl_tensor *w, double eps, tl_tensor **out);

/* ---- softmax, losses, embedding, attention (engine/ops/softmax.c, loss.c, embedding.c, attention.c) ----------------- */

TL_API tl_status tl_softmax(tl_tensor *x, int d, tl_tensor **out);
TL_API tl_status tl_log_softmax(tl_tensor *x, int d, tl_tensor **out);

typedef enum tl_reduction { TL_REDUCE_NONE = 0, TL_REDUCE_MEAN, TL_REDUCE_SUM, TL_REDUCE_BATCHMEAN } tl_reduction;
/* x and target have one shape: anything else is TL_ERR_SHAPE (PyTorch broadcasts and only warns). Gradients go to both.
 * weight and pos_weight broadcast to x, may be NULL and get no gradient; only kl_div knows TL_REDUCE_BATCHMEAN. */
TL_API tl_status tl_mse_loss(tl_tensor *x, tl_tensor *target, int reduction, tl_tensor **out);
TL_API tl_status tl_l1_loss(tl_tensor *x, tl_tensor *target, int reduction, tl_tensor **out);
TL_API tl_status tl_smooth_l1_loss(tl_tensor *x, tl_tensor *target, double beta, int reduction, tl_tensor **out);
TL_API tl_status tl_huber_loss(tl_tensor *x, tl_tensor *target, double delta, int reduction, tl_tensor **out);
TL_API tl_status tl_bce_loss(tl_tensor *x, tl_tensor *target, tl_tensor *weight, int reduction, tl_tensor **out);
TL_API tl_status tl_bce_with_logits_loss(tl_tensor *x, tl_tensor *target, tl_tensor *weight, tl_tensor *pos_weight,
                                         int reduction, tl_tensor **out);
TL_API tl_status tl_kl_div_loss(tl_tensor *x, tl_tensor *target, bool log_target, int reduction, tl_tensor **out);
/* x (N, C, ..) log-probabilities, target int64 (N, ..); weight (C) or NULL */
TL_API tl_status tl_nll_loss(tl_tensor *x, tl_tensor *target, tl_tensor *weight, int64_t ignore_index, int reduction,
                             tl_tensor **out);
/* x (N, C, ..) or (C) logits, target int64 (N, ..) labels, or probabilities of x's shape. Mean divides by the sum of
 * weight[label] over the labels that are not ignored; if all are, loss and gradient are 0. A label that is no class and
 * not ignore_index is TL_ERR_INDEX and names its row. */
TL_API tl_status tl_cross_entropy(tl_tensor *x, tl_tensor *target, tl_tensor *weight, int64_t ignore_index,
                                  double label_smoothing, int reduction, tl_tensor **out);
/* tl_cross_entropy of the logits x w^T + b, of which only `chunk` rows exist at a time (0: a number that suits the sizes and
 * the device): x (.., C), linear_weight (V, C), linear_bias (V) or NULL, target integer (..). Of a mean or a sum the
 * gradients are made with the loss. Inside autocast the logits have the low type and the loss is float32.
 * (engine/ops/linear_cross_entropy.c) */
TL_API tl_status tl_linear_cross_entropy(tl_tensor *x, tl_tensor *linear_weight, tl_tensor *target,
                                         tl_tensor *linear_bias, tl_tensor *weight, int64_t ignore_index,
                                         double label_smoothing, int reduction, int64_t chunk, tl_tensor **out);
/* Rotary position embedding: x (.., T, D), cos and sin (T, R <= D/2). Pairs of elements of a row, (i, i + R) or, interleaved,
 * (2i, 2i + 1), turn by the angles of the row's position; elements from 2R on stay. No gradient goes to cos and sin.
 * (engine/ops/rope.c) */
TL_API tl_status tl_rope(tl_tensor *x, tl_tensor *cos, tl_tensor *sin, bool interleaved, tl_tensor **out);
/* w (V, D), ids integer (..): out (.., D); padding_idx = -1: none (its row gets no gradient) */
TL_API tl_status tl_embedding(tl_tensor *w, tl_tensor *ids, int64_t padding_idx, tl_tensor **out);

/* softmax(scale q k^T + mask) v without ever storing the weights (Vaswani et al. 2017; Dao et al. 2022). q (.., H, T, D),
 * k (.., H, S, D), v (.., H, S, V), of one floating dtype and any strides: out (.., H, T, V). mask: NULL, bool (true: takes
 * part) or floating (added), broadcasting to (.., H, T, S), without a gradient. is_causal: query t sees keys 0..t, besides
 * what the mask hides. scale: nan is 1 / sqrt(D). enable_gqa: k and v may have fewer heads, which divide q's: head h reads
 * head h / (H / Hk). dropout_p drops weights with numbers of g (NULL: the default generator), one for each place of (.., H,
 * T, S). A row that sees nothing gives 0, and gradients 0. */
TL_API tl_status tl_scaled_dot_product_attention(tl_tensor *q, tl_tensor *k, tl_tensor *v, tl_tensor *mask,
                                                 double dropout_p, bool is_causal, double scale, bool enable_gqa,
                                                 tl_generator *g, tl_tensor **out);

/* ---- autograd (engine/autograd/tape.c, inplace.c, hook.c) --------------------------------------------------------- */

typedef struct tl_walk tl_walk;

TL_API bool tl_requires_grad(const tl_tensor *t);
TL_API tl_status tl_set_requires_grad(tl_tensor *t, bool on); /* leaves of a floating dtype only */
TL_API bool tl_is_leaf(const tl_tensor *t);
TL_API const char *tl_grad_fn_name(const tl_tensor *t);        /* NULL for a leaf */
TL_API tl_status tl_grad(const tl_tensor *t, tl_tensor **out); /* *out = NULL when there is none */
TL_API tl_status tl_set_grad(tl_tensor *t, tl_tensor *grad);   /* NULL clears */
TL_API tl_status tl_retain_grad(tl_tensor *t);                 /* a non-leaf keeps .grad, too */
TL_API bool tl_grad_enabled(void);
TL_API bool tl_set_grad_enabled(bool on); /* per thread; returns the former value */
TL_API bool tl_set_detect_anomaly(bool on);

/* One call walks the tape. grad may be NULL for a one-element t. On TL_OK with *walk = NULL it is done; otherwise the
 * host has to serve a hook or a custom function: tl_walk_event(), then tl_walk_reply(), until *walk is NULL. */
TL_API tl_status tl_backward(tl_tensor *t, tl_tensor *grad, bool retain_graph, tl_walk **walk);
/* Gradients of outputs with respect to inputs, without touching .grad; results come from tl_walk_grads(). */
TL_API tl_status tl_autograd_grad(int n, tl_tensor *const *outputs, tl_tensor *const *grads, int m,
                                  tl_tensor *const *inputs, bool retain_graph, tl_walk **walk);
typedef struct tl_walk_event {
  int kind; /* 0 done, 1 hook: grads[0] -> at most one new gradient, 2 function: grads (one an output) -> one an input */
  int id;   /* the host's number for the hook or function */
  int count;         /* how many grads are offered */
  tl_tensor **grads; /* borrowed until the reply; entries may be NULL */
  int replies;       /* how many the host must hand back */
} tl_walk_event;
TL_API tl_status tl_walk_next(tl_walk *walk, tl_walk_event *event);
TL_API tl_status tl_walk_reply(tl_walk *walk, int n,
                               tl_tensor *const *grads);                 /* NULL entries: no gradient / unchanged */
TL_API tl_status tl_walk_grads(tl_walk *walk, int n, tl_tensor **grads); /* after kind 0; entries may be NULL */
TL_API void tl_walk_free(tl_walk *walk);

/* Hooks on t's gradient; the host numbers them. */
TL_API tl_status tl_register_hook(tl_tensor *t, int id);
TL_API tl_status tl_remove_hook(tl_tensor *t, int id);
/* A custom function computed outputs from inputs outside the tape (grad off); from now on its backward is event `id`.
 * saved tensors come back from tl_function_saved() with their versions checked. */
TL_API tl_status tl_function_record(const char *name, int id, int n, tl_tensor *const *inputs, int m,
                                    tl_tensor *const *outputs, int k, tl_tensor *const *saved, bool *recorded);
TL_API tl_status tl_function_saved(tl_walk *walk, int k, tl_tensor **saved);
TL_API int
tl_function_dead(void); /* the number of a function or hook whose node (leaf) is gone, -1 when none is waiting */

/* ---- mixed precision (engine/ops/autocast.c): Micikevicius et al. 2018, with PyTorch's op lists -------------------- */

/* Inside a block, operations on tensors of this kind of device (0 cpu, 1 cuda) convert floating arguments: matmul, mm,
 * bmm, addmm, einsum, linear and convolutions to `dtype` (float16 or bfloat16); softmax, log_softmax, the losses,
 * layer_norm, rms_norm, group_norm, norm, sum, prod, cumsum, logsumexp, exp, expm1, log*, pow, rsqrt, reciprocal,
 * softplus, tan, sinh, cosh, asin, acos to float32; dot and scatter_add to the widest. cat, stack, addcmul and addcdiv
 * promote anyway. float64 and in-place operations are left alone; bce_loss is an error. Conversions are recorded.
 * Blocks belong to a thread and nest; enabled = false opens one without conversions. *former goes to tl_autocast_leave(), in
 * reverse order. A parameter is converted once in the outermost block. Backward does not convert. */
TL_API tl_status tl_autocast_enter(int kind, int dtype, bool enabled, int *former);
TL_API void tl_autocast_leave(int former);
TL_API bool tl_autocast_enabled(int kind);
TL_API int tl_autocast_dtype(int kind); /* of the innermost block; outside bfloat16 (cpu), float16 (cuda) */

/* ---- traces (engine/autograd/trace.c) ------------------------------------------------------------------------------ */

/* The operations that this thread records while a trace runs, in order: how a model is wired. Tensors are held, so their
 * addresses stay told apart; an in-place operation has its target among inputs and outputs. */
typedef struct tl_trace tl_trace;
TL_API tl_status tl_trace_begin(tl_trace **out); /* TL_ERR_STATE when one runs */
TL_API tl_status tl_trace_end(tl_trace *trace);  /* nothing is added from now on */
TL_API void tl_trace_free(tl_trace *trace);
TL_API int tl_trace_length(const tl_trace *trace);            /* also while it runs */
TL_API const char *tl_trace_op(const tl_trace *trace, int i); /* "conv2d"; NULL past the end */
TL_API int tl_trace_inputs(const tl_trace *trace, int i);
TL_API int tl_trace_outputs(const tl_trace *trace, int i);
/* Tensor k of operation i: its inputs, then its outputs. NULL for an absent one. */
TL_API tl_status tl_trace_tensor(const tl_trace *trace, int i, int k, tl_tensor **out);

/* ---- gradients of a parameter list (engine/train/clip.c) ---------------------------------------------------------- */

TL_API tl_status tl_clip_grad_norm_(int n, tl_tensor *const *params, double max_norm, double norm_type,
                                    bool error_if_nonfinite, double *norm);
/* The norm as a 0-d float64 tensor: where all gradients are on one GPU it stays there, and nothing waits for it. */
TL_API tl_status tl_clip_grad_norm_tensor_(int n, tl_tensor *const *params, double max_norm, double norm_type,
                                           tl_tensor **norm);
TL_API tl_status tl_clip_grad_value_(int n, tl_tensor *const *params, double value);
TL_API tl_status tl_zero_grad(int n, tl_tensor *const *params, bool set_to_nil);

#include "train/train.h"
#include "data/data.h"
#include "dist/dist.h"

#ifndef TLUA_CDEF
#ifdef __cplusplus
}
#endif
#endif
#endif
