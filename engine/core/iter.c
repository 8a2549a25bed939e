/* iter.c: operands broadcast to one shape, ordered for memory, merged where they can be. */
#include "core/iter.h"

#include <string.h>

static void set_operand(tl_operand *o, const tl_tensor *t, double constant, int ndim) {
  if (t == NULL) {
    o->data = NULL;
    o->dtype = TL_FLOAT64;
    o->constant = constant;
    for (int d = 0; d < ndim; d++) o->stride[d] = 0;
    return;
  }
  int64_t size = (int64_t)tl_dtype_size(t->dtype);
  o->data = tl_data(t);
  o->dtype = t->dtype;
  o->constant = 0;
  int lead = ndim - t->ndim;
  for (int d = 0; d < lead; d++) o->stride[d] = 0;
  for (int d = 0; d < t->ndim; d++) o->stride[lead + d] = t->shape[d] == 1 ? 0 : t->strides[d] * size;
}

/* Should dim b be outside dim a? The output decides first, then the others. */
static bool swap_order(const tl_iter *it, int a, int b) {
  for (int i = 0; i < it->n; i++) {
    int64_t sa = it->op[i].stride[a], sb = it->op[i].stride[b];
    if (sa == 0 || sb == 0 || sa == sb) continue;
    return sa < sb;
  }
  return false;
}

static void swap_dims(tl_iter *it, int a, int b) {
  int64_t s = it->shape[a];
  it->shape[a] = it->shape[b];
  it->shape[b] = s;
  for (int i = 0; i < it->n; i++) {
    s = it->op[i].stride[a];
    it->op[i].stride[a] = it->op[i].stride[b];
    it->op[i].stride[b] = s;
  }
}

/* Insertion sort of dims first..end-1: outermost = largest strides first; stable. */
static void order_dims(tl_iter *it, int first, int end) {
  for (int d = first + 1; d < end; d++)
    for (int e = d; e > first && swap_order(it, e - 1, e); e--) swap_dims(it, e - 1, e);
}

/* Merges dims first..end-1 (size-1 dims vanish); returns how many remain. They end at first + result. */
static int merge_dims(tl_iter *it, int first, int end) {
  int kept = first; /* dims first..kept-1 are done */
  for (int d = first; d < end; d++) {
    if (it->shape[d] == 1) continue;
    bool merges = kept > first;
    for (int i = 0; i < it->n && merges; i++) merges = it->op[i].stride[kept - 1] == it->op[i].stride[d] * it->shape[d];
    if (merges) {
      it->shape[kept - 1] *= it->shape[d];
      for (int i = 0; i < it->n; i++) it->op[i].stride[kept - 1] = it->op[i].stride[d];
      continue;
    }
    it->shape[kept] = it->shape[d];
    for (int i = 0; i < it->n; i++) it->op[i].stride[kept] = it->op[i].stride[d];
    kept++;
  }
  return kept - first;
}

static void pad_scalar(tl_iter *it) {
  if (it->ndim > 0) return;
  it->ndim = 1;
  it->shape[0] = 1;
  for (int i = 0; i < it->n; i++)
    it->op[i].stride[0] = it->op[i].data == NULL ? 0 : (int64_t)tl_dtype_size(it->op[i].dtype);
}

/* Everything contiguous and of one shape, or constant: the usual case of small networks. */
static bool init_flat(tl_iter *it, int n, tl_tensor *const *tensors, const double *constants) {
  const tl_tensor *out = tensors[0];
  for (int i = 0; i < n; i++)
    if (tensors[i] != NULL && (!tensors[i]->contiguous || !tl_same_shape(tensors[i], out))) return false;
  it->ndim = 1;
  it->numel = it->shape[0] = out->numel;
  for (int i = 0; i < n; i++) {
    tl_operand *o = &it->op[i];
    const tl_tensor *t = tensors[i];
    if (t == NULL) {
      o->data = NULL;
      o->dtype = TL_FLOAT64;
      o->constant = constants[i];
      o->stride[0] = 0;
    } else {
      o->data = tl_data(t);
      o->dtype = t->dtype;
      o->stride[0] = (int64_t)tl_dtype_size(t->dtype);
    }
  }
  return true;
}

void tl_iter_init(tl_iter *it, int n, tl_tensor *const *tensors, const double *constants, int ndim,
                  const int64_t *shape) {
  it->n = n;
  if (tensors[0]->ndim == ndim && init_flat(it, n, tensors, constants)) return;
  it->ndim = ndim;
  it->numel = 1;
  for (int d = 0; d < ndim; d++) {
    it->shape[d] = shape[d];
    it->numel *= shape[d];
  }
  for (int i = 0; i < n; i++) set_operand(&it->op[i], tensors[i], constants == NULL ? 0 : constants[i], ndim);
  if (it->numel > 0) {
    order_dims(it, 0, ndim);
    it->ndim = merge_dims(it, 0, ndim);
  }
  pad_scalar(it);
}

void tl_iter_init_reduce(tl_iter *it, tl_tensor *out, tl_tensor *in, uint32_t mask, int *reduced) {
  int ndim = in->ndim, kept = 0;
  int order[TL_MAX_DIMS];
  it->n = 2;
  it->numel = in->numel;
  for (int d = 0; d < ndim; d++)
    if (!(mask & 1u << d)) order[kept++] = d;
  int k = kept;
  for (int d = 0; d < ndim; d++)
    if (mask & 1u << d) order[k++] = d;
  int64_t in_size = (int64_t)tl_dtype_size(in->dtype), out_size = (int64_t)tl_dtype_size(out->dtype);
  it->op[0] = (tl_operand){.data = tl_data(out), .dtype = out->dtype};
  it->op[1] = (tl_operand){.data = tl_data(in), .dtype = in->dtype};
  bool keepdim = out->ndim == in->ndim;
  for (int i = 0; i < ndim; i++) {
    int d = order[i];
    it->shape[i] = in->shape[d];
    it->op[1].stride[i] = in->shape[d] == 1 ? 0 : in->strides[d] * in_size;
    int64_t stride = i < kept ? out->strides[keepdim ? d : i] * out_size : 0;
    it->op[0].stride[i] = in->shape[d] == 1 ? 0 : stride;
  }
  int tail = ndim - kept;
  if (it->numel > 0) {
    order_dims(it, 0, kept);
    order_dims(it, kept, ndim);
    int lead = merge_dims(it, 0, kept);
    tail = merge_dims(it, kept, ndim);
    for (int i = 0; i < tail && lead < kept; i++) {
      it->shape[lead + i] = it->shape[kept + i];
      for (int o = 0; o < 2; o++) it->op[o].stride[lead + i] = it->op[o].stride[kept + i];
    }
    it->ndim = lead + tail;
  } else {
    it->ndim = ndim;
  }
  *reduced = tail;
  pad_scalar(it);
}
