-- prune.lua: what the REPL's ?name shows of nn.utils.prune: pure data.
return {
  ["tl.nn.utils.prune"] = [[
Pruning: masks as in torch.nn.utils.prune, and compact(), which makes a pruned model smaller and faster.
local prune = nn.utils.prune; prune.l1_unstructured(layer, "weight", {amount=0.3}).
A pruned module owns weight_orig (the same Parameter: optimizers keep working) and the buffer weight_mask; before each
forward weight = weight_orig * weight_mask. amount is a fraction (0..1) of what is still unmasked, rounded half to even;
{count=3} is a number. Pruning again adds to the mask. Of equal scores the first goes first.]],
  ["tl.nn.utils.prune.identity"] = [[
identity(module, name): weight_orig and a mask of ones; nothing is pruned. For loading the state of a pruned module.]],
  ["tl.nn.utils.prune.l1_unstructured"] = [[
l1_unstructured(module, name, {amount= or count=, importance_scores=}): the weights of the smallest absolute value (or
score) are masked. Returns the module. Errors: neither or both of amount and count, more than there are.]],
  ["tl.nn.utils.prune.random_unstructured"] = [[
random_unstructured(module, name, {amount= or count=, generator=}): any of the weights.]],
  ["tl.nn.utils.prune.ln_structured"] = [[
ln_structured(module, name, {amount= or count=, n=2, dim=1, importance_scores=}): the channels of dim with the smallest
n-norm (math.huge: the largest absolute value) are masked whole.]],
  ["tl.nn.utils.prune.random_structured"] = [[
random_structured(module, name, {amount= or count=, dim=1, generator=}): any of the channels of dim.]],
  ["tl.nn.utils.prune.global_unstructured"] = [[
global_unstructured({{module, name}, ...}, prune.l1_unstructured, {amount= or count=, importance_scores={t, ...}}): single
weights of all these parameters together. The method may be prune.random_unstructured, or be left out.]],
  ["tl.nn.utils.prune.custom_from_mask"] = [[
custom_from_mask(module, name, mask): masks what is 0 in mask, a tensor of the parameter's shape.]],
  ["tl.nn.utils.prune.two_four"] = [[
two_four(module, name, {dim=2}): of every four consecutive weights along dim (the inputs) the two of the largest absolute
value stay: the pattern of sparse tensor cores. The size of dim must be a multiple of 4. Mishra et al. 2021.]],
  ["tl.nn.utils.prune.remove"] = [[
remove(module, name): bakes the zeros in; module.weight is the Parameter again. Training may regrow them.]],
  ["tl.nn.utils.prune.is_pruned"] = [[
is_pruned(module): whether it, or a module below it, has a pruned parameter.]],
  ["tl.nn.utils.prune.compact"] = [[
local small, report = compact(model, {example=x}): a copy of the model without the channels that pruning made useless; x is
an input, or a list of arguments. A forward pass is traced, and channels are followed through Linear, Conv1d, Conv2d (also
grouped), BatchNorm, pointwise operations, pooling, Flatten, additions and cat. A channel leaves if nobody uses it or if
it is a constant that the next bias can take; the result is compared with the masked model's on x (1e-5) in eval mode.
print(report) says what left, and what stays and why. Conv and BatchNorm: prune the conv's weight and bias and the
norm's weight and bias, so that the channel is 0. The optimizer must be made anew. Errors: the smaller model does not run
or differs; the model returns something else than one tensor.]],
  ["tl.nn.utils.prune.sparse"] = [[
local fast, report = sparse(model, {batch=1, least=, state=}): a copy of the model for inference on the CPU, in eval mode,
whose Linear layers with enough zeros hold only the other weights, in compressed rows (float32). Enough is what was
measured (docs/pruning.md) for layers of that size and calls of `batch` samples, or least, a share from 0 to 1; the others
stay dense, print(report) says why. Such a layer has buffers, no parameters: in training mode, or when a gradient is asked
for, it is an error. sparse(model, {state=tl.load(path)}) makes the copy that this state dict was taken of.]],
  ["tl.nn.utils.prune.sparsity"] = [[
sparsity(model): a list of {name=, zeros=, total=, sparsity=, pruned=}, one a parameter, with zeros, total and sparsity of
all; print() shows a table.]],
  ["tl.nn.utils.prune.sensitivity"] = [[
sensitivity(model, evaluate, {amounts={0.1, 0.3, 0.5, 0.7, 0.9}, method=prune.l1_unstructured, dim=, n=}): evaluate(copy)
for copies of the model in which one layer's weight is pruned. A list of {name=, [amount]=value}, with unpruned.]],
  ["tl.nn.utils.prune.rewind"] = [[
rewind(model, state): the parameters and buffers get the values of a state dict from before the pruning, the masks stay:
lottery tickets (Frankle & Carbin 2019). A state dict shares memory with its model: take it of a clone.]],
  ["tl.nn.utils.prune.schedule"] = [[
schedule.cubic{start=0, stop=, final=, every=1, initial=0, method=prune.l1_unstructured, dim=, n=}: gradual pruning during
training: s_t = final + (initial - final) (1 - (t - start) / (stop - start))^3 (Zhu & Gupta 2017).
schedule:step{{module, name}, ...} once a training step; schedule:at(t); state_dict, load_state_dict.]],
}
