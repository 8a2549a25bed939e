-- functional.lua: layers and losses as functions of their tensors (tl.F, nn.functional). Options as in the modules.
local base = require "tlua.base"
local support = require "tlua.nn.support"
local C, check, wrap, out, check_tensor = base.C, base.check, base.wrap, base.out, base.check_tensor
local position, options = base.position, base.options

local F = {}
local optional = base.optional

local function check_optional(x, op, n)
  if x ~= nil then check_tensor(x, op, n) end
end

-- ---- activations: F.relu(x) and the like ----

local function pointwise(name)
  local symbol = "tl_" .. name
  F[name] = function(x, extra)
    check_tensor(x, name, 1)
    base.no_more(name, extra)
    check(C[symbol](x, out))
    return wrap(out[0])
  end
end
for _, name in ipairs { "relu", "silu", "tanh", "sigmoid", "mish", "softsign", "logsigmoid" } do pointwise(name) end

function F.gelu(x, opts)
  check_tensor(x, "gelu", 1)
  local approximate = opts and options("gelu", opts, { approximate = "none" }).approximate or "none"
  if approximate == "tanh" then
    check(C.tl_gelu_tanh(x, out))
  elseif approximate == "none" then
    check(C.tl_gelu(x, out))
  else
    base.fail("gelu: option 'approximate' is 'none' or 'tanh', got '" .. tostring(approximate) .. "'")
  end
  return wrap(out[0])
end

function F.leaky_relu(x, opts)
  check_tensor(x, "leaky_relu", 1)
  check(C.tl_leaky_relu(x, opts and options("leaky_relu", opts, { negative_slope = 0.01 }).negative_slope or 0.01, out))
  return wrap(out[0])
end

function F.elu(x, opts)
  check_tensor(x, "elu", 1)
  check(C.tl_elu(x, opts and options("elu", opts, { alpha = 1 }).alpha or 1, out))
  return wrap(out[0])
end

--- log(1 + exp(beta x)) / beta; x itself where beta x > threshold (20).
function F.softplus(x, opts)
  check_tensor(x, "softplus", 1)
  local o = options("softplus", opts, { beta = 1, threshold = 20 })
  check(C.tl_softplus(x, o.beta, o.threshold, out))
  return wrap(out[0])
end

function F.softmax(x, dim, extra)
  check_tensor(x, "softmax", 1)
  base.no_more("softmax", extra)
  check(C.tl_softmax(x, position(dim, "softmax"), out))
  return wrap(out[0])
end

function F.log_softmax(x, dim, extra)
  check_tensor(x, "log_softmax", 1)
  base.no_more("log_softmax", extra)
  check(C.tl_log_softmax(x, position(dim, "log_softmax"), out))
  return wrap(out[0])
end

--- silu(gate) * up, the gated unit of Llama's feed-forward layers.
function F.swiglu(gate, up, extra)
  check_tensor(gate, "swiglu", 1)
  check_tensor(up, "swiglu", 2)
  base.no_more("swiglu", extra)
  check(C.tl_swiglu(gate, up, out))
  return wrap(out[0])
end

-- ---- layers ----

--- x (.., in), weight (out, in), bias (out) or nil: (.., out).
function F.linear(x, weight, bias)
  check_tensor(x, "linear", 1)
  check_tensor(weight, "linear", 2)
  check_optional(bias, "linear", 3)
  check(C.tl_linear(x, weight, bias, out))
  return wrap(out[0])
end

--- F.gelu(F.linear(x, weight, bias), { approximate = "tanh" }); one kernel on CUDA in float16 and bfloat16.
function F.linear_gelu(x, weight, bias)
  check_tensor(x, "linear_gelu", 1)
  check_tensor(weight, "linear_gelu", 2)
  check_optional(bias, "linear_gelu", 3)
  check(C.tl_linear_gelu(x, weight, bias, out))
  return wrap(out[0])
end

local function convolution(name, n)
  F[name] = function(x, weight, bias, opts)
    check_tensor(x, name, 1)
    check_tensor(weight, name, 2)
    check_optional(bias, name, 3)
    local o = options(name, opts, { stride = optional, padding = optional, dilation = optional, groups = 1 })
    local function sizes(key, default) return support.array(support.sizes(name, key, o[key] or default, n, default)) end
    check(C.tl_conv(x, weight, bias, n, sizes("stride", 1), sizes("padding", 0), sizes("dilation", 1),
      support.size(name, "groups", o.groups), out))
    return wrap(out[0])
  end
