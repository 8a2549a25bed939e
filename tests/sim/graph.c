/* graph.c: stream capture and the graphs it makes.
 *
 * While a stream is captured its work becomes nodes of a graph; other streams join the capture by waiting for an event of
 * it and must be joined again before it ends. What a capture cannot hold is refused with the runtime's own error and ends
 * the capture: from then on its streams give cudaErrorStreamCaptureInvalidated until cudaStreamEndCapture. Where the
 * manual leaves room, this is the strict reading. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

typedef struct node {
  sim_work work;
  sim_nodes needs; /* all have lower numbers */
  int chain;       /* nodes that follow each other: one lane; 0: the lane of the stream it is launched in */
} node;

struct CUgraph_st {
  sim_kind kind;
  node *list;
  int count, room;
  struct CUgraph_st *next;
};

struct CUgraphExec_st {
  sim_kind kind;
  struct CUgraph_st *graph; /* own copy */
  int *lanes;               /* of the chains */
  int chains;
  sim_item *last; /* its last launch: launches of one graph come after each other */
  struct CUgraphExec_st *next;
};

typedef struct sim_capture {
  uint64_t number;
  struct CUgraph_st *graph;
  struct CUstream_st *origin;
  enum cudaStreamCaptureMode mode;
  pthread_t thread;
  bool invalid;
  struct sim_capture *next;
} sim_capture;

static sim_capture *captures; /* that have not ended */
static uint64_t last_number;
static struct CUgraph_st *graphs;
static struct CUgraphExec_st *execs;
static _Thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/* ---- sets of nodes ---- */

static void add(sim_nodes *to, int number) {
  for (int i = 0; i < to->count; i++)
    if (to->list[i] == number) return;
  to->list = sim_checked(realloc(to->list, sizeof *to->list * (size_t)(to->count + 1)));
  to->list[to->count++] = number;
}

static void clear(sim_nodes *nodes) {
  free(nodes->list);
  *nodes = (sim_nodes){0};
}

static void set(sim_nodes *to, const sim_nodes *from) {
  clear(to);
  for (int i = 0; i < from->count; i++) add(to, from->list[i]);
}

/* ---- what is not allowed ---- */

static cudaError_t invalidate(sim_capture *c, cudaError_t error, const char *function, const char *why) {
  c->invalid = true;
  return sim_error(error, "%s: %s", function, why);
}

static sim_capture *capture_number(uint64_t number) {
  for (sim_capture *c = captures; c != NULL; c = c->next)
    if (c->number == number) return c;
  return NULL;
}

cudaError_t sim_refuse_captured(struct CUstream_st *stream, const char *function) {
  if (stream->capture->invalid)
    return sim_error(cudaErrorStreamCaptureInvalidated, "%s: the capture has failed", function);
  return invalidate(stream->capture, cudaErrorStreamCaptureUnsupported, function, "its stream is captured");
}

cudaError_t sim_refuse_captured_event(struct CUevent_st *event, const char *function) {
  sim_capture *c = capture_number(event->capture);
  if (c != NULL) c->invalid = true;
  return sim_error(cudaErrorCapturedEvent, "%s: the event was recorded in a capture and stands for no work", function);
}

cudaError_t sim_refuse_unsafe(const char *function) {
  cudaError_t e = cudaSuccess;
  for (sim_capture *c = captures; c != NULL; c = c->next) {
    bool own = pthread_equal(c->thread, pthread_self()) != 0;
    bool forbids = thread_mode != cudaStreamCaptureModeRelaxed &&
                   (own ? c->mode != cudaStreamCaptureModeRelaxed
                        : thread_mode == cudaStreamCaptureModeGlobal && c->mode == cudaStreamCaptureModeGlobal);
    if (forbids)
      e = invalidate(c, cudaErrorStreamCaptureUnsupported, function, "not while a capture of this mode is under way");
  }
  return e;
}

