/* nccl.c: the simulated NCCL between processes, threads, and devices of one thread: results, order, refusals, and the ways
 * in which ranks may fail each other. */
#define _GNU_SOURCE
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libraries.h"

#define NCCL(call) SIM_EXPECT((call) == ncclSuccess)
#define NCCL_REFUSES(result, call) SIM_EXPECT((call) == nccl##result)

/* ---- ranks ---- */

typedef void rank_fn(int rank, int ranks, ncclUniqueId id);

typedef struct meeting {
  ncclUniqueId id;
  _Atomic int known;
  rank_fn *run;
  int rank, ranks;
} meeting;

static void take_part(meeting *m, int rank) {
  if (rank == 0) {
    NCCL(ncclGetUniqueId(&m->id));
    atomic_store(&m->known, 1);
  }
  while (!atomic_load(&m->known)) usleep(100);
  SIM_OK(cudaSetDevice(rank));
  m->run(rank, m->ranks, m->id);
}

/* Every rank is a process. Ends as the first one that failed; the others are stopped then. */
static void in_processes(int ranks, rank_fn *run) {
  meeting *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t child[8];
  int failure = 0, status;
  m->run = run;
  m->ranks = ranks;
  for (int r = 0; r < ranks; r++)
    if ((child[r] = fork()) == 0) {
      alarm(50);
      take_part(m, r);
      exit(0);
    }
  for (pid_t ended; (ended = wait(&status)) > 0;) {
    for (int r = 0; r < ranks; r++)
      if (child[r] == ended) child[r] = 0;
    if (failure != 0 || status == 0) continue;
    failure = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    for (int r = 0; r < ranks; r++)
      if (child[r] != 0) kill(child[r], SIGKILL);
  }
  if (failure != 0) _exit(failure);
}

static void *thread(void *argument) {
  meeting *own = argument, *first = own - own->rank;
  if (own != first) {
    while (!atomic_load(&first->known)) usleep(100);
    own->id = first->id;
    own->known = 1;
  }
  take_part(own, own->rank);
  return NULL;
}

static void in_threads(int ranks, rank_fn *run) {
  static meeting m[8];
  pthread_t t[8];
  for (int r = 0; r < ranks; r++) m[r].run = run, m[r].rank = r, m[r].ranks = ranks;
  for (int r = 0; r < ranks; r++) SIM_EXPECT(pthread_create(&t[r], NULL, thread, &m[r]) == 0);
  for (int r = 0; r < ranks; r++) pthread_join(t[r], NULL);
}

/* ---- numbers ---- */

static double given(int rank, size_t i) { return (double)((rank * 7 + (int)(i % 11) * 3) % 13) - 6; }

static array rank_array(number type, size_t n, int rank) {
  array a = array_full(type, n, 0);
  for (size_t i = 0; i < n; i++) a.value[i] = given(rank, i);
  array_upload(&a);
  return a;
}

static ncclDataType_t nccl_type(number type) {
  return type == F64 ? ncclFloat64 : type == F32 ? ncclFloat32 : type == F16 ? ncclFloat16 : ncclBfloat16;
}

static double reduced(ncclRedOp_t op, int ranks, size_t i) {
  double v = given(0, i);
  for (int r = 1; r < ranks; r++) {
    double x = given(r, i);
    v = op == ncclProd ? v * x : op == ncclMax ? fmax(v, x) : op == ncclMin ? fmin(v, x) : v + x;
  }
  return op == ncclAvg ? v / ranks : v;
}

static void wait_for(cudaStream_t s) { SIM_OK(cudaStreamSynchronize(s)); }

