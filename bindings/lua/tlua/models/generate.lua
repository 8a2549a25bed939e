-- generate.lua: model:generate and model:stream: text one token at a time: greedy, or drawn with temperature, from the
-- top_k likeliest (Fan et al. 2018), from the nucleus that holds top_p of the probability (Holtzman et al. 2020).
local base = require "tlua.base"

local tl, fail = base.tl, base.fail

local generation = {}

local defaults = {
  max_new_tokens = 20, temperature = 1, top_k = 0, top_p = 1, eos_token_id = base.optional,
  pad_token_id = base.optional, generator = base.optional, use_cache = true,
}

-- ---- options ----

local function check_range(op, o, name, fits, range)
  if not fits then fail(("%s: option '%s' must be %s, got %g"):format(op, name, range, o[name])) end
end

-- eos_token_id: false, an id or a list of ids; as a set, with the first of them.
local function end_ids(op, value)
  if value == nil or value == false then return {}, nil end
  local list, set = type(value) == "table" and value or { value }, {}
  for _, id in ipairs(list) do
    base.check_integer(id, op, "an id of option 'eos_token_id'")
    set[id] = true
  end
  return set, list[1]
end

local function read(model, op, ids, options)
  local o = base.options(op, options, defaults)
  model:check_ids(ids)
  local T, limit = ids:size(2), model:limit()
  check_range(op, o, "max_new_tokens", o.max_new_tokens >= 0 and o.max_new_tokens % 1 == 0, "an integer of at least 0")
  check_range(op, o, "temperature", o.temperature >= 0, "at least 0")
  check_range(op, o, "top_k", o.top_k >= 0 and o.top_k % 1 == 0, "an integer of at least 0 (0: all)")
  check_range(op, o, "top_p", o.top_p > 0 and o.top_p <= 1, "above 0 and at most 1")
  if o.pad_token_id ~= nil then base.check_integer(o.pad_token_id, op, "option 'pad_token_id'") end
  if ids:size(1) == 0 or T == 0 then fail(op .. ": needs at least one token to go on from") end
  if T + o.max_new_tokens > limit then
    fail(("%s: %d tokens and %d new ones are more than the %d that the model takes"):format(op, T, o.max_new_tokens,
      limit))
  end
  local eos = o.eos_token_id
  if eos == nil then eos = model.config.eos_token_id end
  o.ends, o.pad = end_ids(op, eos)
  o.pad = o.pad_token_id or model.config.pad_token_id or o.pad
  return o
end

-- ---- the next token ----

-- logits (B, V) -> ids (B, 1).
local function draw(logits, o)
  if o.temperature == 0 then return logits:argmax(2, { keepdim = true }) end
  logits = logits:float()
  -- The likeliest is 0 at any temperature, which float32 has to hold.
  logits = (logits - logits:amax(2, { keepdim = true })) / math.max(o.temperature, 1e-30)
  local k = o.top_k > 0 and math.min(o.top_k, logits:size(2)) or logits:size(2)
  if k == logits:size(2) and o.top_p == 1 then
    return logits:softmax(2):multinomial(1, { generator = o.generator })
  end
  local best, ids = logits:topk(k, 2) -- from the likeliest down
  local p = best:softmax(2)
  if o.top_p < 1 then p = p:masked_fill((p:cumsum(2) - p):ge(o.top_p), 0) end
  return ids:gather(2, p:multinomial(1, { generator = o.generator }))
end

-- Modes are the whole model's; a model in training stays so between tokens.
local function in_eval(model, f, ...)
  if not model.training then return tl.no_grad(f, ...) end
  model:eval()
  local ok, result = pcall(tl.no_grad, f, ...)
  model:train()
  if not ok then error(result, 0) end
  return result
end

-- A function that gives the next tokens (B, 1) each time; nil at the end.
local function tokens(model, op, ids, options)
  local o = read(model, op, ids, options)
  local cache = o.use_cache and model:cache() or nil
  local seen, count = ids, 0
  local rows = ids:size(1)
  local done, finished = {}, 0 -- rows that reached their end

  local function step() return draw(model:next_logits(seen, cache), o) end

  -- Rows that have ended go on with the padding id.
  local function note_ends(next_ids)
    if next(o.ends) == nil then return next_ids end
    local list = next_ids:tolist()
    for i = 1, rows do
      if done[i] then
        list[i][1] = o.pad
      elseif o.ends[list[i][1]] then
        done[i], finished = true, finished + 1
      end
    end
    return tl.tensor(list, { dtype = "int64", device = ids.device })
  end

  return function()
    if count == o.max_new_tokens or finished == rows then return nil end
    base.poll()
    local next_ids = note_ends(in_eval(model, step))
    count = count + 1
    seen = cache and next_ids or tl.cat({ seen, next_ids }, 2)
    return next_ids
  end
end

--- model:generate(ids, {max_new_tokens=20, temperature=1, top_k=0, top_p=1, eos_token_id=, pad_token_id=, generator=,
--- use_cache=true}): ids (B, T) with the new tokens behind them (B, T + n). temperature=0 takes the likeliest token.
--- It ends early when every row reached an end: eos_token_id is an id or a list of ids (the config's; false: none).
function generation.generate(model, ids, options)
  local list = { ids }
  for next_ids in tokens(model, "generate", ids, options) do list[#list + 1] = next_ids end
  return tl.cat(list, 2)
end

--- for id in model:stream(ids, options) do: the same one token at a time: a number for one row of ids, else a list.
function generation.stream(model, ids, options)
  local next_ids = tokens(model, "stream", ids, options)
  return function()
    local t = next_ids()
    if t == nil then return nil end
    local list = t:reshape(-1):tolist()
    return #list == 1 and list[1] or list
  end
end

return generation