cudaError_t sim_refuse_implicit(int device, const char *function) {
  cudaError_t e = cudaSuccess;
  for (struct CUstream_st *s = sim_streams(); s != NULL; s = s->next)
    if (s->capture != NULL && s->blocking && s->device == device)
      e = invalidate(s->capture, cudaErrorStreamCaptureImplicit, function,
                     "the default stream, while a blocking stream is captured");
  return e;
}

/* ---- capture ---- */

static cudaError_t working(struct CUstream_st *stream, const char *what) {
  if (!stream->capture->invalid) return cudaSuccess;
  return sim_error(cudaErrorStreamCaptureInvalidated, "%s: the capture has failed before", what);
}

bool sim_capture_works(const struct CUstream_st *stream) {
  return stream->capture == NULL || !stream->capture->invalid;
}

cudaError_t sim_capture_work(struct CUstream_st *stream, const sim_work *work) {
  cudaError_t e = working(stream, work->name);
  if (e != cudaSuccess) return e;
  struct CUgraph_st *g = stream->capture->graph;
  if (g->count == g->room) {
    g->room = g->room == 0 ? 64 : 2 * g->room;
    g->list = sim_checked(realloc(g->list, sizeof *g->list * (size_t)g->room));
  }
  node *n = &g->list[g->count];
  *n = (node){0};
  sim_work_copy(&n->work, work);
  set(&n->needs, &stream->frontier);
  clear(&stream->frontier);
  add(&stream->frontier, g->count++);
  return cudaSuccess;
}

cudaError_t sim_capture_record(struct CUstream_st *stream, struct CUevent_st *event) {
  cudaError_t e = working(stream, "cudaEventRecord");
  if (e != cudaSuccess) return e;
  sim_replace(&event->item, NULL);
  event->capture = stream->capture->number;
  set(&event->frontier, &stream->frontier);
  return cudaSuccess;
}

cudaError_t sim_capture_wait(struct CUstream_st *stream, struct CUevent_st *event) {
  static const char function[] = "cudaStreamWaitEvent";
  if (stream->capture != NULL) {
    cudaError_t e = working(stream, function);
    if (e != cudaSuccess) return e;
  }
  if (event->capture == 0)
    return invalidate(stream->capture, cudaErrorStreamCaptureIsolation, function,
                      "the event is of work outside the capture");
  sim_capture *c = capture_number(event->capture);
  if (c == NULL) return sim_error(cudaErrorCapturedEvent, "%s: the event is of a capture that has ended", function);
  if (c->invalid) return sim_error(cudaErrorStreamCaptureInvalidated, "%s: the event's capture has failed", function);
  if (stream->capture != NULL && stream->capture != c) {
    c->invalid = true;
    return invalidate(stream->capture, cudaErrorStreamCaptureMerge, function, "the event is of another capture");
  }
  if (stream->legacy)
    return invalidate(c, cudaErrorStreamCaptureImplicit, function, "the default stream cannot be captured");
  stream->capture = c;
  for (int i = 0; i < event->frontier.count; i++) add(&stream->frontier, event->frontier.list[i]);
  return cudaSuccess;
}

static cudaError_t begin(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
  struct CUstream_st *s;
  cudaError_t e = sim_stream_of(handle, &s);
  if (e != cudaSuccess) return e;
  if (s->legacy) return sim_error(cudaErrorStreamCaptureUnsupported, "the default stream cannot be captured");
  if (s->capture != NULL) return sim_error(cudaErrorIllegalState, "the stream is captured already");
  if ((unsigned)mode > cudaStreamCaptureModeRelaxed)
    return sim_error(cudaErrorInvalidValue, "capture mode %d", (int)mode);
  sim_capture *c = sim_checked(calloc(1, sizeof *c));
  struct CUgraph_st *g = sim_checked(calloc(1, sizeof *g));
  g->kind = SIM_GRAPH;
  *c = (sim_capture){
      .number = ++last_number, .graph = g, .origin = s, .mode = mode, .thread = pthread_self(), .next = captures};
  captures = c;
  s->capture = c;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  SIM_API(cudaErrorUnknown, begin(stream, mode));
}

