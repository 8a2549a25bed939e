-- collectives.lua: every collective over dtypes and layouts, against what the ranks' values say.
local tl = require "tlua"
local dist = tl.dist

dist.init { timeout = 60 }
local rank, size = dist.rank(), dist.world_size()
if os.getenv "TLUA_TEST_DEVICE" == "cuda" then tl.set_default_device("cuda:" .. dist.local_rank()) end

-- What rank r holds: small whole numbers, exact in every dtype.
local function values(r, dtype)
  local t = (tl.arange(6) + r):remainder(3):view(2, 3)
  return dtype == "bool" and t:gt(1) or t:to(dtype)
end

local layouts = {
  contiguous = function(t) return t end,
  transposed = function(t) return t:t():contiguous():t() end,
  narrowed = function(t)
    local wide = tl.zeros(2, 5, { dtype = t.dtype })
    local view = wide:narrow(2, 2, 3)
    view:copy_(t)
    return view
  end,
  scalar = function(t) return t[1][2] end,
  empty = function(t) return t:narrow(1, 1, 0) end,
}

-- f over all ranks' values, folded from rank 0 on.
local function fold(layout, dtype, f)
  local all = layouts[layout](values(0, dtype)):clone()
  for r = 1, size - 1 do all = f(all, layouts[layout](values(r, dtype))) end
  return all
end

local dtypes = { "float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8" }
local names = { "contiguous", "transposed", "narrowed", "scalar", "empty" } -- every rank has the same order

local function same(a, b, what)
  assert(a:equal(b), ("%s on rank %d: %s, not %s"):format(what, rank, tostring(a), tostring(b)))
end

local function add(a, b) return a + b end

for _, dtype in ipairs(dtypes) do
  for _, layout in ipairs(names) do
    local make = layouts[layout]
    local what = dtype .. " " .. layout
    same(dist.all_reduce(make(values(rank, dtype)), "sum"), fold(layout, dtype, add), what .. " sum")
    same(dist.all_reduce(make(values(rank, dtype)), "max"), fold(layout, dtype, tl.maximum), what .. " max")
    same(dist.all_reduce(make(values(rank, dtype)), "min"), fold(layout, dtype, tl.minimum), what .. " min")
    same(dist.broadcast(make(values(rank, dtype)), size - 1), make(values(size - 1, dtype)), what .. " broadcast")
    local gathered = dist.all_gather(make(values(rank, dtype)))
    for r = 0, size - 1 do same(gathered[r + 1], make(values(r, dtype)), what .. " gather") end
  end
  local long = values(rank, dtype):repeat_interleave(size, 1)
  local sum = values(0, dtype)
  for r = 1, size - 1 do sum = sum + values(r, dtype) end
  same(dist.reduce_scatter(long, "sum"), sum:repeat_interleave(size, 1):narrow(1, rank * 2 + 1, 2), dtype .. " scatter")
end
local flags = dist.all_reduce(values(rank, "bool"), "max")
local expected = values(0, "bool")
for r = 1, size - 1 do expected = expected:logical_or(values(r, "bool")) end
same(flags, expected, "bool any")
local mean = dist.all_reduce(tl.full({ 3 }, rank), "mean")
assert(mean:allclose(tl.full({ 3 }, (size - 1) / 2)), "mean")
local worst = tl.tensor { 0 / 0, rank }
dist.all_reduce(worst, "sum")
assert(worst[1]:isnan():item() == true or worst[1]:isnan():item() == 1, "nan")
-- a NaN stays, whosever it is
for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16" } do
  for r = 0, size - 1 do
    for _, op in ipairs { "max", "min" } do
      local t = tl.tensor({ rank == r and 0 / 0 or 1 }, { dtype = dtype })
      assert(dist.all_reduce(t, op):isnan():item(), ("%s of a NaN of rank %d, %s"):format(op, r, dtype))
    end
  end
end

-- many at once, in order, while the tensors are in use nowhere else
local works = {}
for i = 1, 50 do works[i] = dist.all_reduce(tl.full({ i * 100 }, rank + i), "sum", { async = true }) end
for i = 50, 1, -1 do
  assert(works[i]:wait():eq(size * i + size * (size - 1) / 2):all():item(), "async " .. i)
end
-- one that nobody waits for
dist.all_reduce(tl.ones(10), "sum", { async = true })
collectgarbage()
dist.barrier()
dist.print("ok collectives on " .. size)
