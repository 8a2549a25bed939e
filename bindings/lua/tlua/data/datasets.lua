-- datasets.lua: tensors as datasets, parts of datasets and their union.
--
-- A dataset is any table with size() and get(i), i from 1, which returns the values of one sample. Datasets whose
-- samples lie in tensors also have rows(): the tensors, and the 0-based ids of the rows that are samples (nil: all);
-- loaders then gather batches in C.
local tl = require "tlua"
local base = require "tlua.base"
local fail, is_tensor = base.fail, base.is_tensor

local datasets = {}

local function check_dataset(ds, op)
  if type(ds) ~= "table" or type(ds.size) ~= "function" or type(ds.get) ~= "function" then
    fail(op .. ": a dataset is a table with the methods size() and get(i), got " .. base.kind(ds))
  end
end
datasets.check = check_dataset

local function check_index(i, n, op)
  base.check_integer(i, op, "the sample's position")
  if i < 1 or i > n then fail(("%s: there is no sample %d, they are 1 to %d"):format(op, i, n)) end
end

-- ---- tensors ----

local TensorDataset = {}
TensorDataset.__index = TensorDataset

--- Samples are the rows of x, y, ... (their sizes of dim 1 agree): get(i) is x[i], y[i], ...
function datasets.TensorDataset(...)
  local tensors = { ... }
  if #tensors == 0 then fail("TensorDataset: needs at least one tensor") end
  for i, t in ipairs(tensors) do
    base.check_tensor(t, "TensorDataset", i)
    if t:dim() == 0 then fail("TensorDataset: argument " .. i .. " is a 0-d tensor: it has no samples") end
    if #t ~= #tensors[1] then
      fail(("TensorDataset: argument 1 has %d samples, argument %d has %d"):format(#tensors[1], i, #t))
    end
  end
  return setmetatable({ tensors = tensors }, TensorDataset)
end

function TensorDataset:size() return #self.tensors[1] end

function TensorDataset:get(i)
  check_index(i, self:size(), "TensorDataset:get")
  local sample = {}
  for k, t in ipairs(self.tensors) do sample[k] = t[i] end
  return unpack(sample, 1, #sample)
end

function TensorDataset:rows() return self.tensors, nil end

-- ---- parts ----

local Subset = {}
Subset.__index = Subset

-- Positions (a table, from 1) or ids (an int64 tensor, from 0) as a tensor of ids, checked.
local function read_ids(indices, n, op)
  local ids = indices
  if type(indices) == "table" then
    for k, i in ipairs(indices) do
      if type(i) ~= "number" or i ~= math.floor(i) or i < 1 or i > n then
        fail(("%s: position %d is %s, samples are 1 to %d"):format(op, k, tostring(i), n))
      end
    end
    return tl.tensor(indices, { dtype = "float64", device = "cpu" }):sub(1):to("int64")
  end
  if not is_tensor(ids) or ids.dtype ~= "int64" or ids:dim() ~= 1 then
    fail(("%s: indices are a table of positions (from 1) or a 1-d int64 tensor of ids (from 0), got %s"):format(op,
      base.kind(ids)))
  end
  if #ids > 0 and (ids:min():item() < 0 or ids:max():item() >= n) then
    fail(("%s: ids are %d to %d, samples are 0 to %d"):format(op, ids:min():item(), ids:max():item(), n - 1))
  end
  return ids
end
datasets.read_ids = read_ids

--- The samples of a dataset at `indices`: a table of positions (from 1) or an int64 tensor of ids (from 0).
function datasets.Subset(dataset, indices)
  check_dataset(dataset, "Subset")
  return setmetatable({ dataset = dataset, ids = read_ids(indices, dataset:size(), "Subset") }, Subset)
end

function Subset:size() return #self.ids end

function Subset:get(i)
  check_index(i, self:size(), "Subset:get")
  return self.dataset:get(self.ids[i]:item() + 1)
end

function Subset:rows()
  if not self.dataset.rows then return nil end
  local tensors, ids = self.dataset:rows()
  if not tensors then return nil end
  return tensors, ids and ids:index_select(1, self.ids) or self.ids
end

-- Fractions of n as counts: rounded down, what is left goes to the parts in turn (as PyTorch does).
local function counts_of(fractions, n)
  local counts, used = {}, 0
  for k, f in ipairs(fractions) do
    counts[k] = math.floor(n * f)
    used = used + counts[k]
  end
  for k = 0, n - used - 1 do
    local part = k % #counts + 1
    counts[part] = counts[part] + 1
  end
  return counts
end

--- Splits a dataset at random into parts of these lengths, or fractions that sum to 1: random_split(ds, {50000, 10000},
--- {generator=}). Returns a table of Subsets.
function datasets.random_split(dataset, lengths, options)
  check_dataset(dataset, "random_split")
  local o = base.options("random_split", options, { generator = base.optional })
  if type(lengths) ~= "table" then fail("random_split: lengths are a table of numbers, got " .. base.kind(lengths)) end
  local n, sum = dataset:size(), 0
  for k, length in ipairs(lengths) do
    base.check_number(length, "random_split", "length " .. k)
    if length < 0 then fail("random_split: length " .. k .. " is negative") end
    sum = sum + length
  end
  if n ~= 1 and math.abs(sum - 1) < 1e-9 then
    lengths, sum = counts_of(lengths, n), n
  end
  if sum ~= n then fail(("random_split: the lengths sum to %g, the dataset has %d samples"):format(sum, n)) end
  local order, at, parts = tl.randperm(n, { generator = o.generator, device = "cpu" }), 1, {}
  for k, length in ipairs(lengths) do
    base.check_integer(length, "random_split", "length " .. k)
    parts[k] = setmetatable({ dataset = dataset, ids = order:narrow(1, at, length) }, Subset)
    at = at + length
  end
  return parts
end

-- ---- unions ----

local ConcatDataset = {}
ConcatDataset.__index = ConcatDataset

--- The samples of several datasets, one after the other.
function datasets.ConcatDataset(list)
  if type(list) ~= "table" or #list == 0 then fail("ConcatDataset: needs a table of datasets") end
  local ends, n = {}, 0
  for k, ds in ipairs(list) do
    check_dataset(ds, "ConcatDataset")
    n = n + ds:size()
    ends[k] = n
  end
  return setmetatable({ datasets = list, ends = ends }, ConcatDataset)
end

function ConcatDataset:size() return self.ends[#self.ends] end

function ConcatDataset:get(i)
  check_index(i, self:size(), "ConcatDataset:get")
  local k = 1
  while i > self.ends[k] do k = k + 1 end
  return self.datasets[k]:get(i - (self.ends[k - 1] or 0))
end

return datasets
