/* group.c: joining and leaving the other ranks. */
#define _GNU_SOURCE /* dladdr */
#include "dist/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "dist/tcp/tcp.h"

tl_group tl_the_group = {.size = 1};
static bool initialized;

static bool number(const char *name, int *value) {
  const char *text = getenv(name);
  char *end;
  if (text == NULL || text[0] == '\0') return false;
  long v = strtol(text, &end, 10);
  if (*end != '\0' || v < 0 || v > 1 << 20) return false;
  *value = (int)v;
  return true;
}

/* Open MPI's mpirun; torchrun, and whoever sets its variables; Slurm; other MPIs. MASTER_ADDR says that RANK is meant:
 * under srun each node may run a torchrun. */
static const char *const launchers[][4] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_PROCID"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_RANK"},
};
enum { TORCHRUN = 1, SLURM = 2, LAUNCHERS = 4 };

/* Whose variables are set; LAUNCHERS: nobody's. */
static int launcher(int *rank, int *size, int *local_rank) {
  for (int i = 0; i < LAUNCHERS; i++)
    if (number(launchers[i][0], rank) && number(launchers[i][1], size) && getenv(launchers[i][3]) != NULL) {
      if (!number(launchers[i][2], local_rank)) *local_rank = 0;
      return i;
    }
  *rank = *local_rank = 0;
  *size = 1;
  return LAUNCHERS;
}

bool tl_dist_environment(int *rank, int *size, int *local_rank) { return launcher(rank, size, local_rank) < LAUNCHERS; }

/* Does srun tell an MPI who its ranks are (--mpi=pmix, pmi2)? */
static bool srun_serves_mpi(void) {
  return getenv("PMIX_RANK") != NULL || getenv("PMI_RANK") != NULL || getenv("PMI_FD") != NULL;
}

tl_status tl_dist_init(double timeout) {
  int rank, size, local_rank, torch_size;
  if (initialized) return TL_FAIL(TL_ERR_STATE, "dist.init", "the ranks have met already");
  if (!(timeout > 0)) return TL_FAIL(TL_ERR_VALUE, "dist.init", "timeout must be positive, got %g", timeout);
  int by = launcher(&rank, &size, &local_rank);
  if (by == LAUNCHERS && number("WORLD_SIZE", &torch_size) && torch_size > 1)
    return TL_FAIL(
        TL_ERR_VALUE, "dist.init",
        "WORLD_SIZE is %d, but RANK (0 to %d) or MASTER_ADDR is not set: set them and MASTER_PORT as torchrun "
        "does, or use mpirun -n %d tlua script, tlua --ranks %d script, srun --mpi=pmix",
        torch_size, torch_size - 1, torch_size, torch_size);
  if (rank >= size)
    return TL_FAIL(TL_ERR_VALUE, "dist.init", "%s is %d, %s is %d: ranks count from 0", launchers[by][0], rank,
                   launchers[by][1], size);
  bool tcp = by == TORCHRUN;
  if (by == SLURM && size > 1 && !srun_serves_mpi()) {
    if (getenv("MASTER_ADDR") == NULL)
      return TL_FAIL(TL_ERR_STATE, "dist.init",
                     "srun began %d ranks without an MPI: use srun --mpi=pmix, or set MASTER_ADDR (the first rank's "
                     "host) and MASTER_PORT",
                     size);
    tcp = true;
  }
  tl_the_group = (tl_group){.rank = rank, .size = size, .local_rank = local_rank, .timeout = timeout};
  if (tcp && size > 1) tl_the_group.transport = tl_tcp_transport();
  if (size > 1) {
    tl_status st = tl_queue_start();
    if (st != TL_OK) {
      tl_the_group = (tl_group){.size = 1};
      return st;
    }
  }
  initialized = true;
  return TL_OK;
}

tl_status tl_dist_destroy(void) {
  if (!initialized) return TL_OK;
  if (tl_the_group.size > 1) tl_queue_stop();
  tl_the_group = (tl_group){.size = 1};
  initialized = false;
  return TL_OK;
}

/* The launcher ends the others at once: those that failed for the same reason get a second to say so, too. */
void tl_dist_abort(int code) {
  fflush(NULL);
  if (tl_the_group.transport != NULL) sleep(1);
  if (tl_the_group.transport != NULL) tl_the_group.transport->abort(code);
  _exit(code);
}

bool tl_dist_initialized(void) { return initialized; }
int tl_dist_rank(void) { return tl_the_group.rank; }
int tl_dist_size(void) { return tl_the_group.size; }
int tl_dist_local_rank(void) { return tl_the_group.local_rank; }
