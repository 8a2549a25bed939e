-- initialise.lua: nn.init: fills for weights. Each changes its tensor in place, outside the tape, and returns it.
-- Options by PyTorch's names; `generator` is the source of random numbers where there are any.
local base = require "tlua.base"
local support = require "tlua.nn.support"
local C, check, wrap, out, check_tensor = base.C, base.check, base.wrap, base.out, base.check_tensor
local optional = base.optional

local init = {}

-- Passes a status on once the tape is as it was.
local function off_tape(recording, status, t)
  C.tl_set_grad_enabled(recording)
  check(status)
  return t
end

local function uniform(t, low, high, generator)
  return off_tape(C.tl_set_grad_enabled(false), C.tl_uniform_(t, low, high, generator), t)
end

local function normal(t, mean, std, generator)
  return off_tape(C.tl_set_grad_enabled(false), C.tl_normal_(t, mean, std, generator), t)
end

local function fill(t, value) return off_tape(C.tl_set_grad_enabled(false), C.tl_fill_(t, value), t) end

local function copy(t, from) return off_tape(C.tl_set_grad_enabled(false), C.tl_copy_(t, from), t) end

--- Uniform in [a, b): options a (0), b (1).
function init.uniform_(t, options)
  check_tensor(t, "uniform_", 1)
  local o = base.options("uniform_", options, { a = 0, b = 1, generator = optional })
  return uniform(t, o.a, o.b, o.generator)
end

--- Normal: options mean (0), std (1).
function init.normal_(t, options)
  check_tensor(t, "normal_", 1)
  local o = base.options("normal_", options, { mean = 0, std = 1, generator = optional })
  return normal(t, o.mean, o.std, o.generator)
end

function init.constant_(t, value)
  check_tensor(t, "constant_", 1)
  base.check_number(value, "constant_", "the value")
  return fill(t, value)
end

function init.zeros_(t)
  check_tensor(t, "zeros_", 1)
  return fill(t, 0)
end

function init.ones_(t)
  check_tensor(t, "ones_", 1)
  return fill(t, 1)
end

local function check_matrix(t, op)
  check_tensor(t, op, 1)
  if C.tl_ndim(t) ~= 2 then base.fail(("%s: needs a matrix, got a tensor of %s"):format(op, support.shape(t))) end
end

--- Ones on the diagonal of a matrix, zeros elsewhere.
function init.eye_(t)
  check_matrix(t, "eye_")
  check(C.tl_eye(C.tl_size(t, 0), C.tl_size(t, 1), C.tl_dtype_of(t), C.tl_device_of(t), out))
  return copy(t, wrap(out[0]))
end

-- fan_in and fan_out of a weight (out, in, ..): channels times the elements of the kernel.
local function fans(t, op)
  local n = C.tl_ndim(t)
  if n < 2 then base.fail(("%s: needs at least 2 dims, got a tensor of %s"):format(op, support.shape(t))) end
  local kernel = 1
  for d = 2, n - 1 do kernel = kernel * C.tl_size(t, d) end
  return C.tl_size(t, 1) * kernel, C.tl_size(t, 0) * kernel
end

local gains = {
  linear = 1, conv1d = 1, conv2d = 1, conv3d = 1, conv_transpose1d = 1, conv_transpose2d = 1, conv_transpose3d = 1,
  sigmoid = 1, tanh = 5 / 3, relu = math.sqrt(2), selu = 3 / 4, leaky_relu = true,
}

