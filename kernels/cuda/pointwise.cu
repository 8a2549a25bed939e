// pointwise.cu: every row of ops.def; which file has the function, large problems in parts.
#include "pointwise.h"

typedef tl_status part_fn(int fn, const gpu_pointwise *a);

static part_fn *part_of(int fn, int compute, int *inputs) {
  static const struct {
    part_fn *part;
    int inputs;
  } parts[] = {
#define TL_UNARY(name, kind, f, df, saves) {gpu_pointwise_unary, 1}, {gpu_pointwise_unary_grad, 2},
#define TL_UNARY1 TL_UNARY
#define TL_UNARY2 TL_UNARY
#define TL_BINARY(name, kind, f, da, db, saves) \
  {gpu_pointwise_binary, 2}, {gpu_pointwise_binary_grad, 3}, {gpu_pointwise_binary_grad, 3},
#include "ops/ops.def"
      {gpu_pointwise_binary, 2}, // add_scaled
      {gpu_pointwise_binary, 3}, // addcmul
      {gpu_pointwise_binary, 3}, // addcdiv
      {gpu_pointwise_binary, 2}, // lerp
      {gpu_pointwise_binary, 3}, // where
  };
  static_assert(sizeof parts / sizeof *parts == TL_FNS, "a row for every function");
  *inputs = parts[fn].inputs;
  return compute == TL_INT64 ? gpu_pointwise_integer : parts[fn].part;
}

TL_CUDA_ENTRY(pointwise)(int fn, int compute, const tl_iter *it, double p, double q) {
  if (it->numel == 0) return TL_OK;
  int inputs;
  part_fn *part = part_of(fn, compute, &inputs);
  if (inputs != it->n - 1)
    return TL_FAIL(TL_ERR_UNSUPPORTED, "pointwise", "function %d has %d inputs, not %d", fn, inputs, it->n - 1);
  return gpu_split(it, it->ndim, GPU_MAX_INDEX, 0, [=](const tl_iter *some, int64_t) {
    gpu_pointwise a = gpu_pointwise_of(some, compute, p, q);
    return part(fn, &a);
  });
}
