-- batchnorm.lua: batch normalisation (Ioffe & Szegedy 2015).
local base = require "tlua.base"
local registry = require "tlua.nn.registry"
local Module = require("tlua.nn.module").Module
local support = require "tlua.nn.support"
local C, check, wrap, out, check_tensor = base.C, base.check, base.wrap, base.out, base.check_tensor
local number = base.number

-- eps is added to the variance; momentum is the weight of the newest batch in the running statistics, false makes them
-- the plain average of all batches. affine=false: no weight and bias. track_running_stats=false: no running statistics,
-- batches are normalised with their own in eval as well.
local BatchNorm = Module:extend("BatchNorm")

function BatchNorm:init(num_features, options)
  local name = self._name
  local o = base.options(name, options, {
    eps = 1e-5, momentum = base.optional, affine = true, track_running_stats = true, dtype = "float32",
    device = base.optional,
  })
  if o.momentum == nil then o.momentum = 0.1 end
  if o.momentum ~= false and type(o.momentum) ~= "number" then
    base.fail(("%s: option 'momentum' is a number or false, got %s"):format(name, tostring(o.momentum)))
  end
  self.num_features = support.size(name, "num_features", num_features)
  self.eps, self.momentum, self.affine, self.track_running_stats = o.eps, o.momentum, o.affine, o.track_running_stats
  local dtype, device = support.placement(name, o)
  if o.affine then
    self.weight = support.constant({ num_features }, 1, dtype, device)
    self.bias = support.constant({ num_features }, 0, dtype, device)
  else
    self:register_parameter("weight", nil)
    self:register_parameter("bias", nil)
  end
  local track = o.track_running_stats
  self:register_buffer("running_mean", track and support.full({ num_features }, 0, dtype, device) or nil)
  self:register_buffer("running_var", track and support.full({ num_features }, 1, dtype, device) or nil)
  self:register_buffer("num_batches_tracked", track and support.full({}, 0, C.TL_INT64, device) or nil)
end

local function dims_fit(self, n) return n >= self._least and n <= self._most end

local function reject(self, x, status)
  local n = C.tl_ndim(x)
  local fits = dims_fit(self, n) and C.tl_size(x, 1) == self.num_features
  support.reject(self, status, x, fits, ("(Nx%d%s)"):format(self.num_features, self._rest))
end

-- The weight of this batch in a plain average of all batches so far.
local function cumulative(self)
  check(C.tl_item(self.num_batches_tracked, number))
  return 1 / (number[0] + 1)
end

function BatchNorm:forward(x)
  check_tensor(x, self._name, 1)
  if not dims_fit(self, C.tl_ndim(x)) then reject(self, x, C.TL_ERR_SHAPE) end
  local tracked = self.training and self.num_batches_tracked or nil
  local momentum = self.momentum or (tracked and cumulative(self) or 0)
  local training = self.training or not self.running_mean
  local status = C.tl_batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var, training, momentum,
    self.eps, out)
  if status ~= 0 then reject(self, x, status) end
  local y = wrap(out[0])
  if tracked then check(C.tl_add_scalar_(tracked, 1)) end
  return y
end

function BatchNorm:extra_repr()
  local text = tostring(self.num_features)
  if self.eps ~= 1e-5 then text = text .. (", eps=%g"):format(self.eps) end
  if self.momentum ~= 0.1 then text = text .. ", momentum=" .. tostring(self.momentum) end
  if not self.affine then text = text .. ", affine=false" end
  if not self.track_running_stats then text = text .. ", track_running_stats=false" end
  return text
end

-- least and most: how many dims the input may have.
local function variant(name, least, most, rest)
  local class = BatchNorm:extend(name)
  class._least, class._most, class._rest = least, most, rest
  return class
end

local BatchNorm1d = variant("BatchNorm1d", 2, 3, "[xL]")
local BatchNorm2d = variant("BatchNorm2d", 4, 4, "xHxW")
local BatchNorm3d = variant("BatchNorm3d", 5, 5, "xDxHxW")
-- Statistics over the batches of all ranks; with one rank there is nothing to exchange.
local SyncBatchNorm = variant("SyncBatchNorm", 2, 8, "..")

-- The sum over all ranks; its gradient is the sum of the gradients that arrive on all ranks.
local sum_over_ranks
local function all_sum(x)
  if not sum_over_ranks then
    local dist, autograd = require "tlua.dist", require "tlua.autograd"
    sum_over_ranks = autograd.Function {
      forward = function(_, t) return dist.all_reduce(t:clone(), "sum") end,
      backward = function(_, g) return dist.all_reduce(g:clone(), "sum") end,
    }
  end
  return sum_over_ranks(x)
end

-- The statistics of all ranks' batches as one. Two sums, mean and then squared distances from it: the squares of large
-- means would cancel.
local function statistics(x, per_channel, dims)
  local base_tl = base.tl
  local count = all_sum(base_tl.full({ 1 }, x:numel() / x:size(2), { dtype = x.dtype, device = x.device }))
  local mean = all_sum(x:sum(dims)) / count
  local centred = x - mean:view(per_channel)
  return mean, centred, all_sum((centred * centred):sum(dims)) / count, count
end

local function move(running, value, momentum)
  running:copy_(running:lerp(value:to(running.dtype), momentum))
end

--- In training on several ranks the batch is that of all ranks, however many samples each has; otherwise BatchNorm.
function SyncBatchNorm:forward(x)
  local dist = require "tlua.dist"
  if not (self.training and dist.is_initialized() and dist.world_size() > 1) then return BatchNorm.forward(self, x) end
  check_tensor(x, self._name, 1)
  local n = C.tl_ndim(x)
  if not dims_fit(self, n) or C.tl_size(x, 1) ~= self.num_features then reject(self, x, C.TL_ERR_SHAPE) end
  local wide = (x.dtype == "float16" or x.dtype == "bfloat16") and x:to("float32") or x
  local per_channel, dims = { 1, self.num_features }, { 1 }
  for d = 3, n do per_channel[d], dims[d - 1] = 1, d end
  local mean, centred, var, count = statistics(wide, per_channel, dims)
  local total = count:item()
  if total < 2 then
    base.fail(("%s: more than one value a channel is needed in training, all ranks have %g"):format(self._name, total))
  end
  if self.num_batches_tracked then
    local momentum = self.momentum or cumulative(self)
    base.tl.no_grad(function()
      move(self.running_mean, mean:detach(), momentum)
      move(self.running_var, var:detach() * (total / (total - 1)), momentum)
    end)
    check(C.tl_add_scalar_(self.num_batches_tracked, 1))
  end
  local y = centred * (var + self.eps):rsqrt():view(per_channel)
  if self.weight then y = y * self.weight:view(per_channel) + self.bias:view(per_channel) end
  return y.dtype == x.dtype and y or y:to(x.dtype)
end

--- Replaces every BatchNorm layer in a model by a SyncBatchNorm that has its parameters and buffers; returns the
--- model (or the new layer, when it is given a layer).
function SyncBatchNorm.convert_sync_batchnorm(m)
  if not registry.is_module(m) then base.fail("convert_sync_batchnorm: needs a module") end
  if m:is_a(BatchNorm) then return m:is_a(SyncBatchNorm) and m or setmetatable(m, SyncBatchNorm) end
  for _, child in ipairs(m:children()) do SyncBatchNorm.convert_sync_batchnorm(child) end
  return m
end

return {
  BatchNorm1d = BatchNorm1d, BatchNorm2d = BatchNorm2d, BatchNorm3d = BatchNorm3d, SyncBatchNorm = SyncBatchNorm,
}
