-- nn.utils.prune: masks as PyTorch chooses them, what a pruned module does, schedules, reports, rewinding.
local tl = require "tlua"
local nn, optim, prune = tl.nn, tl.optim, tl.nn.utils.prune
local golden = dofile(debug.getinfo(1, "S").source:match("^@(.*)lua/[^/]*$") .. "golden/prune.lua")

local function linear(weight)
  local m = nn.Linear(#weight[1], #weight)
  tl.no_grad(function()
    m.weight:copy_(tl.tensor(weight))
    m.bias:fill_(0)
  end)
  return m
end

local function conv(weight)
  local m = nn.Conv2d(#weight[1], #weight, #weight[1][1])
  tl.no_grad(function() m.weight:copy_(tl.tensor(weight)) end)
  return m
end

local function mask_of(m) return m.weight_mask:tolist() end

local function fails(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

describe("masks against PyTorch", function()
  it("of fractions of single weights", function()
    for _, percent in ipairs { 0, 25, 35, 50, 100 } do
      local m = linear(golden.w)
      assert.equal(m, prune.l1_unstructured(m, "weight", { amount = percent / 100 }))
      assert.are.same(golden["l1_" .. percent][1], mask_of(m))
    end
  end)

  it("of importance scores", function()
    local m = linear(golden.w)
    prune.l1_unstructured(m, "weight", { count = 5, importance_scores = tl.tensor(golden.scores) })
    assert.are.same(golden.l1_scores[1], mask_of(m))
    m = linear(golden.w)
    prune.ln_structured(m, "weight", { count = 2, importance_scores = tl.tensor(golden.scores) })
    assert.are.same(golden.ln_scores[1], mask_of(m))
  end)

  it("of compositions: a share is a share of what is left", function()
    local m = linear(golden.w)
    prune.l1_unstructured(m, "weight", { amount = 0.5 })
    assert.are.same(golden.composed[1], mask_of(m))
    prune.l1_unstructured(m, "weight", { amount = 0.5 })
    assert.are.same(golden.composed[2], mask_of(m))
    prune.ln_structured(m, "weight", { count = 1 })
    assert.are.same(golden.composed[3], mask_of(m))
    m = linear(golden.w)
    prune.ln_structured(m, "weight", { amount = 0.5, n = 1, dim = 2 })
    assert.are.same(golden.composed_structured[1], mask_of(m))
    prune.ln_structured(m, "weight", { amount = 0.5, dim = -1 })
    assert.are.same(golden.composed_structured[2], mask_of(m))
    prune.l1_unstructured(m, "weight", { count = 3 })
    assert.are.same(golden.composed_structured[3], mask_of(m))
  end)

  it("of channels by any norm along any dim", function()
    for label, n in pairs { ["1"] = 1, ["2"] = 2, inf = math.huge } do
      for dim = 1, 4 do
        local m = conv(golden.k)
        prune.ln_structured(m, "weight", { amount = 0.5, n = n, dim = dim })
        assert.are.same(golden["ln_" .. label .. "_" .. dim][1], mask_of(m))
      end
    end
  end)

  it("of several parameters together", function()
    local a, b = linear(golden.w), linear(golden.v)
    prune.l1_unstructured(a, "weight", { count = 4 })
    prune.global_unstructured({ { a, "weight" }, { b, "weight" } }, prune.l1_unstructured, { amount = 0.4 })
    assert.are.same(golden.global[1], mask_of(a))
    assert.are.same(golden.global[2], mask_of(b))
  end)
end)

describe("amounts", function()
  local function pruned_of_ten(options)
    local m = nn.Linear(10, 1)
    prune.l1_unstructured(m, "weight", options)
    return 10 - m.weight_mask:sum():item()
  end

  it("round half to even", function()
    assert.equal(2, pruned_of_ten { amount = 0.25 })
    assert.equal(4, pruned_of_ten { amount = 0.35 })
    assert.equal(10, pruned_of_ten { amount = 1 })
    assert.equal(0, pruned_of_ten { amount = 0 })
  end)

  it("count from 0 to all, no further", function()
    assert.equal(0, pruned_of_ten { count = 0 })
    assert.equal(10, pruned_of_ten { count = 10 })
    fails("11 weights cannot be pruned: there are 10 left", pruned_of_ten, { count = 11 })
    fails("count must not be negative", pruned_of_ten, { count = -1 })
  end)

  it("must be given, and the message shows how", function()
    local m = nn.Linear(10, 1)
    fails('prune.l1_unstructured%(module, "weight", {amount=0.3}%) prunes 30 %%', prune.l1_unstructured, m, "weight")
    fails('prune.ln_structured%(module, "weight", {count=3}%) prunes 3 channels', prune.ln_structured, m, "weight")
    fails("prune.l1_unstructured, {amount=0.3}", prune.global_unstructured, { { m, "weight" } })
    fails('the call is prune.l1_unstructured%(module, "weight", {amount=0.3}%)', prune.l1_unstructured, m,
      { name = "weight" })
    fails("a number of weights is {count=3}", prune.l1_unstructured, m, "weight", { amount = 3 })
    fails("exclude each other", prune.l1_unstructured, m, "weight", { amount = 0.3, count = 3 })
    fails("did you mean 'amount'", prune.l1_unstructured, m, "weight", { amont = 0.3 })
    assert.is_false(prune.is_pruned(m))
  end)

  it("check the other arguments, too", function()
    local m = nn.Linear(10, 1)
    fails("has no parameter 'wieght', did you mean 'weight'", prune.l1_unstructured, m, "wieght", { amount = 0.3 })
    fails("argument 1 must be a module, got nil", prune.l1_unstructured, nil, "weight", { amount = 0.3 })
    fails("importance_scores are %(2%), weight is %(1x10%)", prune.l1_unstructured, m, "weight",
      { amount = 0.3, importance_scores = tl.ones(2) })
    fails("at least 2 dims", prune.ln_structured, m, "bias", { amount = 0.3 })
    fails("dim 3 of a parameter of %(1x10%)", prune.ln_structured, m, "weight", { amount = 0.3, dim = 3 })
    fails("the mask is %(2%), weight is %(1x10%)", prune.custom_from_mask, m, "weight", tl.ones(2))
    fails("the list of parameters is empty", prune.global_unstructured, {}, { amount = 1 })
    fails("no nn.utils.prune.l2_unstructured, did you mean 'l1_unstructured'",
      function() return prune.l2_unstructured end)
    fails("did you mean 'prune'", function() return nn.utils.prun end)
  end)
end)

describe("a pruned module", function()
  local rows = { { 1, 2, 3, 4 }, { -4, -3, -2, -1 } }

  it("has weight_orig, the same Parameter, and weight_mask", function()
    local m = linear(rows)
    local p = m.weight
    prune.l1_unstructured(m, "weight", { count = 3 })
    assert.is_true(p == m.weight_orig)
    assert.are.same({ { 0, 0, 3, 4 }, { -4, -3, -2, 0 } }, m.weight:tolist())
    local keys = {}
    for key in m:named_parameters() do keys[#keys + 1] = key end
    for key in m:named_buffers() do keys[#keys + 1] = key end
    assert.are.same({ "bias", "weight_orig", "weight_mask" }, keys)
    local state = m:state_dict()
    assert.is_truthy(state.bias and state.weight_orig and state.weight_mask and not state.weight)
    tl.no_grad(function() m(tl.ones(1, 4)) end) -- a weight without history is still no parameter
    assert.equal(2, #m:parameters())
  end)

  it("computes with the masked weight and sends gradients through the mask", function()
    local m = linear(rows)
    prune.l1_unstructured(m, "weight", { count = 3 })
    m(tl.ones(1, 4)):sum():backward()
    assert.are.same({ { 0, 0, 1, 1 }, { 1, 1, 1, 0 } }, m.weight_orig.grad:tolist())
    tl.no_grad(function() m.weight_orig:mul_(2) end)
    assert.are.same({ { 0, 0, 6, 8 } }, m(tl.eye(4)):t():narrow(1, 1, 1):tolist())
  end)

  it("keeps its zeros through momentum, and loses them after remove", function()
    local m = linear(rows)
    local opt = optim.SGD(m:parameters(), { lr = 0.1, momentum = 0.9 })
    local function step()
      opt:zero_grad()
      m(tl.ones(1, 4)):sum():backward()
      opt:step()
    end
    step() -- momentum for all weights
    prune.l1_unstructured(m, "weight", { count = 3 })
    for _ = 1, 3 do step() end
    m(tl.ones(1, 4))
    assert.equal(3, m.weight:eq(0):sum():item())
    local p = m.weight_orig
    prune.remove(m, "weight")
    assert.is_true(p == m.weight)
    assert.equal(3, m.weight:eq(0):sum():item())
    assert.is_true(m.weight.requires_grad and m.weight.is_leaf)
    assert.is_nil(rawget(m, "weight_orig"))
    assert.is_nil(rawget(m, "weight_mask"))
    assert.is_false(prune.is_pruned(m))
    step()
    assert.equal(0, m.weight:eq(0):sum():item())
    fails("'weight' of Linear%(4, 2%) is not pruned", prune.remove, m, "weight")
  end)

  it("is cloned with its masks", function()
    local m = nn.Sequential(linear(rows), nn.ReLU())
    prune.l1_unstructured(m[1], "weight", { count = 3 })
    local copy = m:clone()
    prune.l1_unstructured(copy[1], "weight", { count = 1 })
    assert.equal(3, m[1].weight_mask:eq(0):sum():item())
    assert.equal(4, copy[1].weight_mask:eq(0):sum():item())
    tl.no_grad(function() copy[1].weight_orig:fill_(1) end)
    assert.are.same({ { 2, 2 } }, copy[1](tl.ones(1, 4)):tolist())
    prune.remove(copy[1], "weight")
    assert.is_true(prune.is_pruned(m))
    assert.is_false(prune.is_pruned(copy))
  end)

  it("is saved and loaded", function()
    local path = os.tmpname()
    local m, other = linear(rows), linear { { 0, 0, 0, 0 }, { 1, 1, 1, 1 } }
    prune.l1_unstructured(m, "weight", { count = 3 })
    tl.save(path, m:state_dict())
    fails("missing keys .weight.; unexpected keys .weight_mask., .weight_orig.", other.load_state_dict, other,
      tl.load(path))
    prune.identity(other, "weight")
    other:load_state_dict(tl.load(path))
    os.remove(path)
    local x = tl.randn(3, 4)
    assert.is_true(tl.allclose(m(x), other(x)))
    assert.equal(3, other.weight:eq(0):sum():item())
  end)

  it("changes dtype like any other, and prunes in it", function()
    for _, dtype in ipairs { "float64", "float16", "bfloat16" } do
      local m = linear(rows):to(dtype)
      prune.l1_unstructured(m, "weight", { count = 3 })
      prune.ln_structured(m, "weight", { count = 1 })
      assert.equal(dtype, m.weight_mask.dtype)
      assert.are.same({ { 0, 0, 0, 0 }, { -4, -3, -2, 0 } }, m.weight:tolist())
      m:float()
      assert.equal("float32", m(tl.ones(1, 4)).dtype)
    end
  end)

  it("works under autocast: the mask in float32, the product in the low type", function()
    local m = linear(rows)
    prune.l1_unstructured(m, "weight", { count = 3 })
    local low = { device = tl.get_default_device(), dtype = "bfloat16" }
    local function forward() return tl.amp.autocast(low, m, tl.ones(1, 4)) end
    local y = forward()
    assert.equal("bfloat16", y.dtype)
    assert.are.same({ { 7, -9 } }, y:tolist())
    y:float():sum():backward()
    assert.equal("float32", m.weight_orig.grad.dtype)
    assert.equal(3, m.weight_orig.grad:eq(0):sum():item())
    tl.no_grad(function() m.weight_orig:mul_(2) end)
    assert.are.same({ { 14, -18 } }, forward():tolist())
  end)

  it("costs one operation a parameter and forward", function()
    local ffi, C = require("tlua.base").ffi, require("tlua.base").C
    local m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    for _, layer in ipairs { m[1], m[2] } do prune.l1_unstructured(layer, "weight", { count = 3 }) end
    prune.l1_unstructured(m[2], "bias", { count = 1 })
    local trace = ffi.new("tl_trace *[1]")
    C.tl_trace_begin(trace)
    m(tl.ones(3, 4))
    C.tl_trace_end(trace[0])
    local names = {}
    for i = 0, C.tl_trace_length(trace[0]) - 1 do names[i + 1] = ffi.string(C.tl_trace_op(trace[0], i)) end
    C.tl_trace_free(trace[0])
    assert.equal("mul linear mul mul linear", table.concat(names, " "))
  end)

  it("keeps the user's hooks", function()
    local m, calls = linear(rows), 0
    m:register_forward_pre_hook(function() calls = calls + 1 end)
    prune.identity(m, "weight")
    prune.identity(m, "bias")
    m(tl.ones(1, 4))
    prune.remove(m, "weight")
    prune.remove(m, "bias")
    m(tl.ones(1, 4))
    assert.equal(2, calls)
    assert.equal(1, #m._hooks.before)
  end)
end)

describe("other prunings", function()
  it("identity prunes nothing", function()
    local m = linear { { 1, 2 } }
    prune.identity(m, "weight")
    assert.is_true(prune.is_pruned(nn.Sequential(m)))
    assert.are.same({ { 1, 1 } }, mask_of(m))
  end)

  it("custom_from_mask adds to what is masked already", function()
    local m = linear { { 1, 2, 3 } }
    prune.custom_from_mask(m, "weight", tl.tensor { { 0, 1, 1 } })
    prune.custom_from_mask(m, "weight", tl.tensor { { 1, 1, 0 } })
    assert.are.same({ { 0, 1, 0 } }, mask_of(m))
  end)

  it("random ones prune just so many, the same for the same seed", function()
    local function masks(seed)
      tl.manual_seed(seed)
      local a, b = nn.Linear(10, 10), nn.Conv2d(8, 6, 3)
      prune.random_unstructured(a, "weight", { amount = 0.37 })
      prune.random_structured(b, "weight", { count = 3, dim = 2 })
      return a.weight_mask, b.weight_mask
    end
    local a, b = masks(1)
    local a2, b2 = masks(1)
    assert.equal(63, a:sum():item())
    local channels = b:sum { 1, 3, 4 }
    assert.equal(3, channels:eq(0):sum():item())
    assert.equal(5, channels:eq(54):sum():item())
    assert.is_true(a:eq(a2):all():item() ~= 0 and b:eq(b2):all():item() ~= 0)
    assert.is_true(a:eq((masks(2))):all():item() == false or a:eq((masks(2))):all():item() == 0)
  end)

  it("two_four keeps two of every four along the input dim", function()
    local m = linear { { 1, -4, 3, 2, 5, 5, 5, 5 }, { 0, 0, 0, 1, -1, 2, -3, 4 } }
    prune.two_four(m, "weight")
    assert.are.same({ { 0, 1, 1, 0, 0, 0, 1, 1 }, { 0, 0, 1, 1, 0, 0, 1, 1 } }, mask_of(m))
    local c = nn.Conv2d(8, 4, 3)
    prune.two_four(c, "weight")
    assert.is_true(c.weight_mask:reshape(4, 2, 4, 9):sum(3):eq(2):all():item() ~= false)
    fails("dim 2 of %(3x6%) is not a multiple of 4", prune.two_four, nn.Linear(6, 3), "weight")
  end)

  it("equal weights go from the first on", function()
    local m = linear { { 2, 1, 1, 1, 2, 1 } }
    prune.l1_unstructured(m, "weight", { count = 3 })
    assert.are.same({ { 1, 0, 0, 0, 1, 1 } }, mask_of(m))
  end)
end)

describe("prune.schedule.cubic", function()
  it("follows Zhu & Gupta's formula", function()
    local s = prune.schedule.cubic { start = 10, stop = 110, final = 0.9, initial = 0.1, every = 20 }
    assert.equal(0.1, s:at(10))
    assert.equal(0.9, s:at(110))
    assert.equal(0.9, s:at(1000))
    assert.is_true(math.abs(s:at(60) - (0.9 - 0.8 * 0.125)) < 1e-12)
  end)

  it("prunes at its steps, to its sparsity", function()
    local m = nn.Linear(20, 10)
    local s = prune.schedule.cubic { start = 0, stop = 10, final = 0.8, every = 4 }
    local seen = {}
    for step = 1, 12 do
      if s:step { { m, "weight" } } then seen[#seen + 1] = ("%d:%d"):format(step, m.weight_mask:eq(0):sum():item()) end
    end
    assert.are.same({ "4:125", "8:159", "10:160" }, seen)
  end)

  it("prunes channels, and goes on where it was saved", function()
    local m = nn.Linear(20, 10)
    local function new() return prune.schedule.cubic { stop = 4, final = 0.5, method = prune.ln_structured } end
    local s = new()
    s:step { { m, "weight" } }
    local other = new()
    other:load_state_dict(s:state_dict())
    for _ = 2, 4 do other:step { { m, "weight" } } end
    assert.equal(5, m.weight_mask:any(2):eq(0):sum():item())
  end)

  it("checks its options", function()
    fails("start < stop", prune.schedule.cubic, { start = 5, stop = 5, final = 0.5 })
    fails("final is a sparsity from 0 to 1, got 50", prune.schedule.cubic, { stop = 5, final = 50 })
    fails("stop must be an integer", prune.schedule.cubic, { final = 0.5 })
  end)
end)

describe("reports", function()
  it("sparsity counts the zeros of every parameter", function()
    local m = nn.Sequential(linear { { 1, 0, 3, 4 } }, nn.ReLU(), nn.Linear(1, 2))
    prune.l1_unstructured(m[1], "weight", { count = 2 })
    local r = prune.sparsity(m)
    assert.equal("0.weight", r[2].name)
    assert.equal(2, r[2].zeros)
    assert.equal(0.5, r[2].sparsity)
    assert.is_true(r[2].pruned and not r[3].pruned)
    assert.equal(9, r.total)
    assert.matches("0.weight%s+2 of%s+4 zero%s+50.00 %%  pruned", tostring(r))
  end)

  it("sensitivity prunes copies, layer by layer", function()
    local m = nn.Sequential(linear { { 1, 2 }, { 3, 4 } }, linear { { 1, 1 } })
    local rows = prune.sensitivity(m, function(copy)
      copy(tl.ones(1, 2))
      return copy[1].weight:sum():item() + 100 * copy[2].weight:sum():item()
    end, { amounts = { 0.5, 1 } })
    assert.equal(210, rows.unpruned)
    assert.are.same({ { name = "0.weight", [0.5] = 207, [1] = 200 }, { name = "1.weight", [0.5] = 110, [1] = 10 } },
      { rows[1], rows[2] })
    assert.is_false(prune.is_pruned(m))
    assert.matches("1.weight%s+110%s+10", tostring(rows))
  end)

  it("rewind gives the first weights back and keeps the masks", function()
    local m = nn.Sequential(linear { { 1, 2, 3 } })
    local before = m:clone():state_dict()
    tl.no_grad(function() m[1].weight:copy_(tl.tensor { { 9, 5, 7 } }) end)
    prune.l1_unstructured(m[1], "weight", { count = 1 })
    prune.rewind(m, before)
    assert.are.same({ { 1, 0, 3 } }, m[1].weight:tolist())
    prune.rewind(m, m:clone():state_dict())
    fails("the state has no tensor '0.bias'", prune.rewind, m, { ["0.weight"] = tl.ones(1, 3) })
    fails("'0.weight' is %(1x3%) here and %(3%) in the state", prune.rewind, m,
      { ["0.weight"] = tl.ones(3), ["0.bias"] = tl.ones(1) })
  end)
end)

describe("prune.sparse", function()
  local on_cpu = tl.get_default_device() == "cpu"

  local function model()
    tl.manual_seed(1)
    local m = nn.Sequential(nn.Linear(40, 90), nn.ReLU(), nn.Linear(90, 30, { bias = false }), nn.Linear(30, 5))
    prune.l1_unstructured(m[1], "weight", { amount = 0.95 })
    prune.l1_unstructured(m[3], "weight", { amount = 0.99 })
    prune.custom_from_mask(m[1], "bias", tl.arange(90):ne(3))
    return m:eval()
  end

  if not on_cpu then
    it("leaves what is not on the CPU dense", function()
      local copy, report = prune.sparse(model(), { least = 0 })
      assert.is_true(copy[1]:is_a(nn.Linear))
      assert.matches("on cuda:0: only the CPU has it", tostring(report))
    end)
    return
  end

  it("computes the same, whatever the batch", function()
    local m = model()
    local copy, report = prune.sparse(m, { least = 0.9 })
    assert.equal("SparseLinear", copy[1]._name)
    assert.equal("SparseLinear", copy[3]._name)
    assert.is_true(copy[4]:is_a(nn.Linear))
    assert.equal(180, copy[1].weight_values:numel())
    local shapes = { { 40 }, { 1, 40 }, { 2, 40 }, { 5, 13, 40 }, { 16, 40 }, { 33, 40 }, { 700, 40 }, { 0, 40 } }
    for _, shape in ipairs(shapes) do
      local x = tl.randn(shape)
      assert.is_true(tl.allclose(m(x), copy(x), { rtol = 1e-5, atol = 1e-6 }))
      x = tl.randn(40, 3):t() -- not contiguous
      assert.is_true(tl.allclose(m(x), copy(x), { rtol = 1e-5, atol = 1e-6 }))
    end
    assert.is_true(prune.is_pruned(m) and not prune.is_pruned(copy))
    assert.is_true(report.bytes < report.bytes_before / 5)
    assert.matches("0 +95.00 %% of 3600 zero  sparse\n", tostring(report))
    assert.matches("\n3 +0.00 %% of 150 zero  dense: dense is faster below 90 %% zeros", tostring(report))
    assert.matches("SparseLinear%(40, 90, 180 weights%)", tostring(copy))
  end)

  it("takes the layers that are worth it", function()
    local function sparse(n, amount, batch)
      local m = nn.Linear(n, n)
      prune.l1_unstructured(m, "weight", { amount = amount })
      return prune.sparse(m, { batch = batch })._name == "SparseLinear"
    end
    assert.is_false(sparse(64, 0.9))
    assert.is_true(sparse(64, 0.99, 64))
    assert.is_true(sparse(1024, 0.95))
    assert.is_false(sparse(1024, 0.5))
    assert.is_false(sparse(1024, 0.8))
    assert.is_true(sparse(1024, 0.8, 64))
  end)

  it("takes a layer that occurs twice once, and keeps its hooks", function()
    local shared, calls = nn.Linear(8, 8), 0
    shared:register_forward_hook(function() calls = calls + 1 end)
    local m = nn.Sequential(shared, nn.ReLU(), shared)
    prune.l1_unstructured(shared, "weight", { amount = 0.9 })
    local copy = prune.sparse(m, { least = 0.5 })
    assert.equal(copy[1], copy[3])
    local x = tl.randn(2, 8)
    assert.is_true(tl.allclose(copy(x), m(x), { rtol = 1e-5, atol = 1e-6 }))
    assert.equal(4, calls)
  end)

  it("is for inference", function()
    local copy = prune.sparse(model(), { least = 0.9 })
    assert.equal(2, #copy:parameters()) -- of the layer that stays dense
    fails("has no gradient %(use tl.no_grad%)", copy, tl.randn(2, 40):requires_grad_())
    tl.no_grad(function() copy(tl.randn(2, 40):requires_grad_()) end)
    fails("SparseLinear%(40, 90, 180 weights%): a sparse layer is for inference", copy:train(), tl.randn(2, 40))
    copy:eval()
    fails("expected an input of %(..x40%), got %(2x41%)", copy, tl.randn(2, 41))
    fails("a float32 input, got float64", copy, tl.randn(2, 40):double())
  end)

  it("computes in float32 under autocast", function()
    local m = model()
    local copy = prune.sparse(m, { least = 0.9 })
    local x = tl.randn(4, 40):to("bfloat16")
    local y = tl.amp.autocast({ device = "cpu", dtype = "bfloat16" }, copy[1], x)
    assert.is_true(tl.allclose(m[1](x:float()), y, { rtol = 1e-5, atol = 1e-6 }))
  end)

  it("is cloned, saved and loaded", function()
    local copy, path = prune.sparse(model(), { least = 0.9 }), os.tmpname()
    tl.save(path, copy:clone():state_dict())
    local state = tl.load(path)
    local function fresh()
      return nn.Sequential(nn.Linear(40, 90), nn.ReLU(), nn.Linear(90, 30, { bias = false }), nn.Linear(30, 5))
    end
    local other, x = prune.sparse(fresh(), { state = state }), tl.randn(3, 40)
    assert.is_true(copy(x):equal(other(x)))
    fails("unexpected keys .*weight_columns", fresh().load_state_dict, fresh(), state)
    local broken = prune.sparse(model(), { least = 0.9 }):state_dict()
    broken["0.weight_columns"]:fill_(40)
    other = prune.sparse(fresh(), { state = broken })
    fails("column 40 of a weight with 40 columns", other, x)
    fails("column 40 of a weight with 40 columns", other, tl.randn(1, 40))
    broken["0.weight_columns"]:fill_(-1)
    fails("column %d+ of a weight with 40 columns", prune.sparse(fresh(), { state = broken }), x)
    broken["0.weight_first"] = nil
    fails("the state has no tensor '0.weight_first'", prune.sparse, fresh(), { state = broken })
    os.remove(path)
  end)

  it("leaves other dtypes dense", function()
    local copy, report = prune.sparse(model():double(), { least = 0 })
    assert.is_true(copy[1]:is_a(nn.Linear))
    assert.matches("float64: only float32 has it", tostring(report))
  end)

  it("checks its arguments", function()
    fails("argument 1 must be a module, got a number", prune.sparse, 3)
    fails("batch must be an integer of at least 1", prune.sparse, model(), { batch = 0 })
    fails("least is a share from 0 to 1, got 90", prune.sparse, model(), { least = 90 })
    fails("a state dict is a table", prune.sparse, model(), { state = 3 })
  end)
end)