static void all_collectives(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  cudaStream_t s;
  int n = 0;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  SIM_OK(cudaStreamCreate(&s));
  NCCL(ncclCommCount(c, &n));
  SIM_EXPECT(n == ranks);
  NCCL(ncclCommUserRank(c, &n));
  SIM_EXPECT(n == rank);
  NCCL(ncclCommCuDevice(c, &n));
  SIM_EXPECT(n == rank);
  static const size_t counts[] = {1, 1000, 30011};
  for (int type = F32; type <= BF16; type++)
    for (int k = 0; k < 3; k++) {
      size_t count = counts[k], many = count * (size_t)ranks;
      array x = rank_array((number)type, count, rank), y = array_full((number)type, count, 0);
      array wide = array_full((number)type, many, 0);
      for (int op = ncclSum; op <= ncclAvg; op++) {
        if (type == BF16 && op == ncclProd) continue; /* rounds at every step */
        NCCL(ncclAllReduce(x.device, y.device, count, nccl_type((number)type), (ncclRedOp_t)op, c, s));
        wait_for(s);
        for (size_t i = 0; i < count; i++) y.value[i] = reduced((ncclRedOp_t)op, ranks, i);
        array_check(&y, "AllReduce");
      }
      NCCL(ncclAllGather(x.device, wide.device, count, nccl_type((number)type), c, s));
      wait_for(s);
      for (size_t i = 0; i < many; i++) wide.value[i] = given((int)(i / count), i % count);
      array_check(&wide, "AllGather");
      NCCL(ncclBroadcast(x.device, y.device, count, nccl_type((number)type), ranks - 1, c, s));
      wait_for(s);
      for (size_t i = 0; i < count; i++) y.value[i] = given(ranks - 1, i);
      array_check(&y, "Broadcast");
      for (size_t i = 0; i < many; i++) wide.value[i] = given(rank, i);
      array_upload(&wide);
      NCCL(ncclReduceScatter(wide.device, y.device, count, nccl_type((number)type), ncclMax, c, s));
      wait_for(s);
      for (size_t i = 0; i < count; i++) y.value[i] = reduced(ncclMax, ranks, (size_t)rank * count + i);
      array_check(&y, "ReduceScatter");
      NCCL(ncclReduce(x.device, rank == 0 ? y.device : NULL, count, nccl_type((number)type), ncclSum, 0, c, s));
      wait_for(s);
      for (size_t i = 0; i < count && rank == 0; i++) y.value[i] = reduced(ncclSum, ranks, i);
      array_check(&y, "Reduce");
      NCCL(ncclAllReduce(x.device, x.device, count, nccl_type((number)type), ncclSum, c, s)); /* in place */
      wait_for(s);
      for (size_t i = 0; i < count; i++) x.value[i] = reduced(ncclSum, ranks, i);
      array_check(&x, "AllReduce in place");
      array_free(&x);
      array_free(&y);
      array_free(&wide);
    }
  NCCL(ncclCommFinalize(c));
  NCCL(ncclCommDestroy(c));
  SIM_OK(cudaStreamDestroy(s));
}

SIM_CLEAN_WITH(nccl_between_processes, "TLUA_SIM_DEVICES=3 TLUA_SIM_LEAKS=1") { in_processes(3, all_collectives); }
SIM_CLEAN_WITH(nccl_between_threads, "TLUA_SIM_DEVICES=3 TLUA_SIM_LEAKS=1") { in_threads(3, all_collectives); }
SIM_CLEAN_WITH(nccl_of_one_rank, "TLUA_SIM_DEVICES=1") { in_threads(1, all_collectives); }

static void integers(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  int64_t x[3] = {((int64_t)1 << 60) + rank, -5 * rank, 7}, y[3];
  uint8_t small = (uint8_t)(200 + rank), sum;
  void *on_device;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  SIM_OK(cudaMalloc(&on_device, sizeof x));
  SIM_OK(cudaMemcpy(on_device, x, sizeof x, cudaMemcpyHostToDevice));
  NCCL(ncclAllReduce(on_device, on_device, 3, ncclInt64, ncclSum, c, NULL));
  SIM_OK(cudaMemcpy(y, on_device, sizeof y, cudaMemcpyDeviceToHost));
  SIM_EXPECT(y[0] == ((int64_t)1 << 61) + 1 && y[1] == -5 && y[2] == 14);
  SIM_OK(cudaMemcpy(on_device, &small, 1, cudaMemcpyHostToDevice));
  NCCL(ncclAllReduce(on_device, on_device, 1, ncclUint8, ncclSum, c, NULL));
  SIM_OK(cudaMemcpy(&sum, on_device, 1, cudaMemcpyDeviceToHost));
  SIM_EXPECT(sum == (uint8_t)401);
  NCCL(ncclCommDestroy(c));
}
SIM_CLEAN(nccl_integers_wrap_around) { in_processes(2, integers); }

/* ---- one thread, several devices ---- */

SIM_CLEAN_WITH(nccl_group_of_one_thread, "TLUA_SIM_DEVICES=4") {
  enum { RANKS = 4, COUNT = 20000 };
  ncclComm_t c[RANKS];
  array x[RANKS];
  NCCL(ncclCommInitAll(c, RANKS, NULL));
  for (int r = 0; r < RANKS; r++) {
    SIM_OK(cudaSetDevice(r));
    x[r] = rank_array(F32, COUNT, r);
  }
  NCCL(ncclGroupStart());
  for (int r = 0; r < RANKS; r++)
    NCCL(ncclAllReduce(x[r].device, x[r].device, COUNT, ncclFloat32, ncclSum, c[r], NULL));
  NCCL(ncclGroupEnd());
  for (int r = 0; r < RANKS; r++) {
    SIM_OK(cudaSetDevice(r));
    for (size_t i = 0; i < COUNT; i++) x[r].value[i] = reduced(ncclSum, RANKS, i);
    array_check(&x[r], "AllReduce");
    NCCL(ncclCommDestroy(c[r]));
  }
}