end
--- x (N, C, L), weight (O, C/groups, K), bias (O) or nil.
convolution("conv1d", 1)
--- x (N, C, H, W), weight (O, C/groups, KH, KW), bias (O) or nil.
convolution("conv2d", 2)

--- x (N, C, H, W), weight (C, O/groups, KH, KW), bias (O) or nil.
function F.conv_transpose2d(x, weight, bias, opts)
  local name = "conv_transpose2d"
  check_tensor(x, name, 1)
  check_tensor(weight, name, 2)
  check_optional(bias, name, 3)
  local o = options(name, opts, {
    stride = optional, padding = optional, output_padding = optional, dilation = optional, groups = 1,
  })
  local function sizes(key, default) return support.array(support.sizes(name, key, o[key] or default, 2, default)) end
  check(C.tl_conv_transpose2d(x, weight, bias, sizes("stride", 1), sizes("padding", 0), sizes("output_padding", 0),
    sizes("dilation", 1), support.size(name, "groups", o.groups), out))
  return wrap(out[0])
end

function F.max_pool2d(x, kernel_size, opts)
  local name = "max_pool2d"
  check_tensor(x, name, 1)
  local o = options(name, opts, { stride = optional, padding = optional, dilation = optional, ceil_mode = false })
  local function sizes(key, value, lowest) return support.array(support.sizes(name, key, value, 2, lowest)) end
  check(C.tl_max_pool2d(x, sizes("kernel_size", kernel_size), sizes("stride", o.stride or kernel_size),
    sizes("padding", o.padding or 0, 0), sizes("dilation", o.dilation or 1), o.ceil_mode, out))
  return wrap(out[0])
end

function F.avg_pool2d(x, kernel_size, opts)
  local name = "avg_pool2d"
  check_tensor(x, name, 1)
  local o = options(name, opts, { stride = optional, padding = optional, ceil_mode = false, count_include_pad = true })
  local function sizes(key, value, lowest) return support.array(support.sizes(name, key, value, 2, lowest)) end
  check(C.tl_avg_pool2d(x, sizes("kernel_size", kernel_size), sizes("stride", o.stride or kernel_size),
    sizes("padding", o.padding or 0, 0), o.ceil_mode, o.count_include_pad, out))
  return wrap(out[0])
end

function F.adaptive_avg_pool2d(x, output_size)
  check_tensor(x, "adaptive_avg_pool2d", 1)
  local size = support.sizes("adaptive_avg_pool2d", "output_size", output_size, 2)
  check(C.tl_adaptive_avg_pool2d(x, size[1], size[2], out))
  return wrap(out[0])
end

--- x (N, C, ..); options running_mean, running_var, weight, bias (C), training (false), momentum (0.1), eps (1e-5).
function F.batch_norm(x, opts)
  check_tensor(x, "batch_norm", 1)
  local o = options("batch_norm", opts, {
    running_mean = optional, running_var = optional, weight = optional, bias = optional, training = false,
    momentum = 0.1, eps = 1e-5,
  })
  support.check_tensors("batch_norm", o, "running_mean", "running_var", "weight", "bias")
  check(C.tl_batch_norm(x, o.weight, o.bias, o.running_mean, o.running_var, o.training, o.momentum, o.eps, out))
  return wrap(out[0])
end

local function last_dims(name, shape)
  if type(shape) ~= "table" then shape = { shape } end
  return #shape, support.array(support.sizes(name, "normalized_shape", shape, #shape))
end

--- Over the last dims, which have the sizes `shape`; options weight, bias, eps (1e-5).
function F.layer_norm(x, shape, opts)
  check_tensor(x, "layer_norm", 1)
  local o = options("layer_norm", opts, { weight = optional, bias = optional, eps = 1e-5 })
  support.check_tensors("layer_norm", o, "weight", "bias")
  local n, sizes = last_dims("layer_norm", shape)
  check(C.tl_layer_norm(x, n, sizes, o.weight, o.bias, o.eps, out))
  return wrap(out[0])
end

