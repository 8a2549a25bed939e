-- amp.lua: what the REPL's ?name shows of tl.amp: pure data.
return {
  ["tl.amp"] = [[
Mixed precision training (Micikevicius et al. 2018): amp.autocast and amp.GradScaler. An iteration is
local loss = amp.autocast({device="cuda"}, function() return criterion(model(x), y) end)
scaler:scale(loss):backward(); scaler:unscale_(opt) and clipping, if wanted; scaler:step(opt); scaler:update().
Parameters, gradients and the optimizer's state stay float32. bfloat16 has float32's range and needs no scaler.]],
  ["tl.amp.autocast"] = [[
amp.autocast({device=, dtype=, enabled=true}, f, ...): returns what f(...) returns. Inside, operations on that kind of
device convert their floating arguments: matmul, mm, bmm, addmm, einsum, linear, convolutions to dtype; softmax, the
losses, layer, group and RMS norm, norm, sum, prod, cumsum, logsumexp, exp, log, pow, rsqrt, reciprocal, softplus to
float32; cat, stack, dot, addcmul to the widest. batch_norm keeps float32 statistics, linear_cross_entropy has logits of
dtype and a float32 loss. The rest runs in what it gets; float64 and in-place operations are left alone.
device: "cuda" if there is one, else "cpu". dtype: float16 on cuda, bfloat16 on cpu, either may be asked for.
Blocks nest; enabled=false runs f without conversions; an error in f leaves no block open. A parameter is converted
once in the outermost block. Backward converts nothing, inside or outside.
Errors: no such device (unless enabled=false), another dtype, binary_cross_entropy on probabilities.]],
  ["tl.amp.is_autocast_enabled"] = "is_autocast_enabled(device?): is a block open for it (for any) that converts?",
  ["tl.amp.get_autocast_dtype"] = "get_autocast_dtype(device?): the low precision type of the innermost block.",
  ["tl.amp.GradScaler"] = [[
GradScaler{init_scale=65536, growth_factor=2, backoff_factor=0.5, growth_interval=2000, enabled=true}
Multiplies the loss so that small gradients survive float16; divides them again before the step; skips a step whose
gradients are not all finite. After such an update the scale is multiplied by backoff_factor, after growth_interval good
ones in a row by growth_factor. Order: backward (all accumulation), unscale_, clip, step, update. Several optimizers: step
each, update once. enabled=false: everything goes on as without a scaler.]],
  ["tl.amp.GradScaler.scale"] = "scaler:scale(loss): loss * scale, recorded; a table of tensors gives a table.",
  ["tl.amp.GradScaler.unscale_"] = [[
scaler:unscale_(opt): divides the gradients of opt's parameters by the scale, for clipping before the step.
Errors: twice between updates, after step, float16 gradients.]],
  ["tl.amp.GradScaler.step"] = [[
scaler:step(opt): unscales if unscale_ did not, then opt:step() if all gradients are finite. Returns whether it stepped
(nil on a GPU, which decides by itself: get_scale() waits and tells whether the scale fell);
a skipped step changes no parameter, no moment and no step count, and schedulers do not warn of it.
Errors: twice between updates, no parameter has a gradient.]],
  ["tl.amp.GradScaler.update"] = [[
scaler:update(new_scale?): the scale for the next iteration, by the rule or as given. Once, after every optimizer's step.
Error: nothing was unscaled or stepped since the last update.]],
  ["tl.amp.GradScaler.get_scale"] = "scaler:get_scale(): the current scale; 1 when disabled. Waits for a GPU's answer.",
  ["tl.amp.GradScaler.state_dict"] = [[
scaler:state_dict(): {scale=, growth_factor=, backoff_factor=, growth_interval=, _growth_tracker=}; {} when disabled.]],
  ["tl.amp.GradScaler.load_state_dict"] = [[
scaler:load_state_dict(dict): goes on where the saved one stopped. A disabled scaler ignores it; an empty dict is an
error.]],
}