/* ---- from one rank to another ---- */

static void shift(int rank, int ranks, ncclUniqueId id) {
  enum { COUNT = 50000 };
  ncclComm_t c;
  int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  array x = rank_array(F32, COUNT, rank), y = array_full(F32, COUNT, 0), own = array_full(F32, COUNT, 0);
  array few = array_full(F32, 3, 0);
  NCCL(ncclGroupStart());
  NCCL(ncclSend(x.device, COUNT, ncclFloat32, next, c, NULL));
  NCCL(ncclSend(x.device, 3, ncclFloat32, next, c, NULL));
  NCCL(ncclSend(x.device, COUNT, ncclFloat32, rank, c, NULL));
  NCCL(ncclRecv(y.device, COUNT, ncclFloat32, last, c, NULL));
  NCCL(ncclRecv(few.device, 3, ncclFloat32, last, c, NULL));
  NCCL(ncclRecv(own.device, COUNT, ncclFloat32, rank, c, NULL));
  NCCL(ncclGroupEnd());
  wait_for(NULL);
  for (size_t i = 0; i < COUNT; i++) y.value[i] = given(last, i), own.value[i] = given(rank, i);
  for (size_t i = 0; i < 3; i++) few.value[i] = given(last, i);
  array_check(&y, "Recv");
  array_check(&few, "second Recv");
  array_check(&own, "Recv from itself");
  NCCL(ncclCommDestroy(c));
}
SIM_CLEAN_WITH(nccl_send_and_receive, "TLUA_SIM_DEVICES=3") { in_processes(3, shift); }

static void one_way(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  array x = rank_array(F32, 9, rank);
  for (int i = 0; i < 20; i++) {
    if (rank == 0) NCCL(ncclSend(x.device, 9, ncclFloat32, 1, c, NULL));
    else NCCL(ncclRecv(x.device, 9, ncclFloat32, 0, c, NULL));
  }
  wait_for(NULL);
  for (size_t i = 0; i < 9; i++) x.value[i] = given(0, i);
  array_check(&x, "x");
  NCCL(ncclCommDestroy(c));
}
SIM_CLEAN(nccl_sends_without_a_group) { in_processes(2, one_way); }

/* ---- order ---- */

static void on_two_streams(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  cudaStream_t s[2];
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  for (int i = 0; i < 2; i++) SIM_OK(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
  array x = rank_array(F32, 100, rank), y = rank_array(F32, 100, rank);
  for (int i = 0; i < 12; i++) {
    array *a = i % 2 ? &x : &y;
    NCCL(ncclAllReduce(a->device, a->device, 100, ncclFloat32, ncclMax, c, s[i % 2]));
  }
  wait_for(s[rank]); /* the ranks wait for different streams first */
  wait_for(s[1 - rank]);
  for (size_t i = 0; i < 100; i++) x.value[i] = y.value[i] = reduced(ncclMax, ranks, i);
  array_check(&x, "x");
  array_check(&y, "y");
  NCCL(ncclCommDestroy(c));
}
SIM_CLEAN(nccl_operations_keep_their_order) { in_processes(2, on_two_streams); }

static void replayed(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  cudaStream_t s;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  SIM_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  array x = array_full(F32, 5, 1);
  SIM_OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  NCCL(ncclAllReduce(x.device, x.device, 5, ncclFloat32, ncclSum, c, s));
  SIM_OK(cudaStreamEndCapture(s, &graph));
  SIM_OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; i++) SIM_OK(cudaGraphLaunch(exec, s));
  wait_for(s);
  NCCL(ncclAllReduce(x.device, x.device, 5, ncclFloat32, ncclSum, c, s));
  wait_for(s);
  for (size_t i = 0; i < 5; i++) x.value[i] = 16;
  array_check(&x, "x");
  NCCL(ncclCommDestroy(c));
}
SIM_CLEAN(nccl_in_a_graph) { in_processes(2, replayed); }

/* ---- what does not match ---- */

