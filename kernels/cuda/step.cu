// step.cu: what an optimizer and a gradient scaler count: steps, coefficients, scale. They stay on the device, so that a
// training step asks it nothing and a recorded one (tl_graph) goes on counting.
#include <cfloat>

#include "launch.h"
#include "step.h"

static __global__ void plan_kernel(tl_plan p) {
  bool skip = p.found != nullptr && *p.found != 0;
  GPU_LOOP(i, p.n) {
    if (p.group[i] < 0) continue;
    const tl_param_group *g = &p.groups[p.group[i]];
    tl_progress *at = &p.progress[i];
    double mu_product = at->mu_product;
    step_rule(p.kind, g, at->step, at->primed != 0, &mu_product, &p.by[i]);
    p.by[i].skip = skip;
    if (skip) continue;
    at->step += 1;
    at->mu_product = mu_product;
    if (step_states(p.kind, g) & 1) at->primed = 1;
  }
}

TL_CUDA_ENTRY(plan)(const tl_plan *p) {
  if (p->n == 0) return TL_OK;
  return gpu_launch("plan", plan_kernel, gpu_blocks(p->n), GPU_BLOCK, 0, *p);
}

// PyTorch's arithmetic: a product in double, kept as float32. Below the smallest normal number the reciprocal would be
// infinite.
static __global__ void scale_kernel(tl_scale_update u) {
  bool found = false;
  for (int i = 0; i < u.n; i++) {
    found = found || u.found[i] != 0;
    u.found[i] = 0;
  }
  tl_scale s = *u.at;
  if (found) {
    float smaller = (float)(s.scale * u.backoff_factor);
    s.scale = smaller < FLT_MIN ? FLT_MIN : smaller;
    s.tracker = 0;
  } else if (s.tracker + 1 < u.growth_interval) {
    s.tracker++;
  } else {
    double larger = s.scale * u.growth_factor;
    if (larger <= FLT_MAX) s.scale = (float)larger;
    s.tracker = 0;
  }
  s.inverse = (float)(1 / (double)s.scale);
  *u.at = s;
}

TL_CUDA_ENTRY(scale_update)(const tl_scale_update *u) { return gpu_launch("scale_update", scale_kernel, 1, 1, 0, *u); }
