-- The device that the suite runs on against the CPU, on shapes large and odd enough to take every path of its kernels
-- for normalisation, pooling, sorting, indexing and embedding. Elements that are only moved, and integers, are equal.
local tl = require "tlua"
local F = tl.F

local device = tl.get_default_device()
if device == "cpu" then return end -- nothing to compare

local against = require "against_cpu"
local ALL, FLOATING, TOLERANCE = against.ALL, against.FLOATING, against.TOLERANCE
local signed, ids, same, agree, differentiated, text =
  against.signed, against.ids, against.same, against.agree, against.differentiated, against.text

describe(device .. " sorts as the CPU does", function()
  for _, dtype in ipairs(ALL) do
    it(dtype, function()
      for _, shape in ipairs { { 1 }, { 0, 3 }, { 70, 10 }, { 4, 33, 3 }, { 2, 1030 }, { 3000 }, { 2, 1500, 2 } } do
        local x = signed(shape, dtype)
        if dtype:find("float") and x:numel() > 6 then
          local flat = x:view(-1)
          flat[3], flat[5], flat[2], flat[6] = 0 / 0, 1 / 0, -1 / 0, 0 / 0
        end
        for d = 1, #shape do
          for _, descending in ipairs { false, true } do
            agree(text(shape), 0, function(t) return t:sort(d, { descending = descending }) end, x)
            for _, k in ipairs { 1, 40, 1100 } do
              if k <= shape[d] then
                agree(text(shape) .. " top", 0, function(t) return t:topk(k, d, { largest = descending }) end, x)
              end
            end
          end
        end
      end
      agree("transposed", 0, function(t) return t:t():sort(1) end, signed({ 6, 7 }, dtype))
    end)
  end
end)

describe(device .. " picks and adds by ids as the CPU does", function()
  for _, dtype in ipairs(ALL) do
    local tolerance = TOLERANCE[dtype] or 0

    it("(moves) " .. dtype, function()
      local x = signed({ 6, 7, 5 }, dtype)
      for d = 1, 3 do
        agree("index_select", 0, function(t, i) return t:index_select(d, i) end, x, ids(x:size(d), { 9 }))
        agree("gather", 0, function(t, i) return t:gather(d, i) end, x, ids(x:size(d), { 3, 4, 5 }))
        agree("gather, permuted", 0, function(t, i) return t:permute(2, 3, 1):gather(d, i) end, x, ids(5, { 2, 3, 4 }))
      end
      for _, width in ipairs { 1, 3, 3001, 9600 } do
        agree("rows", 0, function(t, i) return t:index_select(1, i) end, signed({ 3, width }, dtype), ids(3, { 4 }))
      end
      for _, shape in ipairs { { 0 }, { 3, 4, 5 }, { 50, 101 } } do
        agree("nonzero", 0, function(t) return t:nonzero() end, signed(shape, dtype))
      end
      for _, k in ipairs { -3, -1, 0, 2, 9 } do
        agree("triangles", 0, function(t) return t:triu(k), t:tril(k), t:transpose(2, 3):triu(k) end,
          signed({ 2, 4, 6 }, dtype))
      end
    end)

    if dtype ~= "bool" then
      it("(sums) " .. dtype, function()
        for d = 1, 3 do
          local shape, rows = { 6, 7, 5 }, { 6, 7, 5 }
          rows[d] = 9
          agree("scatter_add", tolerance, function(t, i, s) return t:scatter_add(d, i, s) end, signed(shape, dtype),
            ids(shape[d], { 3, 4, 5 }), signed({ 3, 4, 5 }, dtype))
          agree("index_add", tolerance, function(t, i, s) return t:clone():index_add_(d, i, s, { alpha = 2 }) end,
            signed(shape, dtype), ids(shape[d], { 9 }), signed(rows, dtype))
        end
        -- many ids for few targets: sorted
        agree("long index_add", tolerance * 20, function(t, i, s) return t:clone():index_add_(1, i, s) end,
          signed({ 50, 3 }, dtype), ids(50, { 3000 }), signed({ 3000, 3 }, dtype))
        for _, shape in ipairs { { 3000 }, { 1500, 2 } } do
          local target = { 50, shape[2] }
          agree("long scatter_add", tolerance * 20, function(t, i, s) return t:scatter_add(1, i, s) end,
            signed(target, dtype), ids(50, shape), signed(shape, dtype))
        end
      end)
    end
  end

  it("for tables of embeddings", function()
    for _, dtype in ipairs(FLOATING) do
      local cases = {
        { 10, 8, { 4, 5 } }, { 7, 3, { 0 } }, { 300, 5, { 2500 } }, { 20, 300, { 30 } }, { 5, 1, { 3000 } },
      }
      for _, c in ipairs(cases) do
        for _, padding in ipairs { false, 2 } do
          local places = ids(c[1], c[3]):to(device)
          agree(text(c[3]) .. " of " .. c[1], 0, differentiated(function(w)
            return F.embedding(places:to(w.device), w, { padding_idx = padding or nil })
          end), signed({ c[1], c[2] }, dtype))
        end
      end
    end
  end)
end)

