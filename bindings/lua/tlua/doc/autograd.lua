-- autograd.lua: what the REPL's ?name shows of gradients: pure data.
return {
  ["x:backward"] = [[
loss:backward(), x:backward(grad, {retain_graph=false}): adds the gradient of x to .grad of every leaf it depends on. grad
has x's shape and may be left out for one element. The graph is freed unless retain_graph.]],
  ["x:grad"] = "x.grad: the gradient that backward left, or nil. x.grad = nil clears it.",
  ["x:requires_grad"] = "x.requires_grad: are gradients recorded? Can be set on leaves of a floating dtype.",
  ["x:requires_grad_"] = "x:requires_grad_(on=true): sets x.requires_grad; returns x.",
  ["x:is_leaf"] = "x.is_leaf: was x not computed from recorded tensors?",
  ["x:grad_fn"] = "x.grad_fn: the name of the operation that computed x, nil for a leaf.",
  ["x:retain_grad"] = "x:retain_grad(): a computed tensor keeps its gradient in x.grad, too; returns x.",
  ["x:register_hook"] = [[
x:register_hook(f): backward calls f(grad) with x's gradient; a tensor that f returns takes its place. Returns a handle
with :remove(). An f that holds x keeps both alive until it is removed.]],
  ["tl.no_grad"] = "no_grad(f, ...): f(...) without recording; returns what f returns.",
  ["tl.enable_grad"] = "enable_grad(f, ...): f(...) with recording, also inside no_grad.",
  ["tl.is_grad_enabled"] = "is_grad_enabled(): are gradients recorded?",
  ["tl.set_grad_enabled"] = "set_grad_enabled(on): from now on; returns the former state.",
  ["tl.autograd"] = "grad, backward, Function, gradcheck, detect_anomaly. Gradients of gradients are not recorded.",
  ["tl.autograd.grad"] = [[
grad(outputs, inputs, {grad_outputs=, retain_graph=false, allow_unused=false}): gradients of the outputs (their sum) with
respect to the inputs; .grad stays as it is. A tensor or a table of tensors each; the result is like inputs.]],
  ["tl.autograd.backward"] = "backward(outputs, grads, {retain_graph=false}): of several outputs in one walk.",
  ["tl.autograd.Function"] = [[
Function{forward=f(ctx, ...), backward=f(ctx, ...), name=}: an operation with a derivative of its own; call what it returns,
F(x, ...). forward runs unrecorded, its arguments may be anything. backward gets one gradient an output (zeros where
none arrived) and returns one an argument (nil: none). ctx:save_for_backward(a, ...) keeps tensors for ctx.saved_tensors
and checks that nobody changed them; other fields of ctx keep anything; ctx.needs_input_grad[i];
ctx:mark_non_differentiable(y), ctx:set_materialize_grads(false).]],
  ["tl.autograd.gradcheck"] = [[
gradcheck(f, inputs, {eps=1e-6, atol=1e-5, rtol=1e-3, raise_exception=true}): compares f's derivatives by backward with central
differences in float64. True, or an error that names the element.]],
  ["tl.autograd.detect_anomaly"] = [[
detect_anomaly(on): backward stops with the name of the operation whose derivative made the first nan. Slow. Returns the
former state.]],
  ["tl.utils.checkpoint"] = [[
checkpoint(f, ...): f(...) without keeping what its backward needs: backward runs f again with the same random numbers
(Chen et al. 2016). Arguments and parameters inside f get their gradients; other tensors that f uses must not depend on
anything that does. The random numbers are those of tl.manual_seed's generators: what f draws from a tl.Generator of its own
is not the same again. f may be a module, call checkpoint itself, and take and return anything. docs/memory.md]],
  ["tl.utils.checkpoint_sequential"] = [[
checkpoint_sequential(modules, segments, x): the modules of a Sequential or a list, one after the other, in so many parts:
what goes from one part to the next is kept, all else is computed anew in backward. The last part runs as always.]],
  ["tl.memory_plan"] = [[
memory_plan(model, batch, {loss=, optimizer=, amp=, device="meta"}): the bytes of a training step, before it runs: a table
{parameters=, buffers=, gradients=, optimizer=, batch=, other=, activations=, forward=, backward=, step=, peak=} that
prints as a list. model is a module, which stays as it is, or a function that makes one: it is called on the device
"meta", where the largest model takes no memory. batch: a tensor or a list of them. loss(model, ...): a loss of one
element (default: model(...):sum()). optimizer(params): makes the optimizer. amp: autocast's dtype. Another device than
"meta" really runs two steps there. Allocators round up, and a CUDA context takes half a GB: neither is counted.]],
}