--- The factor by which a nonlinearity wants its weights enlarged; param is leaky_relu's slope (0.01).
function init.calculate_gain(nonlinearity, param)
  local gain = gains[nonlinearity]
  if not gain then
    local names = {}
    for name in pairs(gains) do names[#names + 1] = name end
    table.sort(names)
    base.fail(("calculate_gain: there is no nonlinearity '%s', did you mean '%s'?"):format(tostring(nonlinearity),
      base.nearest(tostring(nonlinearity), names)))
  end
  if gain ~= true then return gain end
  return math.sqrt(2 / (1 + (param or 0.01) ^ 2))
end

local function xavier_std(t, op, options)
  check_tensor(t, op, 1)
  local o = base.options(op, options, { gain = 1, generator = optional })
  local fan_in, fan_out = fans(t, op)
  return o.gain * math.sqrt(2 / (fan_in + fan_out)), o.generator
end

--- Glorot & Bengio 2010: uniform with the standard deviation gain * sqrt(2 / (fan_in + fan_out)); option gain (1).
function init.xavier_uniform_(t, options)
  local std, generator = xavier_std(t, "xavier_uniform_", options)
  return uniform(t, -math.sqrt(3) * std, math.sqrt(3) * std, generator)
end

--- The same, normal.
function init.xavier_normal_(t, options)
  local std, generator = xavier_std(t, "xavier_normal_", options)
  return normal(t, 0, std, generator)
end

local function kaiming_std(t, op, options)
  check_tensor(t, op, 1)
  local o = base.options(op, options, { a = 0, mode = "fan_in", nonlinearity = "leaky_relu", generator = optional })
  local fan_in, fan_out = fans(t, op)
  if o.mode ~= "fan_in" and o.mode ~= "fan_out" then
    base.fail(("%s: option 'mode' is 'fan_in' or 'fan_out', got '%s'"):format(op, tostring(o.mode)))
  end
  local fan = o.mode == "fan_in" and fan_in or fan_out
  return init.calculate_gain(o.nonlinearity, o.a) / math.sqrt(math.max(fan, 1)), o.generator
end

--- He et al. 2015: uniform with the standard deviation gain / sqrt(fan). Options a (0), leaky_relu's slope; mode
--- ("fan_in" or "fan_out"); nonlinearity ("leaky_relu").
function init.kaiming_uniform_(t, options)
  local std, generator = kaiming_std(t, "kaiming_uniform_", options)
  return uniform(t, -math.sqrt(3) * std, math.sqrt(3) * std, generator)
end

--- The same, normal.
function init.kaiming_normal_(t, options)
  local std, generator = kaiming_std(t, "kaiming_normal_", options)
  return normal(t, 0, std, generator)
end

-- ---- those that compute in float64 ----

local function double_like(rows, columns)
  check(C.tl_empty(2, support.array { rows, columns }, C.TL_FLOAT64, C.TL_CPU, out))
  return wrap(out[0])
end

-- Phi, the distribution function of N(0, 1), on a number: through the engine's erf.
local function phi(x)
  local t = support.full({ 1 }, x / math.sqrt(2), C.TL_FLOAT64, C.TL_CPU)
  check(C.tl_erf(t, out))
  return (1 + wrap(out[0]):item()) / 2
end

-- The inverse of erf on a float64 tensor in (-1, 1): Giles' polynomials (2010), then two Newton steps.
local central = { 2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
  -0.00417768164, 0.246640727, 1.50140941 }
local tail = { -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
  0.00943887047, 1.00167406, 2.83297682 }

local function polynomial(coefficients, w)
  local y = w * 0 + coefficients[1]
  for i = 2, #coefficients do y = y * w + coefficients[i] end
  return y
end

local function erfinv(x)
  local w = -((1 - x * x):log())
  local y = base.tl.where(w:lt(5), polynomial(central, w - 2.5), polynomial(tail, w:sqrt() - 3)) * x
  for _ = 1, 2 do y = y - (y:erf() - x) / ((-(y * y)):exp() * (2 / math.sqrt(math.pi))) end
  return y
end

--- Normal, cut to [a, b]: options mean (0), std (1), a (-2), b (2).
function init.trunc_normal_(t, options)
  check_tensor(t, "trunc_normal_", 1)
  local o = base.options("trunc_normal_", options, { mean = 0, std = 1, a = -2, b = 2, generator = optional })
  local recording = C.tl_set_grad_enabled(false)
  local ok, message = pcall(function()
    local low, high = phi((o.a - o.mean) / o.std), phi((o.b - o.mean) / o.std)
    local u = double_like(1, C.tl_numel(t))
    check(C.tl_uniform_(u, 2 * low - 1, 2 * high - 1, o.generator))
    u = u:clamp(-1 + 2 ^ -52, 1 - 2 ^ -53)
    local x = (erfinv(u) * (o.std * math.sqrt(2)) + o.mean):clamp(o.a, o.b)
    check(C.tl_copy_(t, x:view(t.shape)))
  end)
  C.tl_set_grad_enabled(recording)
  if not ok then error(message, 0) end
  return t
end

-- Makes the rows of a (float64, no more rows than columns) orthonormal: Gram-Schmidt, each row twice.
local function orthonormalise(a)
  local rows = a:size(1)
  for i = 1, rows do
    local row = a:narrow(1, i, 1)
    if i > 1 then
      local done = a:narrow(1, 1, i - 1)
      for _ = 1, 2 do row:sub_(row:matmul(done:t()):matmul(done)) end
    end
    row:div_(row:norm():item())
  end
end

--- A (semi-)orthogonal matrix (Saxe et al. 2013); dims behind the first count as columns. Option gain (1).
function init.orthogonal_(t, options)
  check_tensor(t, "orthogonal_", 1)
  local o = base.options("orthogonal_", options, { gain = 1, generator = optional })
  local n = C.tl_ndim(t)
  if n < 2 then base.fail("orthogonal_: needs at least 2 dims, got a tensor of " .. support.shape(t)) end
  if C.tl_numel(t) == 0 then return t end
  local rows = C.tl_size(t, 0)
  local columns = C.tl_numel(t) / rows
  local recording = C.tl_set_grad_enabled(false)
  local ok, message = pcall(function()
    local a = double_like(math.min(rows, columns), math.max(rows, columns))
    check(C.tl_normal_(a, 0, 1, o.generator))
    orthonormalise(a)
    if rows > columns then a = a:t():contiguous() end
    check(C.tl_copy_(t, (a * o.gain):view(t.shape)))
  end)
  C.tl_set_grad_enabled(recording)
  if not ok then error(message, 0) end
  return t
end

return base.namespace(init, "nn.init")