--- Over the last dims, which have the sizes `shape`; options weight, eps (the machine epsilon of x's dtype).
function F.rms_norm(x, shape, opts)
  check_tensor(x, "rms_norm", 1)
  local o = options("rms_norm", opts, { weight = optional, eps = optional })
  support.check_tensors("rms_norm", o, "weight")
  local n, sizes = last_dims("rms_norm", shape)
  check(C.tl_rms_norm(x, n, sizes, o.weight, o.eps or support.epsilon(x), out))
  return wrap(out[0])
end

--- x (N, C, ..); options weight, bias (C), eps (1e-5).
function F.group_norm(x, num_groups, opts)
  check_tensor(x, "group_norm", 1)
  local o = options("group_norm", opts, { weight = optional, bias = optional, eps = 1e-5 })
  support.check_tensors("group_norm", o, "weight", "bias")
  check(C.tl_group_norm(x, support.size("group_norm", "num_groups", num_groups), o.weight, o.bias, o.eps, out))
  return wrap(out[0])
end

--- Rows of weight (V, D) by ids 0..V-1 (..): (.., D).
function F.embedding(ids, weight, opts)
  check_tensor(ids, "embedding", 1)
  check_tensor(weight, "embedding", 2)
  local o = options("embedding", opts, { padding_idx = optional })
  check(C.tl_embedding(weight, ids, o.padding_idx or -1, out))
  return wrap(out[0])
end

--- x (.., T, D) with the pairs of each row turned by its position's angles, whose cosines and sines (T, R <= D/2) are
--- from nn.RotaryEmbedding; option interleaved (false): pairs are (2i-1, 2i) instead of (i, i + R).
function F.rope(x, cos, sin, opts)
  check_tensor(x, "rope", 1)
  check_tensor(cos, "rope", 2)
  check_tensor(sin, "rope", 3)
  local interleaved = opts ~= nil and options("rope", opts, { interleaved = false }).interleaved or false
  check(C.tl_rope(x, cos, sin, interleaved, out))
  return wrap(out[0])
end

--- Options p (0.5) and training (true).
function F.dropout(x, opts)
  check_tensor(x, "dropout", 1)
  local o = options("dropout", opts, { p = 0.5, training = true })
  check(C.tl_dropout(x, o.p, o.training, nil, out))
  return wrap(out[0])
end

--- softmax(scale q k' + mask) v without storing the weights: q (.., H, T, D), k (.., H, S, D), v (.., H, S, V). Options
--- attn_mask (bool: true takes part; floating: added), dropout_p (0), is_causal (false), scale (1 / sqrt(D)),
--- enable_gqa (false: k and v have q's heads).
function F.scaled_dot_product_attention(q, k, v, opts)
  local name = "scaled_dot_product_attention"
  check_tensor(q, name, 1)
  check_tensor(k, name, 2)
  check_tensor(v, name, 3)
  if opts == nil then
    check(C.tl_scaled_dot_product_attention(q, k, v, nil, 0, false, 0 / 0, false, nil, out))
    return wrap(out[0])
  end
  local o = options(name, opts,
    { attn_mask = optional, dropout_p = 0, is_causal = false, scale = optional, enable_gqa = false })
  support.check_tensors(name, o, "attn_mask")
  if o.scale ~= nil and type(o.scale) ~= "number" then
    base.fail(name .. ": option 'scale' must be a number, got " .. base.kind(o.scale))
  end
  check(C.tl_scaled_dot_product_attention(q, k, v, o.attn_mask, o.dropout_p, o.is_causal, o.scale or 0 / 0,
    o.enable_gqa, nil, out))
  return wrap(out[0])
end

--- ids (..) of 0..n-1 become int64 (.., n); without n it is the largest id + 1.
function F.one_hot(ids, n)
  check_tensor(ids, "one_hot", 1)
  check(C.tl_one_hot(ids, n == nil and -1 or support.size("one_hot", "the number of classes", n), out))
  return wrap(out[0])
end

-- ---- distances ----

local one_dim = base.ffi.new("int[1]")

local function norm(x, p, dim)
  one_dim[0] = dim
  check(C.tl_norm(x, p, 1, one_dim, true, out))
  return wrap(out[0])
end

local function at_least(x, low)
  check(C.tl_clamp(x, low, math.huge, out))
  return wrap(out[0])
end

--- x / max(norm of x along dim, eps); options p (2), dim (2), eps (1e-12).
function F.normalize(x, opts)
  check_tensor(x, "normalize", 1)
  local o = options("normalize", opts, { p = 2, dim = 2, eps = 1e-12 })
  return x / at_least(norm(x, o.p, position(o.dim, "normalize")), o.eps)
end

--- The cosine of the angle between a and b along dim; options dim (2), eps (1e-8), the least norm.
function F.cosine_similarity(a, b, opts)
  check_tensor(a, "cosine_similarity", 1)
  check_tensor(b, "cosine_similarity", 2)
  local o = options("cosine_similarity", opts, { dim = 2, eps = 1e-8 })
  local d = position(o.dim, "cosine_similarity")
  local product = (a / at_least(norm(a, 2, d), o.eps)) * (b / at_least(norm(b, 2, d), o.eps))
  one_dim[0] = d
  check(C.tl_sum(product, 1, one_dim, false, out))
  return wrap(out[0])
end

-- ---- losses: options as those of the modules ----

local function check_pair(x, target, op)
  check_tensor(x, op, 1)
  check_tensor(target, op, 2)
end

function F.mse_loss(x, target, opts)
  check_pair(x, target, "mse_loss")
  local o = options("mse_loss", opts, { reduction = "mean" })
  check(C.tl_mse_loss(x, target, support.reduction("mse_loss", o.reduction), out))
  return wrap(out[0])
end

function F.l1_loss(x, target, opts)
  check_pair(x, target, "l1_loss")
  local o = options("l1_loss", opts, { reduction = "mean" })
  check(C.tl_l1_loss(x, target, support.reduction("l1_loss", o.reduction), out))
  return wrap(out[0])
end

function F.smooth_l1_loss(x, target, opts)
  check_pair(x, target, "smooth_l1_loss")
  local o = options("smooth_l1_loss", opts, { reduction = "mean", beta = 1 })
  check(C.tl_smooth_l1_loss(x, target, o.beta, support.reduction("smooth_l1_loss", o.reduction), out))
  return wrap(out[0])
end

function F.huber_loss(x, target, opts)
  check_pair(x, target, "huber_loss")
  local o = options("huber_loss", opts, { reduction = "mean", delta = 1 })
  check(C.tl_huber_loss(x, target, o.delta, support.reduction("huber_loss", o.reduction), out))
  return wrap(out[0])
end

function F.cross_entropy(x, target, opts)
  check_pair(x, target, "cross_entropy")
  local o = options("cross_entropy", opts,
    { weight = optional, ignore_index = -100, label_smoothing = 0, reduction = "mean" })
  support.check_tensors("cross_entropy", o, "weight")
  check(C.tl_cross_entropy(x, target, o.weight, o.ignore_index, o.label_smoothing,
    support.reduction("cross_entropy", o.reduction), out))
  return wrap(out[0])
end

--- F.cross_entropy(F.linear(x, weight, opts.linear_bias), target) whose logits exist a chunk of rows at a time.
function F.linear_cross_entropy(x, linear_weight, target, opts)
  local name = "linear_cross_entropy"
  check_tensor(x, name, 1)
  check_tensor(linear_weight, name, 2)
  check_tensor(target, name, 3)
  local o = options(name, opts, {
    linear_bias = optional, weight = optional, ignore_index = -100, label_smoothing = 0, reduction = "mean",
    chunk = optional,
  })
  support.check_tensors(name, o, "linear_bias", "weight")
  check(C.tl_linear_cross_entropy(x, linear_weight, target, o.linear_bias, o.weight, o.ignore_index, o.label_smoothing,
    support.reduction(name, o.reduction), o.chunk and support.size(name, "chunk", o.chunk) or 0, out))
  return wrap(out[0])
end

function F.nll_loss(x, target, opts)
  check_pair(x, target, "nll_loss")
  local o = options("nll_loss", opts, { weight = optional, ignore_index = -100, reduction = "mean" })
  support.check_tensors("nll_loss", o, "weight")
  check(C.tl_nll_loss(x, target, o.weight, o.ignore_index, support.reduction("nll_loss", o.reduction), out))
  return wrap(out[0])
end

function F.binary_cross_entropy(x, target, opts)
  check_pair(x, target, "binary_cross_entropy")
  local o = options("binary_cross_entropy", opts, { weight = optional, reduction = "mean" })
  support.check_tensors("binary_cross_entropy", o, "weight")
  check(C.tl_bce_loss(x, target, o.weight, support.reduction("binary_cross_entropy", o.reduction), out))
  return wrap(out[0])
end

function F.binary_cross_entropy_with_logits(x, target, opts)
  local name = "binary_cross_entropy_with_logits"
  check_pair(x, target, name)
  local o = options(name, opts, { weight = optional, pos_weight = optional, reduction = "mean" })
  support.check_tensors(name, o, "weight", "pos_weight")
  check(C.tl_bce_with_logits_loss(x, target, o.weight, o.pos_weight, support.reduction(name, o.reduction), out))
  return wrap(out[0])
end

function F.kl_div(x, target, opts)
  check_pair(x, target, "kl_div")
  local o = options("kl_div", opts, { reduction = "mean", log_target = false })
  check(C.tl_kl_div_loss(x, target, o.log_target, support.reduction("kl_div", o.reduction, true), out))
  return wrap(out[0])
end

return base.namespace(F, "nn.functional")
