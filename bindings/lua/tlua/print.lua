-- print.lua: tensors as text, as PyTorch prints them: columns of one width, large tensors summarised, and a footer.
local base = require "tlua.base"

local ffi, C = base.ffi, base.C
local check, wrap, out = base.check, base.wrap, base.out
local native = ffi.C

local print = {
  precision = 4, -- digits after the point
  threshold = 1000, -- more elements than this are summarised
  edge = 3, -- elements shown at either end of a summarised dim
  width = 80, -- characters in a line
}

-- ---- reading: nested lists of numbers, with print.gap where elements are left out ----

local gap = {}

local function part(x, d, first, length)
  check(C.tl_narrow(x, d, first, length, out))
  return wrap(out[0])
end

local function row(x, into)
  local n = native.tl_numel(x)
  local values = ffi.new("double[?]", math.max(n, 1))
  check(C.tl_to_doubles(x, n, values))
  for i = 0, n - 1 do into[#into + 1] = values[i] end
end

local function read(x, summarise)
  local list = {}
  local n = native.tl_size(x, 0)
  local cut = summarise and n > 2 * print.edge
  if native.tl_ndim(x) == 1 then
    if cut then
      row(part(x, 0, 0, print.edge), list)
      list[#list + 1] = gap
      row(part(x, 0, n - print.edge, print.edge), list)
    else
      row(x, list)
    end
    return list
  end
  for i = 0, n - 1 do
    if cut and i == print.edge then list[#list + 1] = gap end
    if not cut or i < print.edge or i >= n - print.edge then
      check(C.tl_select(x, 0, i, out))
      list[#list + 1] = read(wrap(out[0]), summarise)
    end
  end
  return list
end

-- ---- one format for all numbers ----

local function each(list, f)
  for _, v in ipairs(list) do
    if type(v) == "number" then f(v) elseif v ~= gap then each(v, f) end
  end
end

-- Fixed or scientific, whole or with decimals: PyTorch's rules (torch/_tensor_str.py).
local function float_style(list)
  local low, high, whole = math.huge, 0, true
  each(list, function(v)
    if v - v ~= 0 or v == 0 then return end
    local a = math.abs(v)
    low, high = math.min(low, a), math.max(high, a)
    if v ~= math.floor(v) then whole = false end
  end)
  if high == 0 then return "%.0f", "." end
  if whole and high / low <= 1000 and high <= 1e8 then return "%.0f", "." end
  if high / low > 1000 or high > 1e8 or (not whole and low < 1e-4) then return "%." .. print.precision .. "e", "" end
  return "%." .. print.precision .. "f", ""
end

local function formatter(list, dtype)
  local write
  if dtype == "bool" then
    write = function(v) return v ~= 0 and "true" or "false" end
  elseif dtype == "float32" or dtype == "float64" or dtype == "float16" or dtype == "bfloat16" then
    local style, tail = float_style(list)
    write = function(v)
      if v ~= v then return "nan" end
      if v - v ~= 0 then return v > 0 and "inf" or "-inf" end
      return style:format(v) .. tail
    end
  else
    write = function(v) return ("%.0f"):format(v) end
  end
  local width = 1
  each(list, function(v) width = math.max(width, #write(v)) end)
  return function(v) return ("%" .. width .. "s"):format(write(v)) end, width
end

-- ---- layout ----

local function line(list, write, width, indent)
  local per_line = math.max(1, math.floor((print.width - indent) / (width + 2)))
  local lines, current = {}, {}
  for _, v in ipairs(list) do
    if #current == per_line then
      lines[#lines + 1] = table.concat(current, ", ")
      current = {}
    end
    current[#current + 1] = v == gap and "..." or write(v)
  end
  lines[#lines + 1] = table.concat(current, ", ")
  return "[" .. table.concat(lines, ",\n" .. (" "):rep(indent + 1)) .. "]"
end

local function block(list, ndim, write, width, indent)
  if ndim == 1 then return line(list, write, width, indent) end
  local parts = {}
  for i, v in ipairs(list) do parts[i] = v == gap and "..." or block(v, ndim - 1, write, width, indent + 1) end
  return "[" .. table.concat(parts, "," .. ("\n"):rep(ndim - 1) .. (" "):rep(indent + 1)) .. "]"
end

local function footer(x)
  local shape = x.shape
  local words = { x.dtype, #shape == 0 and "scalar" or table.concat(shape, "x"), x.device }
  local name = x.grad_fn
  if name then words[#words + 1] = "grad_fn=" .. name
  elseif x.requires_grad then words[#words + 1] = "requires_grad" end
  return "[" .. table.concat(words, " ") .. "]"
end

--- What tostring(x) gives.
function print.text(x)
  local n = native.tl_ndim(x)
  if native.tl_device_of(x) == native.TL_META then return footer(x) end
  if n == 0 then
    if native.tl_numel(x) == 0 then return footer(x) end
    check(C.tl_item(x, base.number))
    local value = base.number[0]
    return (formatter({ value }, x.dtype))(value) .. "\n" .. footer(x)
  end
  if native.tl_numel(x) == 0 then return "[]\n" .. footer(x) end
  local list = read(x:detach(), native.tl_numel(x) > print.threshold)
  local write, width = formatter(list, x.dtype)
  return block(list, n, write, width, 0) .. "\n" .. footer(x)
end

return print
