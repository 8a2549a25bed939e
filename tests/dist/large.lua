-- large.lua [COUNT]: collectives that one write, or one count of MPI, does not hold: each in parts.
local tl = require "tlua"
local dist = tl.dist

dist.init { timeout = 120 }
local rank, size = dist.rank(), dist.world_size()
local n = tonumber(arg[1] or 2^21 + 5)

-- What rank r holds: another number in each place.
local function values(r, count, times) return tl.arange(count, { dtype = "int32" }) * (times or 1) + r end
local function sum(count) return values(size * (size - 1) / 2, count, size) end

assert(dist.all_reduce(values(rank, n)):equal(sum(n)), "all_reduce")
assert(dist.all_reduce(values(rank, n), "max"):equal(values(size - 1, n)), "max")
assert(dist.broadcast(values(rank, n), size - 1):equal(values(size - 1, n)), "broadcast")
local all = dist.all_gather(values(rank, n))
for r = 0, size - 1 do assert(all[r + 1]:equal(values(r, n)), "all_gather of rank " .. r) end
local part = dist.reduce_scatter(values(rank, n * size))
assert(part:equal(sum(n * size):narrow(1, rank * n + 1, n)), "reduce_scatter")
dist.print(("ok large on %d"):format(size))
