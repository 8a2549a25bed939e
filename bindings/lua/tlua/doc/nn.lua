-- nn.lua: what the REPL's ?name shows of tl.nn: pure data.
return {
  ["tl.nn"] = [[
Modules, losses, their functional forms (nn.functional, also tl.F), fills for weights (nn.init) and utilities
(nn.utils). Names, options and defaults are PyTorch's; dims count from 1, labels and ids from 0.]],

  ["tl.nn.Module"] = [[
local Net = nn.Module:extend("Net"); function Net:init(...) ... end; function Net:forward(x) ... end
Net(...) makes one, model(x) calls forward. A module, an nn.Parameter or any leaf tensor that requires gradients is
registered when it is assigned to a field; other tensors need register_buffer. Methods: parameters, named_parameters,
buffers, named_buffers, modules, named_modules, children, named_children, state_dict, load_state_dict, train, eval, to,
zero_grad, apply, clone, requires_grad_, register_buffer, register_parameter, register_forward_pre_hook,
register_forward_hook, is_a. print(model) draws the tree.]],
  ["tl.nn.Module.extend"] = [[
Class:extend(name): a new class below Class. Its init(...) gets the constructor's arguments.]],
  ["tl.nn.Module.parameters"] = [[
m:parameters(): list of the parameters of m and everything below it, each once, in registration order.]],
  ["tl.nn.Module.named_parameters"] = [[
for name, p in m:named_parameters() do ... end: names as PyTorch's, e.g. "fc1.weight".]],
  ["tl.nn.Module.buffers"] = [[
m:buffers(): list of the tensors that are state but not trained, e.g. BatchNorm's running_mean.]],
  ["tl.nn.Module.named_buffers"] = "for name, b in m:named_buffers() do ... end",
  ["tl.nn.Module.modules"] = "m:modules(): list of m and every module below it, each once, parents first.",
  ["tl.nn.Module.named_modules"] = "for name, module in m:named_modules() do ... end; m's own name is \"\".",
  ["tl.nn.Module.children"] = "m:children(): list of the modules that are fields of m.",
  ["tl.nn.Module.named_children"] = "for name, child in m:named_children() do ... end",
  ["tl.nn.Module.state_dict"] = [[
m:state_dict(): table name -> tensor of all parameters and persistent buffers, with PyTorch's names. The tensors share
memory with m. Saved by tl.save(path, m:state_dict()).]],
  ["tl.nn.Module.load_state_dict"] = [[
m:load_state_dict(dict, {strict=true}): copies values in place; returns the lists of missing and unexpected keys.
Errors, before anything is copied: missing or unexpected keys (strict), a wrong shape, a value that is no tensor.]],
  ["tl.nn.Module.train"] = "m:train(on): training mode (default) or not, for m and everything below it. Returns m.",
  ["tl.nn.Module.eval"] = "m:eval(): m:train(false): BatchNorm uses its running statistics, Dropout does nothing.",
  ["tl.nn.Module.to"] = [[
m:to("cuda"), m:to("float64"), m:to("cuda:1", "float16"): moves parameters and buffers; only floating ones change dtype.
Parameters stay the same tensors, so lists of them and optimizers keep working. Returns m.]],
  ["tl.nn.Module.zero_grad"] = "m:zero_grad({set_to_none=true}): clears the gradients of all parameters.",
  ["tl.nn.Module.apply"] = "m:apply(f): f(module) for everything below m, then for m. Returns m.",
  ["tl.nn.Module.clone"] = [[
m:clone(): a deep copy with its own parameters, buffers and hooks; what is shared inside stays shared.]],
  ["tl.nn.Module.requires_grad_"] = "m:requires_grad_(on): unfreezes (default) or freezes all parameters. Returns m.",
  ["tl.nn.Module.register_buffer"] = [[
m:register_buffer(name, tensor or nil, {persistent=true}): state that is not trained; persistent=false keeps it out of
the state dict.]],
  ["tl.nn.Module.register_parameter"] = [[
m:register_parameter(name, tensor or nil): a parameter, whether it requires gradients or not.]],
  ["tl.nn.Module.register_forward_pre_hook"] = [[
m:register_forward_pre_hook(f): f(module, inputs) before forward, inputs being the list of arguments; what it returns
replaces them. Returns a handle; handle:remove() takes the hook away.]],
  ["tl.nn.Module.register_forward_hook"] = [[
m:register_forward_hook(f): f(module, inputs, output) after forward; what it returns replaces the output.]],
  ["tl.nn.Module.is_a"] = "m:is_a(Class): is m of this class or of one below it?",
  ["tl.nn.Parameter"] = [[
nn.Parameter(tensor): marks it as trainable (it requires gradients then); a computed tensor is detached first.]],
  ["tl.nn.is_module"] = "nn.is_module(x): is x a module?",

  ["tl.nn.Linear"] = [[
nn.Linear(in_features, out_features, {bias=true, dtype=, device=})
y = x W^T + b: (.., in_features) -> (.., out_features). weight (out, in) and bias (out) are U(+-1/sqrt(in)).]],
  ["tl.nn.Conv1d"] = [[
nn.Conv1d(in_channels, out_channels, kernel_size, {stride=1, padding=0, dilation=1, groups=1, bias=true})
(N, in, L) or (in, L) -> (N, out, L'); weight (out, in/groups, K). padding may be "same" or "valid".]],
  ["tl.nn.Conv2d"] = [[
nn.Conv2d(in_channels, out_channels, kernel_size, {stride=1, padding=0, dilation=1, groups=1, bias=true})
(N, in, H, W) or (in, H, W) -> (N, out, H', W'); H' = (H + 2*padding - dilation*(kernel-1) - 1) // stride + 1. Sizes are
one number or {height, width}. weight (out, in/groups, KH, KW). padding may be "same" or "valid".]],
  ["tl.nn.ConvTranspose2d"] = [[
nn.ConvTranspose2d(in_channels, out_channels, kernel_size, {stride=1, padding=0, output_padding=0, dilation=1, groups=1,
bias=true}): the gradient of Conv2d as a layer. H' = (H-1)*stride - 2*padding + dilation*(kernel-1) + output_padding + 1;
weight (in, out/groups, KH, KW).]],
  ["tl.nn.BatchNorm1d"] = [[
nn.BatchNorm1d(num_features, {eps=1e-5, momentum=0.1, affine=true, track_running_stats=true}): (N, C) or (N, C, L)
Normalises each channel over the batch, in eval by the running statistics. momentum=false: plain average of all batches.
One value per channel in training is an error. Ioffe & Szegedy 2015.]],
  ["tl.nn.BatchNorm2d"] = "nn.BatchNorm2d(num_features, options): (N, C, H, W). Options as BatchNorm1d's.",
  ["tl.nn.BatchNorm3d"] = "nn.BatchNorm3d(num_features, options): (N, C, D, H, W). Options as BatchNorm1d's.",
  ["tl.nn.SyncBatchNorm"] = [[
nn.SyncBatchNorm(num_features, options): batch normalisation over the batches of all ranks; (N, C, ..).
nn.SyncBatchNorm.convert_sync_batchnorm(model) turns every BatchNorm in a model into one.]],
  ["tl.nn.LayerNorm"] = [[
nn.LayerNorm(normalized_shape, {eps=1e-5, elementwise_affine=true, bias=true}): over the last dims, whose sizes
normalized_shape gives (a number or a list). Ba, Kiros & Hinton 2016.]],
  ["tl.nn.GroupNorm"] = "nn.GroupNorm(num_groups, num_channels, {eps=1e-5, affine=true}): (N, C, ..). Wu & He 2018.",
  ["tl.nn.RMSNorm"] = [[
nn.RMSNorm(normalized_shape, {eps=, elementwise_affine=true}): x / sqrt(mean(x^2) + eps) * weight over the last dims;
eps is the dtype's machine epsilon unless given. Zhang & Sennrich 2019.]],
  ["tl.nn.Embedding"] = [[
nn.Embedding(num_embeddings, embedding_dim, {padding_idx=}): ids 0..num_embeddings-1 (..) -> (.., embedding_dim).
weight N(0, 1). Row padding_idx (an id) is zero at first and gets no gradient.]],
  ["tl.nn.RotaryEmbedding"] = [[
nn.RotaryEmbedding(dim, {base=10000, scaling=, device=}): angles for F.rope: rope(first, count) gives cos and sin
(count, dim/2) in float32 of the positions first, first + 1, ..; position 1 turns nothing. They are kept from call to call.
scaling for positions beyond the trained ones: {type="linear", factor=}, {type="dynamic", factor=,
original_max_position_embeddings=} or {type="llama3", factor=, low_freq_factor=1, high_freq_factor=4,
original_max_position_embeddings=}. Su et al. 2021.]],
  ["tl.nn.Dropout"] = [[
nn.Dropout(p, {inplace=false}): in training each element is 0 with probability p (0.5), the others are scaled by
1/(1-p).
Srivastava et al. 2014.]],
  ["tl.nn.MaxPool2d"] = "nn.MaxPool2d(kernel_size, {stride=kernel_size, padding=0, dilation=1, ceil_mode=false})",
  ["tl.nn.AvgPool2d"] = [[
nn.AvgPool2d(kernel_size, {stride=kernel_size, padding=0, ceil_mode=false, count_include_pad=true})]],
  ["tl.nn.AdaptiveAvgPool2d"] = "nn.AdaptiveAvgPool2d(size or {H, W}): means over windows that give that size.",
  ["tl.nn.Flatten"] = [[
nn.Flatten(first, last) or nn.Flatten{start_dim=2, end_dim=-1}: makes these dims one: (N, C, H, W) -> (N, C*H*W).]],
  ["tl.nn.Identity"] = "nn.Identity(): gives back its input.",
  ["tl.nn.Sequential"] = [[
nn.Sequential(a, b, ...): calls one after the other. seq[1] is a, #seq their number, seq:add(m) appends. In the state
dict they are called 0, 1, ...]],
  ["tl.nn.ModuleList"] = "nn.ModuleList{a, b, ...}: a list whose modules are registered; list[i], #list, list:add(m).",
  ["tl.nn.ReLU"] = "nn.ReLU{inplace=false}: max(x, 0)",
  ["tl.nn.GELU"] = [[
nn.GELU{approximate="none"}: x Phi(x); "tanh" is GPT-2's approximation. Hendrycks & Gimpel 2016.]],
  ["tl.nn.SiLU"] = "nn.SiLU{inplace=false}: x sigmoid(x)",
  ["tl.nn.Tanh"] = "nn.Tanh()",
  ["tl.nn.Sigmoid"] = "nn.Sigmoid(): 1 / (1 + exp(-x))",
  ["tl.nn.LeakyReLU"] = "nn.LeakyReLU{negative_slope=0.01}",
  ["tl.nn.ELU"] = "nn.ELU{alpha=1}: x where positive, alpha (exp(x) - 1) elsewhere.",
  ["tl.nn.Softmax"] = "nn.Softmax(dim), nn.Softmax{dim=}: exp(x) / sum of exp(x) along dim; a row of -inf gives zeros.",
  ["tl.nn.LogSoftmax"] = "nn.LogSoftmax(dim) or nn.LogSoftmax{dim=}: log of softmax, without overflow.",

  ["tl.nn.MSELoss"] = "nn.MSELoss{reduction=\"mean\"}: (input - target)^2; reduction \"mean\", \"sum\" or \"none\".",
  ["tl.nn.L1Loss"] = "nn.L1Loss{reduction=\"mean\"}: |input - target|",
  ["tl.nn.SmoothL1Loss"] = [[
nn.SmoothL1Loss{beta=1, reduction="mean"}: 0.5 d^2/beta where |d| < beta, |d| - 0.5 beta elsewhere.]],
  ["tl.nn.HuberLoss"] = [[
nn.HuberLoss{delta=1, reduction="mean"}: 0.5 d^2 where |d| <= delta, delta (|d| - 0.5 delta) elsewhere.]],
  ["tl.nn.CrossEntropyLoss"] = [[
nn.CrossEntropyLoss{weight=, ignore_index=-100, label_smoothing=0, reduction="mean"}
Logits (N, C, ..) or (C) against int64 labels 0..C-1 (N, ..), or probabilities of the logits' shape. The mean divides
by the sum of the counted targets' weights; when all are ignored it is 0. A label out of range is an error that names
the label and its row.]],
  ["tl.nn.NLLLoss"] = [[
nn.NLLLoss{weight=, ignore_index=-100, reduction="mean"}: log-probabilities (N, C, ..) against int64 labels (N, ..).]],
  ["tl.nn.BCELoss"] = "nn.BCELoss{weight=, reduction=\"mean\"}: probabilities against targets in 0..1.",
  ["tl.nn.BCEWithLogitsLoss"] = [[
nn.BCEWithLogitsLoss{weight=, pos_weight=, reduction="mean"}: logits against targets in 0..1.]],
  ["tl.nn.KLDivLoss"] = [[
nn.KLDivLoss{reduction="mean", log_target=false}: target (log target - input), the input being log-probabilities;
reduction "batchmean" gives the divergence proper.]],

  ["tl.nn.functional"] = "The same table as tl.F: layers and losses as functions of their tensors.",
  ["tl.F"] = [[
nn.functional: linear conv1d conv2d conv_transpose2d max_pool2d avg_pool2d adaptive_avg_pool2d batch_norm layer_norm
rms_norm group_norm embedding rope dropout scaled_dot_product_attention one_hot normalize cosine_similarity; relu gelu
silu tanh sigmoid mish softsign softplus logsigmoid leaky_relu elu swiglu softmax log_softmax; mse_loss l1_loss
smooth_l1_loss huber_loss cross_entropy linear_cross_entropy nll_loss binary_cross_entropy
binary_cross_entropy_with_logits kl_div. Tensors first, then one table of options.]],
  ["tl.F.linear"] = "F.linear(x, weight, bias or nil): x (.., in), weight (out, in) -> (.., out)",
  ["tl.F.linear_gelu"] = [[
F.linear_gelu(x, weight, bias or nil): F.gelu(F.linear(x, weight, bias), { approximate = "tanh" }); one kernel on CUDA
in float16 and bfloat16.]],
  ["tl.F.conv2d"] = "F.conv2d(x, weight, bias or nil, {stride=1, padding=0, dilation=1, groups=1})",
  ["tl.F.conv1d"] = "F.conv1d(x, weight, bias or nil, {stride=1, padding=0, dilation=1, groups=1}): x (N, C, L)",
  ["tl.F.conv_transpose2d"] = [[
F.conv_transpose2d(x, weight, bias or nil, {stride=1, padding=0, output_padding=0, dilation=1, groups=1})]],
  ["tl.F.max_pool2d"] = "F.max_pool2d(x, kernel_size, {stride=kernel_size, padding=0, dilation=1, ceil_mode=false})",
  ["tl.F.avg_pool2d"] = [[
F.avg_pool2d(x, kernel_size, {stride=kernel_size, padding=0, ceil_mode=false, count_include_pad=true})]],
  ["tl.F.adaptive_avg_pool2d"] = "F.adaptive_avg_pool2d(x, size or {H, W})",
  ["tl.F.rms_norm"] = "F.rms_norm(x, normalized_shape, {weight=, eps=machine epsilon of x's dtype})",
  ["tl.F.group_norm"] = "F.group_norm(x, num_groups, {weight=, bias=, eps=1e-5})",
  ["tl.F.relu"] = "F.relu(x): max(x, 0)",
  ["tl.F.gelu"] = "F.gelu(x, {approximate=\"none\" or \"tanh\"})",
  ["tl.F.silu"] = "F.silu(x): x sigmoid(x)",
  ["tl.F.rope"] = [[
F.rope(x, cos, sin, {interleaved=false}): rotary position embedding of x (.., T, D): pairs of elements of a row, (i, i + R)
as in Llama, or (2i-1, 2i) when interleaved, turn by the angles of its position. cos and sin (T, R) come from
nn.RotaryEmbedding; with R below D/2 elements from 2R + 1 on stay as they are. x may be transposed: heads need no copy.
Su et al. 2021.]],
  ["tl.F.swiglu"] = "F.swiglu(gate, up): silu(gate) * up. Shazeer 2020.",
  ["tl.F.tanh"] = "F.tanh(x)",
  ["tl.F.sigmoid"] = "F.sigmoid(x): 1 / (1 + exp(-x))",
  ["tl.F.logsigmoid"] = "F.logsigmoid(x): log of sigmoid, without overflow",
  ["tl.F.mish"] = "F.mish(x): x tanh(softplus(x)). Misra 2019.",
  ["tl.F.softsign"] = "F.softsign(x): x / (1 + |x|)",
  ["tl.F.softplus"] = "F.softplus(x, {beta=1, threshold=20}): log(1 + exp(beta x)) / beta",
  ["tl.F.leaky_relu"] = "F.leaky_relu(x, {negative_slope=0.01})",
  ["tl.F.elu"] = "F.elu(x, {alpha=1})",
  ["tl.F.softmax"] = "F.softmax(x, dim)",
  ["tl.F.log_softmax"] = "F.log_softmax(x, dim)",
  ["tl.F.l1_loss"] = "F.l1_loss(x, target, {reduction=\"mean\"})",
  ["tl.F.smooth_l1_loss"] = "F.smooth_l1_loss(x, target, {beta=1, reduction=\"mean\"})",
  ["tl.F.huber_loss"] = "F.huber_loss(x, target, {delta=1, reduction=\"mean\"})",
  ["tl.F.nll_loss"] = "F.nll_loss(log_probabilities, target, {weight=, ignore_index=-100, reduction=\"mean\"})",
  ["tl.F.binary_cross_entropy"] = "F.binary_cross_entropy(probabilities, target, {weight=, reduction=\"mean\"})",
  ["tl.F.binary_cross_entropy_with_logits"] = [[
F.binary_cross_entropy_with_logits(logits, target, {weight=, pos_weight=, reduction="mean"})]],
  ["tl.F.kl_div"] = "F.kl_div(log_probabilities, target, {reduction=\"mean\", log_target=false})",
  ["tl.F.batch_norm"] = [[
F.batch_norm(x, {running_mean=, running_var=, weight=, bias=, training=false, momentum=0.1, eps=1e-5})]],
  ["tl.F.layer_norm"] = "F.layer_norm(x, normalized_shape, {weight=, bias=, eps=1e-5})",
  ["tl.F.dropout"] = "F.dropout(x, {p=0.5, training=true})",
  ["tl.F.scaled_dot_product_attention"] = [[
F.scaled_dot_product_attention(q, k, v, {attn_mask=, dropout_p=0, is_causal=false, scale=1/sqrt(D), enable_gqa=false})
softmax(scale q k' + mask) v for q (.., H, T, D), k (.., H, S, D), v (.., H, S, V), without ever storing the weights.
attn_mask broadcasts to (.., H, T, S): bool (true takes part) or floating (added; it gets no gradient). is_causal: query t
sees keys 1..t. enable_gqa: k and v may have fewer heads, which divide q's. A row that sees nothing gives zeros.
Vaswani et al. 2017, Dao et al. 2022.]],
  ["tl.F.embedding"] = "F.embedding(ids, weight, {padding_idx=})",
  ["tl.F.normalize"] = "F.normalize(x, {p=2, dim=2, eps=1e-12}): x / max(norm along dim, eps)",
  ["tl.F.cosine_similarity"] = "F.cosine_similarity(a, b, {dim=2, eps=1e-8})",
  ["tl.F.one_hot"] = "F.one_hot(ids, classes): int64 (.., classes); without classes the largest id + 1.",
  ["tl.F.cross_entropy"] = [[
F.cross_entropy(logits, target, {weight=, ignore_index=-100, label_smoothing=0, reduction="mean"})]],
  ["tl.F.linear_cross_entropy"] = [[
F.linear_cross_entropy(x, linear_weight, target, {linear_bias=, weight=, ignore_index=-100, label_smoothing=0,
reduction="mean", chunk=}): F.cross_entropy(F.linear(x, linear_weight, linear_bias), target) with x (.., C),
linear_weight (V, C) and labels (..). The logits exist for `chunk` rows at a time (by default a number that suits the
sizes and the device), and their gradient is made with the loss: for a vocabulary of tens of thousands that saves the
largest tensors of a model. Inside autocast the logits have the low type, the loss is float32.]],
  ["tl.F.mse_loss"] = "F.mse_loss(x, target, {reduction=\"mean\"})",

  ["tl.nn.init"] = [[
Fills for weights, in place and outside the tape; each returns its tensor: uniform_ normal_ constant_ zeros_ ones_ eye_
xavier_uniform_ xavier_normal_ kaiming_uniform_ kaiming_normal_ trunc_normal_ orthogonal_, and calculate_gain.]],
  ["tl.nn.init.uniform_"] = "init.uniform_(t, {a=0, b=1, generator=}): uniform in [a, b)",
  ["tl.nn.init.normal_"] = "init.normal_(t, {mean=0, std=1, generator=})",
  ["tl.nn.init.constant_"] = "init.constant_(t, value)",
  ["tl.nn.init.zeros_"] = "init.zeros_(t)",
  ["tl.nn.init.ones_"] = "init.ones_(t)",
  ["tl.nn.init.eye_"] = "init.eye_(matrix): ones on the diagonal, zeros elsewhere",
  ["tl.nn.init.xavier_uniform_"] = [[
init.xavier_uniform_(t, {gain=1}): std = gain sqrt(2 / (fan_in + fan_out)). Glorot & Bengio 2010.]],
  ["tl.nn.init.xavier_normal_"] = "init.xavier_normal_(t, {gain=1}): as xavier_uniform_, normal",
  ["tl.nn.init.kaiming_uniform_"] = [[
init.kaiming_uniform_(t, {a=0, mode="fan_in", nonlinearity="leaky_relu"}): std = gain / sqrt(fan). He et al. 2015.]],
  ["tl.nn.init.kaiming_normal_"] = "init.kaiming_normal_(t, options): as kaiming_uniform_, normal",
  ["tl.nn.init.trunc_normal_"] = "init.trunc_normal_(t, {mean=0, std=1, a=-2, b=2}): normal, cut to [a, b]",
  ["tl.nn.init.orthogonal_"] = [[
init.orthogonal_(t, {gain=1}): orthonormal rows or columns; dims behind the first count as columns. Saxe et al. 2013.]],
  ["tl.nn.init.calculate_gain"] = "init.calculate_gain(nonlinearity, param): e.g. sqrt(2) for \"relu\"",
}