static void different_counts(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  array x = rank_array(F32, 100, rank);
  NCCL(ncclAllReduce(x.device, x.device, rank == 0 ? 100 : 99, ncclFloat32, ncclSum, c, NULL));
  cudaDeviceSynchronize();
}
SIM_FAULT(nccl_counts_differ, "nccl-mismatch", "AllReduce of 100 float32 sum") { in_processes(2, different_counts); }

static void different_types(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  array x = rank_array(F32, 100, rank);
  NCCL(ncclBroadcast(x.device, x.device, 50, rank == 0 ? ncclFloat32 : ncclFloat16, 0, c, NULL));
  cudaDeviceSynchronize();
}
SIM_FAULT(nccl_types_differ, "nccl-mismatch", "Broadcast of 50 float16 at root 0") { in_processes(2, different_types); }

static void different_order(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  array x = rank_array(F32, 100, rank);
  for (int i = 0; i < 2; i++) {
    if (i == rank) NCCL(ncclAllReduce(x.device, x.device, 100, ncclFloat32, ncclSum, c, NULL));
    else NCCL(ncclBroadcast(x.device, x.device, 100, ncclFloat32, 0, c, NULL));
  }
  cudaDeviceSynchronize();
}
SIM_FAULT(nccl_order_differs, "nccl-mismatch", "Broadcast of 100 float32") { in_processes(2, different_order); }

static void different_send(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  array x = rank_array(F32, 100, rank);
  if (rank == 0) NCCL(ncclSend(x.device, 7, ncclFloat32, 1, c, NULL));
  else NCCL(ncclRecv(x.device, 8, ncclFloat32, 0, c, NULL));
  cudaDeviceSynchronize();
}
SIM_FAULT(nccl_send_and_receive_differ, "nccl-mismatch", "Recv of 8 float32") { in_processes(2, different_send); }

static void both_send_first(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  array x = rank_array(F32, 100, rank);
  NCCL(ncclSend(x.device, 100, ncclFloat32, 1 - rank, c, NULL));
  NCCL(ncclRecv(x.device, 100, ncclFloat32, 1 - rank, c, NULL));
  cudaDeviceSynchronize();
}
SIM_FAULT_WITH(nccl_both_send_first, "nccl-hang", "does not take part", "TLUA_SIM_NCCL_TIMEOUT=1") {
  in_processes(2, both_send_first);
}

SIM_FAULT_WITH(nccl_others_never_join, "nccl-hang", "do not join", "TLUA_SIM_NCCL_TIMEOUT=1") {
  ncclUniqueId id;
  ncclComm_t c;
  NCCL(ncclGetUniqueId(&id));
  ncclCommInitRank(&c, 2, id, 0);
}

static void buffers_overlap(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  array x = rank_array(F32, 100, rank);
  ncclAllReduce(x.device, (char *)x.device + 4, 50, ncclFloat32, ncclSum, c, NULL);
}
SIM_FAULT(nccl_buffers_overlap, "overlap", "AllReduce") { in_processes(2, buffers_overlap); }

__attribute__((unused)) static void sums_what_is_fresh(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  float *fresh;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  SIM_OK(cudaMalloc((void **)&fresh, 400));
  NCCL(ncclAllReduce(fresh, fresh + 50, 50, ncclFloat32, ncclSum, c, NULL));
  cudaDeviceSynchronize();
}
SIM_CHECK_FAULT(nccl_reads_what_nothing_wrote, "uninitialised", "AllReduce") { in_processes(2, sums_what_is_fresh); }

/* ---- ranks that die ---- */

static void rank_1_dies(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  if (rank == 1) _exit(0);
  array x = rank_array(F32, 100, rank);
  cudaStream_t s;
  SIM_OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  NCCL(ncclAllReduce(x.device, x.device, 100, ncclFloat32, ncclSum, c, s));
  ncclResult_t error = ncclSuccess;
  while (error == ncclSuccess) {
    SIM_EXPECT(cudaStreamQuery(s) == cudaErrorNotReady);
    NCCL(ncclCommGetAsyncError(c, &error));
  }
  SIM_EXPECT(error == ncclRemoteError && strstr(ncclGetLastError(c), "rank 1 is dead") != NULL);
  NCCL(ncclCommAbort(c));
  wait_for(s);
}
SIM_CLEAN(nccl_dead_rank_is_an_asynchronous_error) { in_processes(2, rank_1_dies); }

static void nobody_aborts(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  if (rank == 1) _exit(0);
  array x = rank_array(F32, 100, rank);
  NCCL(ncclAllReduce(x.device, x.device, 100, ncclFloat32, ncclSum, c, NULL));
  cudaDeviceSynchronize();
}
SIM_FAULT_WITH(nccl_dead_rank_and_nobody_aborts, "nccl-hang", "rank 1, which is dead", "TLUA_SIM_NCCL_TIMEOUT=1") {
  in_processes(2, nobody_aborts);
}

