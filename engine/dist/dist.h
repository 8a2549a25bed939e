/* dist.h: the part of the public API about several processes (ranks) that train together. Included by tlua.h.
 *
 * Ranks are counted from 0. Every rank calls the same collectives in the same order; they run one after the other on a
 * thread of their own, so that a backward pass goes on meanwhile. What differs between ranks (operation, dtype, size) and
 * a rank that does not come within the timeout are errors on every rank. */
#ifndef TLUA_DIST_H
#define TLUA_DIST_H

typedef enum tl_reduce_op { TL_SUM = 0, TL_MEAN, TL_MAX, TL_MIN } tl_reduce_op;

/* Joins the other ranks. The launcher's environment says how many there are: Open MPI and Slurm's --mpi (over MPI);
 * torchrun's RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or srun without --mpi and the latter two (over TCP). Without one
 * this process is rank 0 of 1 and needs no library. timeout: seconds that a collective waits for the other ranks, > 0. */
TL_API tl_status tl_dist_init(double timeout);
/* Leaves: waits for what is queued. After a failure the other ranks are not waited for. Nothing if not initialised. */
TL_API tl_status tl_dist_destroy(void);
TL_API bool tl_dist_initialized(void);
TL_API int tl_dist_rank(void);       /* 0 before init */
TL_API int tl_dist_size(void);       /* 1 before init */
TL_API int tl_dist_local_rank(void); /* among the ranks of this machine */
/* What the launcher says, before init: rank, size, local rank of this process; false: there is no launcher. */
TL_API bool tl_dist_environment(int *rank, int *size, int *local_rank);
/* Ends this process and, through the launcher, the other ranks, without waiting for anything. */
TL_API void tl_dist_abort(int code);

/* A collective under way. */
typedef struct tl_work tl_work;
/* Waits until the result is there (for the host, or for work that follows on the device). Frees the work in any case. */
TL_API tl_status tl_work_wait(tl_work *w);
TL_API bool tl_work_done(const tl_work *w);
TL_API void tl_work_free(tl_work *w); /* instead of waiting: the collective goes on, its result is dropped */

/* t becomes the sum (mean, ...) over all ranks. Mean: floating dtypes. bool: sum and max are "any", min is "all". Any
 * strides. With `work` NULL the call waits; else *work is what to wait for, and t must stay as it is until then. */
TL_API tl_status tl_all_reduce_(tl_tensor *t, int op, tl_work **work);
TL_API tl_status tl_broadcast_(tl_tensor *t, int root, tl_work **work); /* t becomes root's */
/* *out (size, shape of t): everybody's t, by rank. It exists at once and is filled when the work is done. */
TL_API tl_status tl_all_gather(tl_tensor *t, tl_tensor **out, tl_work **work);
/* t (size * k, ..): *out (k, ..) is this rank's part of the reduction of t over all ranks. */
TL_API tl_status tl_reduce_scatter(tl_tensor *t, int op, tl_tensor **out, tl_work **work);
TL_API tl_status tl_dist_barrier(void);

/* Gradients of a list of parameters, averaged over the ranks while backward still computes others. Buckets are filled in
 * reverse order of the list: the first one of first_bytes, the others of bucket_bytes. A parameter without a gradient on
 * this rank counts as zeros. */
typedef struct tl_ddp tl_ddp;
TL_API tl_status tl_ddp_new(int n, tl_tensor *const *parameters, double first_bytes, double bucket_bytes,
                            bool find_unused, tl_ddp **out);
TL_API void tl_ddp_free(tl_ddp *d);
TL_API void tl_ddp_sync(tl_ddp *d, bool on); /* off: backward accumulates locally (no_sync) */
/* When each bucket of the last backward was launched: how many parameters had no gradient yet then. */
TL_API int tl_ddp_buckets(const tl_ddp *d);
TL_API int tl_ddp_launch(const tl_ddp *d, int bucket);

#endif