static void free_graph(struct CUgraph_st *g) {
  for (int i = 0; i < g->count; i++) {
    sim_work_free(&g->list[i].work);
    clear(&g->list[i].needs);
  }
  free(g->list);
  g->list = NULL;
  g->kind = SIM_DEAD;
}

/* Does the origin come after all that the other streams did? */
static bool joined(const sim_capture *c) {
  char *before = sim_checked(calloc((size_t)c->graph->count + 1, 1));
  for (int i = 0; i < c->origin->frontier.count; i++) before[c->origin->frontier.list[i]] = 1;
  for (int n = c->graph->count - 1; n >= 0; n--) {
    const sim_nodes *needs = &c->graph->list[n].needs;
    for (int i = 0; before[n] && i < needs->count; i++) before[needs->list[i]] = 1;
  }
  bool all = true;
  for (struct CUstream_st *s = sim_streams(); s != NULL; s = s->next)
    for (int i = 0; s->capture == c && i < s->frontier.count; i++) all = all && before[s->frontier.list[i]];
  free(before);
  return all;
}

static cudaError_t end(cudaStream_t handle, cudaGraph_t *graph) {
  *graph = NULL;
  struct CUstream_st *s;
  cudaError_t e = sim_stream_of(handle, &s);
  if (e != cudaSuccess) return e;
  sim_capture *c = s->capture;
  if (c == NULL) return sim_error(cudaErrorIllegalState, "cudaStreamEndCapture: the stream is not captured");
  if (c->origin != s)
    return invalidate(c, cudaErrorStreamCaptureUnmatched, "cudaStreamEndCapture",
                      "the capture began in another stream");
  if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self()))
    return invalidate(c, cudaErrorStreamCaptureWrongThread, "cudaStreamEndCapture", "another thread began the capture");
  if (c->invalid)
    e = sim_error(cudaErrorStreamCaptureInvalidated, "cudaStreamEndCapture: the capture has failed before");
  else if (!joined(c))
    e = sim_error(cudaErrorStreamCaptureUnjoined, "cudaStreamEndCapture: a stream was not joined again");
  for (struct CUstream_st *each = sim_streams(); each != NULL; each = each->next)
    if (each->capture == c) {
      each->capture = NULL;
      clear(&each->frontier);
    }
  for (sim_capture **at = &captures; *at != NULL; at = &(*at)->next)
    if (*at == c) {
      *at = c->next;
      break;
    }
  if (e == cudaSuccess) {
    c->graph->next = graphs;
    graphs = *graph = c->graph;
  } else {
    free_graph(c->graph);
    free(c->graph);
  }
  free(c);
  return e;
}

cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  SIM_API(cudaSuccess, end(stream, graph));
}

static cudaError_t status_of(cudaStream_t handle, enum cudaStreamCaptureStatus *status, unsigned long long *number) {
  struct CUstream_st *s;
  cudaError_t e = sim_stream_of(handle, &s);
  if (e != cudaSuccess) return e;
  if (s->legacy) e = sim_refuse_implicit(s->device, "cudaStreamIsCapturing");
  if (e != cudaSuccess) return e;
  *status = s->capture == NULL    ? cudaStreamCaptureStatusNone
            : s->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                  : cudaStreamCaptureStatusActive;
  if (number != NULL && s->capture != NULL) *number = s->capture->number;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  SIM_API(cudaErrorUnknown, status_of(stream, status, NULL));
}

/* The graph under construction is not given out. */
#if CUDART_VERSION >= 13000
cudaError_t CUDARTAPI cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                               unsigned long long *number, cudaGraph_t *graph,
                                               const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                               size_t *count) {
  bool more = graph != NULL || nodes != NULL || edges != NULL || count != NULL;
#else
cudaError_t CUDARTAPI cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                               unsigned long long *number, cudaGraph_t *graph,
                                               const cudaGraphNode_t **nodes, size_t *count) {
  bool more = graph != NULL || nodes != NULL || count != NULL;
#endif
  SIM_API(cudaErrorUnknown, more ? sim_error(cudaErrorNotSupported, "cudaStreamGetCaptureInfo: status and number only")
                                 : status_of(stream, status, number));
}

