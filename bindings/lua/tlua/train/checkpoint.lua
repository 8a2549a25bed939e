-- checkpoint.lua: everything that a run needs to go on, in one file.
--
-- The file is a table of tl.save: the state of each object under the caller's name, the caller's values, and "ranks":
-- for each rank the random numbers and what else is that rank's own (loaders, generators).
local base = require "tlua.base"
local json = require "tlua.json"
local tl, ffi, fail = base.tl, base.ffi, base.fail

local checkpoint = {}

local function is_object(value)
  return type(value) == "table" and type(value.state_dict) == "function" and type(value.load_state_dict) == "function"
end

local function is_own(value) return base.is_generator(value) or (is_object(value) and value.per_rank) end

local function state_of(value)
  if base.is_generator(value) then return value:get_state() end
  return is_object(value) and value:state_dict() or value
end

local function check_state(state, op)
  if type(state) ~= "table" then
    fail(op .. ": what is kept is a table {model=..., optimizer=...}, got " .. base.kind(state))
  end
  for name in pairs(state) do
    if type(name) ~= "string" then fail(op .. ": names are strings, got " .. base.kind(name)) end
    if name == "ranks" then fail(op .. ": the name 'ranks' is taken") end
  end
end

-- Names in one order on all ranks (pairs() has another in each process): a state_dict() may be a collective.
local function names_of(state)
  local names = {}
  for name in pairs(state) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- ---- ranks ----

local function group()
  local dist = package.loaded["tlua.dist"]
  if dist and dist.is_initialized() and dist.world_size() > 1 then return dist end
end

-- The values (numbers, strings, tables of them) of all ranks, on every rank.
local function gather(value)
  local dist = group()
  if not dist then return { value } end
  local text = json.encode(value)
  local length = tl.tensor({ #text }, { dtype = "int64", device = "cpu" })
  local longest = dist.all_reduce(length, "max"):item()
  local bytes = tl.zeros(longest, { dtype = "uint8", device = "cpu" })
  ffi.copy(bytes:data_ptr(), text, #text)
  local all, list = dist.all_gather(bytes), {}
  for r = 1, dist.world_size() do
    list[r] = json.decode((ffi.string(all[r]:data_ptr(), longest):gsub("%z+$", "")))
  end
  return list
end

local function rank() return group() and group().rank() or 0 end

-- ---- saving ----

--- The table that a checkpoint is. With several ranks it is called on all of them.
function checkpoint.collect(state)
  check_state(state, "save_checkpoint")
  local saved, own = {}, { rng = tl.get_rng_state() }
  for _, name in ipairs(names_of(state)) do
    local value = state[name]
    if name == "rng" and is_own(value) then fail("save_checkpoint: the name 'rng' is taken") end
    if is_own(value) then own[name] = state_of(value) else saved[name] = state_of(value) end
  end
  saved.ranks = gather(own)
  return saved
end

--- save_checkpoint(path, {model=, optimizer=, ...}): the state of each object that has state_dict() and
--- load_state_dict(), of each generator, and the default generator's; numbers, strings, tensors and tables of them as
--- they are. Rank 0 writes; all ranks call it.
function checkpoint.save_checkpoint(path, state)
  local saved = checkpoint.collect(state)
  if rank() == 0 then tl.save(path, saved) end
end

-- ---- loading ----

--- Hands what a file holds to the objects of `state`. Returns the rest of it: the values.
function checkpoint.restore(path, saved, state, options)
  local op = "load_checkpoint"
  check_state(state, op)
  local o = base.options(op, options, { rng = true })
  if type(saved) ~= "table" or type(saved.ranks) ~= "table" then fail(("%s: %s is no checkpoint"):format(op, path)) end
  local own = saved.ranks[rank() + 1]
  local ranks = group() and group().world_size() or 1
  if #saved.ranks ~= ranks and o.rng then
    fail(("%s: %s was saved by %d ranks, there are %d (rng=false takes what does not depend on it)"):format(op, path,
      #saved.ranks, ranks))
  end
  local rest = {}
  for name, value in pairs(saved) do
    if name ~= "ranks" then rest[name] = value end
  end
  local missing = {}
  for name, object in pairs(state) do
    if not is_object(object) and not base.is_generator(object) then
      fail(("%s: '%s' is %s; what takes its state back is an object or a generator"):format(op, name,
        base.kind(object)))
    end
    local from = saved
    if is_own(object) then from = own or {} end
    if from[name] == nil then missing[#missing + 1] = "'" .. name .. "'" end
  end
  table.sort(missing)
  if #missing > 0 then fail(("%s: %s holds nothing for %s"):format(op, path, table.concat(missing, ", "))) end
  for _, name in ipairs(names_of(state)) do
    local object, value = state[name], saved[name]
    if is_own(object) then value = own[name] end
    if base.is_generator(object) then object:set_state(value) else object:load_state_dict(value) end
    rest[name] = nil
  end
  if o.rng then tl.set_rng_state(own.rng) end
  return rest
end

--- load_checkpoint(path, {model=, optimizer=, ...}, {rng=true}): each object takes its state back, and the default
--- generator (unless rng=false). Returns the rest of the file: the values, and the states nobody asked for.
function checkpoint.load_checkpoint(path, state, options)
  return checkpoint.restore(path, tl.load(path), state, options)
end

checkpoint.rank, checkpoint.group = rank, group

--- Can load_checkpoint() hand a state to it?
function checkpoint.takes_state(value) return is_object(value) or base.is_generator(value) end

return checkpoint
