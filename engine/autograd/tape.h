/* tape.h: the tape of C nodes that operations record and tl_backward() walks. */
#ifndef TL_AUTOGRAD_TAPE_H
#define TL_AUTOGRAD_TAPE_H

#include "core/tensor.h"

typedef struct tl_node tl_node;

/* Computes gradients of a node's inputs. grad_out[i] is the gradient of output i (NULL: none arrived; with one output it
 * is never NULL), any strides. Sets grad_in[j] to a new reference for every j with tl_node_needs(n, j); others stay NULL.
 * Runs with gradients disabled, so public operations may be used. */
typedef tl_status (*tl_backward_fn)(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in);

typedef struct tl_node_class {
  const char *name;            /* what the user called, e.g. "conv2d": for messages */
  tl_backward_fn backward;     /* NULL: the host computes it (custom functions) */
  void (*release)(tl_node *n); /* frees what the payload owns; may be NULL */
} tl_node_class;

/* Where a gradient goes: output `slot` of `node`. node NULL: the input needs no gradient. */
typedef struct tl_edge {
  tl_node *node;
  int slot;
} tl_edge;

typedef struct tl_saved {
  tl_tensor *tensor; /* an alias without history; NULL for an absent optional */
  uint32_t version;  /* of its storage when it was saved */
} tl_saved;

struct tl_hook { /* a list of host-numbered hooks on one output */
  struct tl_hook *next;
  int id; /* the host's number; negative ones are the engine's own */
  int slot;
  tl_tensor *keeper;      /* RETAIN_GRAD: the gradient is stored in keeper->grad. Not owned: it takes its hook away */
  struct tl_watch *watch; /* WATCH: slot is the leaf's index there (watch.h). Not owned */
};
#define TL_HOOK_RETAIN_GRAD (-1)
#define TL_HOOK_WATCH (-2)

struct tl_node {
  const tl_node_class *cls;
  int refs;
  uint16_t inputs, outputs, saved_count;
  bool released; /* backward has used it and gave its saved values back */
  uint32_t payload_bytes, bytes;
  uint64_t seq;          /* order of creation */
  uint64_t visit;        /* the walk that saw it last */
  int pending;           /* gradients that this walk still owes it */
  int host_id;           /* custom functions: the host's number */
  struct tl_hook *hooks; /* owned */
  tl_node *next_dead;    /* list of nodes being freed: chains are long, the stack is not */
  tl_edge *edges;        /* [inputs] */
  tl_saved *saved;       /* [saved_count] */
  tl_tensor **grads;     /* [outputs] what arrived in this walk */
  void *payload;         /* what the operation wants to remember, 16-byte aligned */
};

/* Should an operation on these tensors record? (gradients enabled and one of them requires them; NULL entries are fine) */
bool tl_records(int n, tl_tensor *const *inputs);

/* Records one node for outputs that were just computed from inputs, if tl_records(): outputs then require gradients.
 * saved tensors are kept as aliases with their versions (an output may be saved). payload is copied.
 * Does nothing (TL_OK, *node = NULL) when no gradient is wanted. node may be NULL when the caller does not need it.
 * Non-floating outputs are skipped. */
tl_status tl_record(const tl_node_class *cls, int outputs, tl_tensor *const *out, int inputs, tl_tensor *const *in,
                    int saved, tl_tensor *const *save, const void *payload, size_t payload_bytes, tl_node **node);
/* One output. */
static inline tl_status tl_record1(const tl_node_class *cls, tl_tensor *out, int inputs, tl_tensor *const *in,
                                   int saved, tl_tensor *const *save, const void *payload, size_t payload_bytes) {
  return tl_record(cls, 1, &out, inputs, in, saved, save, payload, payload_bytes, NULL);
}

static inline bool tl_node_needs(const tl_node *n, int input) { return n->edges[input].node != NULL; }
/* Saved tensor i, borrowed, after its version was checked: "modified in place" is TL_ERR_STATE. */
tl_status tl_node_saved(tl_node *n, int i, tl_tensor **out);

/* Asked by a node's backward about an input that needs a gradient: the sum of what other nodes gave in this walk, if it may
 * be changed (borrowed); else NULL. To add to it and give no gradient is the same as giving one. */
tl_tensor *tl_node_arrived(const tl_node *n, int input);

/* Asked by a node's backward: the sum of what has arrived where input i's gradient goes, if it has input i's elements in
 * order and nobody else holds it; NULL: none. Backward may add to it, and leaves grad_in[i] NULL then. */
tl_tensor *tl_node_sum(const tl_node *n, int i);
/* Asked by a node's backward: will its saved values be needed once more (retain_graph)? Else it may use them up. */
bool tl_walk_retains(void);

/* The prologue of an in-place operation on t: not overlapping itself, not a leaf that requires gradients (while they are
 * enabled), interrupt flag. `operands` may alias t only exactly. */
tl_status tl_check_inplace(const char *op, tl_tensor *t);
/* Counts a change of t's elements that no history is kept of. */
static inline void tl_touch(tl_tensor *t) { t->storage->version++; }

/* A write into a tensor that the tape is about to follow. Everything that may fail comes before the first element
 * changes: tl_write_begin(), then the kernel, then tl_write_end(). */
typedef struct tl_write {
  tl_node *node;    /* t's new history; NULL: nothing is recorded */
  tl_node *through; /* and its base's, when t is a view */
} tl_write;
/* t = f(t, in[1..]): in[0] is t itself (its old history), or NULL when the old value does not matter. A saved tensor that
 * is t stands for the new value. The saved tensors must not change before tl_write_end(). */
tl_status tl_write_begin(tl_write *w, const tl_node_class *cls, tl_tensor *t, int inputs, tl_tensor *const *in,
                         int saved, tl_tensor *const *save, const void *payload, size_t payload_bytes);
/* t is overwritten by values without history. */
tl_status tl_overwrite_begin(tl_write *w, tl_tensor *t);
/* status is the kernel's. TL_OK: counts the change and gives t its new history (also through views of a base); else
 * nothing happened. Returns status. */
tl_status tl_write_end(tl_write *w, tl_tensor *t, tl_status status);

/* dst = src for a tensor of the same shape and device that shares no memory with dst, after dst was checked: an operation
 * that worked in a copy brings it back. No interrupt comes between, nothing is recorded, the change is not counted. */
tl_status tl_write_back(tl_tensor *dst, tl_tensor *src);

/* A differentiable view: records `cls` and remembers the base, so that in-place changes of either side are seen.
 * view was made by tl_alias_as(t, ...). */
tl_status tl_record_view(const tl_node_class *cls, tl_tensor *view, tl_tensor *t, const void *payload, size_t bytes);

/* Where t's gradient goes: its node, or its accumulation node (created on demand); {NULL,0} if it needs none. The edge
 * holds a reference. */
tl_status tl_edge_of(tl_tensor *t, tl_edge *edge);
void tl_node_drop(tl_node *n);

/* sum += g, in place where nobody else holds it. Takes over *g's reference. */
tl_status tl_accumulate(tl_tensor **sum, tl_tensor *g);

#endif