static cudaError_t exchange(enum cudaStreamCaptureMode *mode) {
  if ((unsigned)*mode > cudaStreamCaptureModeRelaxed)
    return sim_error(cudaErrorInvalidValue, "capture mode %d", (int)*mode);
  enum cudaStreamCaptureMode old = thread_mode;
  thread_mode = *mode;
  *mode = old;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  SIM_API(cudaErrorUnknown, exchange(mode));
}

/* ---- graphs ---- */

static cudaError_t check_graph(cudaGraph_t graph) {
  if (graph != NULL && graph->kind == SIM_GRAPH) return cudaSuccess;
  if (graph == NULL) return sim_error(cudaErrorInvalidValue, "the graph is NULL");
  sim_fault("handle", "%p is %s", (void *)graph, graph->kind == SIM_DEAD ? "a graph that was destroyed" : "no graph");
  return cudaErrorInvalidValue;
}

static cudaError_t check_exec(cudaGraphExec_t exec) {
  if (exec != NULL && exec->kind == SIM_EXEC) return cudaSuccess;
  if (exec == NULL) return sim_error(cudaErrorInvalidValue, "the executable graph is NULL");
  sim_fault("handle", "%p is %s", (void *)exec,
            exec->kind == SIM_DEAD ? "an executable graph that was destroyed" : "no executable graph");
  return cudaErrorInvalidValue;
}

static cudaError_t count_nodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  cudaError_t e = check_graph(graph);
  if (e != cudaSuccess) return e;
  if (nodes != NULL) return sim_error(cudaErrorNotSupported, "cudaGraphGetNodes: their number only");
  *count = (size_t)graph->count;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  SIM_API(cudaErrorUnknown, count_nodes(graph, nodes, count));
}

static cudaError_t destroy(cudaGraph_t graph) {
  cudaError_t e = check_graph(graph);
  if (e != cudaSuccess) return e;
  for (struct CUgraph_st **at = &graphs; *at != NULL; at = &(*at)->next)
    if (*at == graph) {
      *at = graph->next;
      break;
    }
  free_graph(graph);
  sim_bury(graph);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph) { SIM_API(cudaSuccess, destroy(graph)); }

/* Splits the nodes into chains: a node goes on its first need's chain if no other did. */
static int make_chains(struct CUgraph_st *g) {
  char *continued = sim_checked(calloc((size_t)g->count + 1, 1));
  int chains = 0;
  for (int n = 0; n < g->count; n++) {
    node *each = &g->list[n];
    each->chain = -1;
    for (int i = 0; i < each->needs.count && each->chain < 0; i++)
      if (!continued[each->needs.list[i]]) {
        continued[each->needs.list[i]] = 1;
        each->chain = g->list[each->needs.list[i]].chain;
      }
    if (each->chain < 0) each->chain = chains++;
  }
  free(continued);
  return chains;
}

static cudaError_t instantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
  *out = NULL;
  cudaError_t e = check_graph(graph);
  if (e != cudaSuccess) return e;
  if (flags != 0) return sim_error(cudaErrorNotSupported, "cudaGraphInstantiate: flags %llu", flags);
  struct CUgraphExec_st *x = sim_checked(calloc(1, sizeof *x));
  struct CUgraph_st *copy = sim_checked(calloc(1, sizeof *copy));
  copy->list = sim_checked(calloc((size_t)graph->count + 1, sizeof *copy->list));
  copy->count = copy->room = graph->count;
  for (int i = 0; i < graph->count; i++) {
    sim_work_copy(&copy->list[i].work, &graph->list[i].work);
    set(&copy->list[i].needs, &graph->list[i].needs);
  }
  x->kind = SIM_EXEC;
  x->graph = copy;
  x->chains = make_chains(copy);
  x->lanes = sim_checked(calloc((size_t)x->chains + 1, sizeof *x->lanes));
  for (int i = 1; i < x->chains; i++) x->lanes[i] = sim_lane_open();
  x->next = execs;
  execs = *out = x;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags) {
  SIM_API(cudaErrorMemoryAllocation, instantiate(exec, graph, flags));
}