describe(device .. " pools as the CPU does", function()
  for _, dtype in ipairs(FLOATING) do
    it(dtype, function()
      local windows = {
        { 3, {} }, { 2, { stride = 2 } }, { { 2, 3 }, { stride = { 1, 2 }, padding = { 1, 0 } } },
        { 3, { stride = 3, padding = 1, ceil_mode = true } }, { 2, { stride = 3, ceil_mode = true } },
        { 9, { stride = 2, padding = 4 } },
      }
      local x, gappy = signed({ 2, 3, 11, 13 }, dtype), signed({ 2, 3, 11, 13 }, dtype)
      gappy[{ 1, 1, 3, 3 }] = 0 / 0
      for _, w in ipairs(windows) do
        local o = w[2]
        for _, dilation in ipairs { 1, 2 } do
          local size = type(w[1]) == "table" and w[1][1] or w[1]
          if size < 9 or dilation == 1 then
            agree("max", 0, differentiated(function(t)
              return F.max_pool2d(t, w[1], {
                stride = o.stride, padding = o.padding, ceil_mode = o.ceil_mode, dilation = dilation,
              })
            end), gappy)
          end
        end
        for _, counted in ipairs { true, false } do
          agree("average", TOLERANCE[dtype], differentiated(function(t)
            return F.avg_pool2d(t, w[1], {
              stride = o.stride, padding = o.padding, ceil_mode = o.ceil_mode, count_include_pad = counted,
            })
          end), x)
        end
      end
      agree("max of 17 x 17: places in 32 bits", 0, differentiated(function(t)
        return F.max_pool2d(t, 17, { stride = 1, padding = 8 })
      end), signed({ 1, 2, 21, 23 }, dtype))
      for _, shape in ipairs { { 1, 1 }, { 3, 4 }, { 11, 13 }, { 20, 5 } } do
        agree("adaptive", TOLERANCE[dtype], differentiated(function(t) return F.adaptive_avg_pool2d(t, shape) end), x)
      end
    end)
  end
end)

describe(device .. " normalises as the CPU does", function()
  for _, dtype in ipairs(FLOATING) do
    local tolerance = TOLERANCE[dtype] * 4

    it("rows of " .. dtype, function()
      for _, shape in ipairs { { 3, 1 }, { 4, 7 }, { 300, 12 }, { 9, 300 }, { 2, 3000 }, { 2, 13000 }, { 0, 5 } } do
        local x, w, b = signed(shape, dtype) * 2 + 3, signed({ shape[2] }, dtype), signed({ shape[2] }, dtype)
        agree("layer_norm " .. text(shape), tolerance, differentiated(function(t, u, v)
          return F.layer_norm(t, { shape[2] }, { weight = u, bias = v })
        end), x, w, b)
        agree("layer_norm " .. text(shape), tolerance, differentiated(function(t)
          return F.layer_norm(t, { shape[2] })
        end), x)
        agree("rms_norm " .. text(shape), tolerance, differentiated(function(t, u)
          return F.rms_norm(t, { shape[2] }, { weight = u })
        end), x, w)
      end
      local grouped = {
        { { 2, 6, 5, 3 }, 3 }, { { 4, 8 }, 2 }, { { 3, 4, 40 }, 1 }, { { 2, 8, 1000 }, 2 }, { { 40, 4, 9 }, 2 },
      }
      for _, c in ipairs(grouped) do
        local channels = { c[1][2] }
        agree("group_norm " .. text(c[1]), tolerance, differentiated(function(t, u, v)
          return F.group_norm(t, c[2], { weight = u, bias = v })
        end), signed(c[1], dtype) - 3, signed(channels, dtype), signed(channels, dtype))
      end
    end)

    it("channels of " .. dtype, function()
      local low = dtype == "float16" or dtype == "bfloat16"
      local shapes = {
        { 2, 3 }, { 700, 40 }, { 2100, 3 }, { 2, 3, 4, 5 }, { 4, 3, 300 }, { 8, 2, 31, 33 }, { 3, 70, 11 },
      }
      for _, shape in ipairs(shapes) do
        local channels = { shape[2] }
        for _, away in ipairs(low and { 0 } or { 0, 1000 }) do
          for _, training in ipairs { true, false } do
            local mean, var = signed(channels, "float32") + away, signed(channels, "float32"):abs() + 1
            local moved = {}
            agree("batch_norm " .. text(shape), tolerance * (away > 0 and 20 or 1), differentiated(function(t, u, v)
              local m, s = mean:to(t.device):clone(), var:to(t.device):clone()
              moved[#moved + 1] = { m, s }
              return F.batch_norm(t, { running_mean = m, running_var = s, weight = u, bias = v, training = training })
            end), signed(shape, dtype) * 2 + away, signed(channels, dtype), signed(channels, dtype))
            agree("without weights", tolerance * (away > 0 and 20 or 1), differentiated(function(t)
              local m, s = mean:to(t.device):clone(), var:to(t.device):clone()
              return F.batch_norm(t, { running_mean = m, running_var = s, training = training })
            end), signed(shape, dtype) * 2 + away)
            for i = 1, 2 do same(moved[1][i], moved[2][i], 1e-5, "running statistics") end
          end
        end
      end
    end)
  end
end)