static void rank_1_aborts(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  ncclResult_t error = ncclSuccess;
  NCCL(ncclCommInitRank(&c, ranks, id, rank));
  if (rank == 0)
    while (error == ncclSuccess) NCCL(ncclCommGetAsyncError(c, &error));
  SIM_EXPECT(error == (rank == 0 ? ncclRemoteError : ncclSuccess));
  NCCL(ncclCommAbort(c));
}
SIM_CLEAN(nccl_aborting_rank_is_an_asynchronous_error) { in_processes(2, rank_1_aborts); }

/* ---- refusals ---- */

static void join_on_device_0(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  SIM_OK(cudaSetDevice(0));
  NCCL_REFUSES(InvalidUsage, ncclCommInitRank(&c, ranks, id, rank));
}
SIM_CLEAN(nccl_refuses_two_ranks_on_one_device) { in_processes(2, join_on_device_0); }

SIM_CLEAN(nccl_refuses) {
  ncclUniqueId id, zero = {{0}};
  ncclComm_t c;
  NCCL(ncclGetUniqueId(&id));
  NCCL_REFUSES(InvalidArgument, ncclCommInitRank(&c, 1, id, 1));
  NCCL_REFUSES(InvalidArgument, ncclCommInitRank(&c, 1, zero, 0));
  NCCL_REFUSES(InvalidUsage, ncclGroupEnd());
  NCCL(ncclCommInitRank(&c, 1, id, 0));
  array x = rank_array(F32, 4, 0);
  NCCL_REFUSES(InvalidArgument, ncclAllReduce(NULL, x.device, 4, ncclFloat32, ncclSum, c, NULL));
  NCCL_REFUSES(InvalidArgument, ncclAllReduce(x.device, x.device, 4, (ncclDataType_t)10, ncclSum, c, NULL));
  NCCL_REFUSES(InvalidArgument, ncclAllReduce(x.device, x.device, 4, ncclFloat32, (ncclRedOp_t)5, c, NULL));
  NCCL_REFUSES(InvalidArgument, ncclBroadcast(x.device, x.device, 4, ncclFloat32, 1, c, NULL));
  NCCL_REFUSES(InvalidUsage, ncclSend(x.device, 4, ncclFloat32, 0, c, NULL));
  NCCL(ncclGroupStart());
  NCCL_REFUSES(InvalidArgument, ncclAllReduce(NULL, x.device, 4, ncclFloat32, ncclSum, c, NULL));
  NCCL_REFUSES(InvalidArgument, ncclGroupEnd());
  NCCL(ncclAllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, c, NULL));
  NCCL(ncclAllReduce(x.device, x.device, 4, ncclFloat32, ncclSum, c, NULL));
  NCCL(ncclCommDestroy(c));
  NCCL_REFUSES(InvalidArgument, ncclCommDestroy(c));
  NCCL_REFUSES(InvalidArgument, ncclAllReduce(x.device, x.device, 4, ncclFloat32, ncclSum, c, NULL));
  NCCL_REFUSES(InvalidArgument, ncclCommInitRank(&c, 1, id, 0)); /* used */
}

static void without_blocking(int rank, int ranks, ncclUniqueId id) {
  ncclComm_t c;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER, rubbish = {0};
  NCCL_REFUSES(InvalidArgument, ncclCommInitRankConfig(&c, ranks, id, rank, &rubbish));
  config.blocking = 0;
  NCCL_REFUSES(InProgress, ncclCommInitRankConfig(&c, ranks, id, rank, &config));
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) NCCL(ncclCommGetAsyncError(c, &state));
  SIM_EXPECT(state == ncclSuccess);
  array x = rank_array(F32, 4, rank);
  NCCL(ncclAllReduce(x.device, x.device, 4, ncclFloat32, ncclSum, c, NULL));
  wait_for(NULL);
  NCCL(ncclCommDestroy(c));
}
SIM_CLEAN(nccl_joins_without_blocking) { in_processes(2, without_blocking); }

SIM_FAULT_WITH(nccl_communicator_is_left, "leak", "1 handles", "TLUA_SIM_LEAKS=1") {
  ncclComm_t c;
  NCCL(ncclCommInitAll(&c, 1, NULL));
}

SIM_CLEAN_WITH(nccl_calls_fail_on_request, "TLUA_SIM_FAIL=1") {
  ncclUniqueId id;
  NCCL_REFUSES(SystemError, ncclGetUniqueId(&id));
}