static cudaError_t destroy_exec(cudaGraphExec_t exec) {
  cudaError_t e = check_exec(exec);
  if (e != cudaSuccess) return e;
  for (struct CUgraphExec_st **at = &execs; *at != NULL; at = &(*at)->next)
    if (*at == exec) {
      *at = exec->next;
      break;
    }
  for (int i = 1; i < exec->chains; i++) sim_lane_close(exec->lanes[i]);
  free(exec->lanes);
  free_graph(exec->graph);
  free(exec->graph);
  sim_replace(&exec->last, NULL);
  exec->kind = SIM_DEAD;
  sim_bury(exec);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t exec) { SIM_API(cudaSuccess, destroy_exec(exec)); }

static cudaError_t upload(cudaGraphExec_t exec, cudaStream_t handle) {
  struct CUstream_st *s;
  cudaError_t e = check_exec(exec);
  if (e == cudaSuccess) e = sim_stream_of(handle, &s);
  if (e == cudaSuccess && s->capture != NULL) e = sim_refuse_captured(s, "cudaGraphUpload");
  return e;
}

cudaError_t CUDARTAPI cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  SIM_API(cudaErrorUnknown, upload(exec, stream));
}

static cudaError_t launch(cudaGraphExec_t exec, cudaStream_t handle) {
  struct CUstream_st *s;
  cudaError_t e = check_exec(exec);
  if (e == cudaSuccess) e = sim_stream_of(handle, &s);
  if (e != cudaSuccess) return e;
  if (s->capture != NULL) return sim_error(cudaErrorNotSupported, "cudaGraphLaunch: graphs in graphs are not modelled");
  const struct CUgraph_st *g = exec->graph;
  for (int i = 0; i < g->count && e == cudaSuccess; i++)
    e = sim_check_ranges(g->list[i].work.name, g->list[i].work.ranges, g->list[i].work.range);
  sim_item *begin_item = NULL, *end_item = NULL;
  if (e == cudaSuccess) e = sim_append(s, &(sim_work){.name = "cudaGraphLaunch", .device = s->device}, &begin_item);
  if (e != cudaSuccess) return e;
  sim_item *before = sim_keep(exec->last);
  sim_item **items = sim_checked(calloc((size_t)g->count + 2, sizeof *items)), **needs = NULL;
  needs = sim_checked(calloc((size_t)g->count + 2, sizeof *needs));
  for (int n = 0; n < g->count; n++) {
    int count = 0;
    for (int i = 0; i < g->list[n].needs.count; i++) needs[count++] = items[g->list[n].needs.list[i]];
    needs[count++] = begin_item;
    needs[count++] = before;
    sim_work w = g->list[n].work;
    w.lane = g->list[n].chain == 0 ? s->lane : exec->lanes[g->list[n].chain];
    items[n] = sim_submit(&w, count, needs);
  }
  items[g->count] = begin_item;
  end_item =
      sim_submit(&(sim_work){.name = "end of a graph", .device = s->device, .lane = s->lane}, g->count + 1, items);
  sim_replace(&s->last, end_item);
  sim_replace(&exec->last, end_item);
  for (int n = 0; n <= g->count; n++) sim_drop(items[n]);
  sim_drop(end_item);
  sim_drop(before);
  free(items);
  free(needs);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  SIM_API(cudaErrorLaunchFailure, launch(exec, stream));
}

int sim_report_graphs(void) {
  int found = 0;
  for (struct CUgraph_st *g = graphs; g != NULL; g = g->next, found++)
    fprintf(stderr, "tlua-sim: leak: a graph of %d nodes\n", g->count);
  for (struct CUgraphExec_st *x = execs; x != NULL; x = x->next, found++)
    fprintf(stderr, "tlua-sim: leak: an executable graph of %d nodes\n", x->graph->count);
  return found;
}
