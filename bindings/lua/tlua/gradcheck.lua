-- gradcheck.lua: tl.autograd.gradcheck: derivatives against finite differences.
local base = require "tlua.base"

local tl = base.tl
local fail, is_tensor = base.fail, base.is_tensor

-- float64 copies of the inputs; those to be checked require gradients (all floating ones if none does).
local function prepare(inputs)
  local copies, any = {}, false
  for i, x in ipairs(inputs) do
    if is_tensor(x) and x.requires_grad then any = true end
    copies[i] = x
  end
  local checked = {}
  for i, x in ipairs(copies) do
    if is_tensor(x) and x:is_floating_point() then
      copies[i] = x:detach():double():clone()
      if x.requires_grad or not any then
        copies[i].requires_grad = true
        checked[#checked + 1] = i
      end
    end
  end
  return copies, checked
end

-- f's differentiable outputs as a list.
local function outputs_of(f, copies)
  local results = { f(unpack(copies, 1, #copies)) }
  local list = {}
  for _, y in ipairs(results) do
    if is_tensor(y) and y:is_floating_point() then list[#list + 1] = y end
  end
  if #list == 0 then fail("gradcheck: the function must return a floating tensor") end
  return list
end

-- d outputs[k] / d x by central differences: numeric[k][j][i] for element j of x and i of the output, as lists.
local function numeric_columns(f, copies, x, j, eps)
  local flat = x:detach():view(-1) -- the same elements
  local here = flat[j]:item()
  local function at(value)
    flat[j] = value
    return tl.no_grad(function()
      local values = {}
      for k, y in ipairs(outputs_of(f, copies)) do values[k] = y:double():reshape(-1):tolist() end
      return values
    end)
  end
  local up, down = at(here + eps), at(here - eps)
  flat[j] = here
  for k = 1, #up do
    for i = 1, #up[k] do up[k][i] = (up[k][i] - down[k][i]) / (2 * eps) end
  end
  return up
end

-- d output / d every checked input, for element i of the output: lists of numbers, by backward.
local function analytic_rows(y, i, inputs)
  local seed = tl.zeros_like(y)
  seed:view(-1)[i] = 1
  local grads = tl.autograd.grad(y, inputs, { grad_outputs = seed, retain_graph = true, allow_unused = true })
  local rows = {}
  for k, x in ipairs(inputs) do rows[k] = (grads[k] or tl.zeros_like(x)):double():reshape(-1):tolist() end
  return rows
end

local function compare(numeric, analytic, o, k, which, i, j)
  if math.abs(numeric - analytic) <= o.atol + o.rtol * math.abs(numeric) then return nil end
  local message = "gradcheck: output %d, element %d, by input %d, element %d: backward says %.10g, "
    .. "finite differences %.10g"
  return message:format(k, i, which, j, analytic, numeric)
end

local function find_difference(f, copies, checked, o)
  local inputs = {}
  for n, i in ipairs(checked) do inputs[n] = copies[i] end
  local analytic = {} -- [output][element][input][element]
  for k, y in ipairs(outputs_of(f, copies)) do
    analytic[k] = {}
    if y.requires_grad then
      for i = 1, y:numel() do analytic[k][i] = analytic_rows(y, i, inputs) end
    end
  end
  for n, x in ipairs(inputs) do
    for j = 1, x:numel() do
      for k, column in ipairs(numeric_columns(f, copies, x, j, o.eps)) do
        for i, value in ipairs(column) do
          local row = analytic[k][i]
          local message = compare(value, row and row[n][j] or 0, o, k, checked[n], i, j)
          if message then return message end
        end
      end
    end
  end
  return nil
end

--- tl.autograd.gradcheck(f, inputs, {eps=1e-6, atol=1e-5, rtol=1e-3, raise_exception=true}): compares the derivatives
--- of f(inputs...) by backward with central differences, in float64. True, or an error (false and the message without
--- raise_exception). f must be deterministic.
return function(f, inputs, options)
  local o = base.options("gradcheck", options, { eps = 1e-6, atol = 1e-5, rtol = 1e-3, raise_exception = true })
  if is_tensor(inputs) then inputs = { inputs } end
  if type(inputs) ~= "table" then
    fail("gradcheck: argument 2 must be a tensor or a table of inputs, got " .. base.kind(inputs))
  end
  local copies, checked = prepare(inputs)
  if #checked == 0 then fail("gradcheck: no input is a floating tensor") end
  local message = find_difference(f, copies, checked, o)
  if not message then return true end
  if o.raise_exception then fail(message) end
  return false, message
end
