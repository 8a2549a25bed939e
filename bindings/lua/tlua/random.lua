-- random.lua: generators and in-place random fills.
local base = require "tlua.base"

local ffi, C, methods, tl = base.ffi, base.C, base.methods, base.tl
local check, fail, wrap, out = base.check, base.fail, base.wrap, base.out
local check_tensor, check_number, check_integer = base.check_tensor, base.check_number, base.check_integer

local generator_type = ffi.typeof("tl_generator")
local generator_out = ffi.new("tl_generator *[1]")
local seed_out, offset_out = ffi.new("double[1]"), ffi.new("double[1]")

--- Is x a tl.Generator?
function base.is_generator(x) return ffi.istype(generator_type, x) end

local Generator = {}

--- g:manual_seed(n): starts again from seed n; returns g.
function Generator.manual_seed(g, seed)
  check_number(seed, "manual_seed", "the seed")
  check(C.tl_generator_seed(g, seed))
  return g
end

--- g:seed(): the seed it was given.
function Generator.seed(g)
  check(C.tl_generator_state(g, seed_out, offset_out))
  return seed_out[0]
end

--- g:get_state() is {seed=, offset=}; g:set_state(that) continues from there.
function Generator.get_state(g)
  check(C.tl_generator_state(g, seed_out, offset_out))
  return { seed = seed_out[0], offset = offset_out[0] }
end

function Generator.set_state(g, state)
  if type(state) ~= "table" or type(state.seed) ~= "number" or type(state.offset) ~= "number" then
    fail("set_state: a state is {seed=, offset=}, as get_state gives it")
  end
  check(C.tl_generator_set_state(g, state.seed, state.offset))
  return g
end

ffi.metatype(generator_type, {
  __index = Generator,
  __tostring = function(g)
    local state = Generator.get_state(g)
    return ("tl.Generator(seed=%.0f, offset=%.0f)"):format(state.seed, state.offset)
  end,
})

--- tl.Generator(seed): a stream of random numbers of its own (Philox4x32-10).
function tl.Generator(seed)
  if seed == nil then seed = 0 end
  check_number(seed, "Generator", "the seed")
  check(C.tl_generator_new(seed, generator_out))
  return ffi.gc(generator_out[0], ffi.C.tl_generator_free)
end

--- tl.manual_seed(n): seeds the default generator.
function tl.manual_seed(seed)
  check_number(seed, "manual_seed", "the seed")
  check(C.tl_generator_seed(nil, seed))
end

--- The default generator's state and back.
function tl.get_rng_state() return Generator.get_state(nil) end
function tl.set_rng_state(state) Generator.set_state(nil, state) end
--- The default generator's seed.
function tl.initial_seed() return Generator.seed(nil) end

local function read_generator(op, options)
  if options == nil then return nil end
  local g = base.options(op, options, { generator = base.optional }).generator
  if g ~= nil and not base.is_generator(g) then
    fail(op .. ": option 'generator' must be a tl.Generator, got " .. base.kind(g))
  end
  return g
end

--- x:uniform_(low, high, {generator=}): numbers in [low, high), 0 and 1 by default.
function methods.uniform_(x, low, high, options)
  check_tensor(x, "uniform_", 1)
  low, high = low or 0, high or 1
  check_number(low, "uniform_", "the lower bound")
  check_number(high, "uniform_", "the upper bound")
  check(C.tl_uniform_(x, low, high, read_generator("uniform_", options)))
  return x
end

--- x:normal_(mean, std, {generator=}), 0 and 1 by default.
function methods.normal_(x, mean, std, options)
  check_tensor(x, "normal_", 1)
  mean, std = mean or 0, std or 1
  check_number(mean, "normal_", "the mean")
  check_number(std, "normal_", "the standard deviation")
  check(C.tl_normal_(x, mean, std, read_generator("normal_", options)))
  return x
end

--- x:random_(low, high, {generator=}): integers low .. high-1.
function methods.random_(x, low, high, options)
  check_tensor(x, "random_", 1)
  check_integer(low, "random_", "the lower bound")
  check_integer(high, "random_", "the upper bound")
  check(C.tl_randint_(x, low, high, read_generator("random_", options)))
  return x
end

--- x:bernoulli_(p, {generator=}): 1 with probability p (0.5), else 0.
function methods.bernoulli_(x, p, options)
  check_tensor(x, "bernoulli_", 1)
  p = p or 0.5
  check_number(p, "bernoulli_", "the probability")
  check(C.tl_bernoulli_(x, p, read_generator("bernoulli_", options)))
  return x
end

--- weights:multinomial(n, {replacement=false, generator=}): n draws from each row of weights, int64.
function methods.multinomial(weights, n, options)
  check_tensor(weights, "multinomial", 1)
  check_integer(n, "multinomial", "the number of draws")
  local o = base.options("multinomial", options, { replacement = false, generator = base.optional })
  local generator = read_generator("multinomial", { generator = o.generator })
  check(C.tl_multinomial(weights, n, o.replacement and true or false, generator, out))
  return wrap(out[0])
end
tl.multinomial = methods.multinomial

--- x:dropout(p, {training=true, generator=}): zeroes elements with probability p and scales the others by 1/(1-p).
function methods.dropout(x, p, options)
  check_tensor(x, "dropout", 1)
  p = p or 0.5
  check_number(p, "dropout", "the probability")
  local o = base.options("dropout", options, { training = true, generator = base.optional })
  check(C.tl_dropout(x, p, o.training and true or false, read_generator("dropout", { generator = o.generator }), out))
  return wrap(out[0])
end
tl.dropout = methods.dropout

-- For either kind of generator: nil is the default one.
return { get_state = Generator.get_state, set_state = Generator.set_state }
