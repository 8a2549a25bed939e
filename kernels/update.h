/* update.h: the optimizers' update rules for one element, shared by the CPU and CUDA kernels.
 *
 * TL_UPDATE_RULES (backend/update.h) lists them. f32_update_NAME(c, g, p, a, b, d): coefficients, gradient, and where
 * the parameter and the state live. Kept in the order of PyTorch's operations. */
#ifndef TL_KERNELS_UPDATE_H
#define TL_KERNELS_UPDATE_H

#include "backend/update.h"
#include "formula.h"

#define T float
#define U(name) f32_##name
#include "update_rules.h"
#undef T
#undef U

#define T double
#define U(name) f64_##name
#include "update_rules.h"
#undef T
#undef U

#endif
