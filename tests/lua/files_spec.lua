-- tl.save and tl.load: what survives, what the file looks like, what is refused.
local tl = require "tlua"

local path = os.tmpname()

local function raises(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

local function round_trip(value)
  tl.save(path, value)
  return (tl.load(path))
end

local function read()
  local file = assert(io.open(path, "rb"))
  local bytes = file:read("*a")
  file:close()
  return bytes
end

local function write(bytes)
  local file = assert(io.open(path, "wb"))
  file:write(bytes)
  file:close()
end

local function raw(header, data)
  local n = #header
  write(string.char(n % 256, math.floor(n / 256), 0, 0, 0, 0, 0, 0) .. header .. (data or ""))
end

describe("tl.save and tl.load", function()
  after_each(function() os.remove(path) end)

  it("write a flat table of tensors as a plain file", function()
    tl.save(path, { ["fc1.weight"] = tl.ones(2, 3), bias = tl.zeros({ 2 }, { dtype = "int64" }) })
    local bytes = read()
    assert.is_nil(bytes:find("__metadata__", 1, true))
    assert.truthy(bytes:find('"fc1.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[16,40]}', 1, true))
    local t, notes = tl.load(path)
    assert.same({ 2, 3 }, t["fc1.weight"].shape)
    assert.same("int64", t.bias.dtype)
    assert.same({}, notes)
  end)

  it("keep nested tables of everything", function()
    local v = round_trip {
      model = { ["fc.weight"] = tl.full({ 2 }, 3), ["fc.bias"] = tl.full({ 1 }, 4) },
      epoch = 3, lr = 1 / 3, big = 1e300, huge = math.huge, low = -math.huge, nan = 0 / 0,
      name = "caf\195\169 \0\1 %41 [x].y", yes = true, no = false, empty = {}, [""] = "nothing",
      list = { 1, { 2, tl.full({ 1 }, 5) }, "three" }, [7] = "seven", [-2] = "minus",
      ["a.b"] = { ["[1]"] = 1, [1] = 2, ["%"] = 3 },
    }
    assert.same({ 3, 3 }, v.model["fc.weight"]:tolist())
    assert.same({ 4 }, v.model["fc.bias"]:tolist())
    assert.equal(3, v.epoch)
    assert.equal(1 / 3, v.lr)
    assert.equal(1e300, v.big)
    assert.equal(math.huge, v.huge)
    assert.equal(-math.huge, v.low)
    assert.is_true(v.nan ~= v.nan)
    assert.equal("caf\195\169 \0\1 %41 [x].y", v.name)
    assert.is_true(v.yes)
    assert.is_false(v.no)
    assert.same({}, v.empty)
    assert.equal("nothing", v[""])
    assert.equal(2, v.list[2][1])
    assert.same({ 5 }, v.list[2][2]:tolist())
    assert.equal("three", v.list[3])
    assert.equal("seven", v[7])
    assert.equal("minus", v[-2])
    assert.same({ ["[1]"] = 1, [1] = 2, ["%"] = 3 }, v["a.b"])
  end)

  it("give tensors of a nested table readable names", function()
    tl.save(path, { model = { ["fc.weight"] = tl.ones(1) }, n = 1 })
    assert.truthy(read():find('"model.fc.weight":', 1, true))
    -- two places that would be called the same
    local v = round_trip { a = { b = tl.full({ 1 }, 1) }, ["a.b"] = tl.full({ 1 }, 2), n = 1 }
    assert.equal(1, v.a.b:item())
    assert.equal(2, v["a.b"]:item())
  end)

  it("keep single values", function()
    assert.equal(5, round_trip(5))
    assert.equal("x", round_trip "x")
    assert.is_false(round_trip(false))
    assert.same({}, round_trip {})
    assert.same({ { 1, 2 } }, round_trip(tl.tensor { { 1, 2 } }):tolist())
  end)

  it("keep every dtype, scalars, empty tensors and views", function()
    for _, dtype in ipairs { "float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool" } do
      local t = round_trip { x = tl.ones({ 3 }, { dtype = dtype }) }.x
      assert.equal(dtype, t.dtype)
      assert.equal(3, t:double():sum():item())
    end
    local x = tl.arange(6):reshape(2, 3)
    local v = round_trip { scalar = tl.tensor(2.5), none = tl.zeros(0, 3), turned = x.T, part = x:narrow(2, 2, 2) }
    assert.equal(2.5, v.scalar:item())
    assert.same({ 0, 3 }, v.none.shape)
    assert.same({ { 0, 3 }, { 1, 4 }, { 2, 5 } }, v.turned:tolist())
    assert.same({ { 1, 2 }, { 4, 5 } }, v.part:tolist())
  end)

  it("save what requires gradients, and load leaves", function()
    local w = tl.ones({ 2 }, { requires_grad = true })
    local v = round_trip { w = w, y = w * 2 }
    assert.is_false(v.w.requires_grad)
    assert.same({ 2, 2 }, v.y:tolist())
  end)

  it("refuse what is no data, and name the place", function()
    raises("save: the value%.a%[2%] is a function", tl.save, path, { a = { 1, print } })
    raises("save: argument 2 is nil", tl.save, path)
    raises("save: a key of the value is boolean true", tl.save, path, { [true] = 1 })
    raises("save: a key of the value is number 1.5", tl.save, path, { [1.5] = 1 })
    local loop = {}
    loop.x = { loop }
    raises("save: the value%.x%[1%] holds itself", tl.save, path, loop)
    raises("is an object; save its :state_dict%(%)", tl.save, path, { m = tl.nn.Linear(1, 1) })
    raises("argument 1 must be a path", tl.save, {}, 1)
    raises("No such file", tl.save, "/no/such/folder/x", 1)
    raises("No such file", tl.load, "/no/such/file")
    raises("there is no option 'devise', did you mean 'device'%?", tl.load, path, { devise = "cpu" })
  end)

  it("allow one table at two places", function()
    local shared = { 1 }
    assert.same({ a = { 1 }, b = { 1 } }, round_trip { a = shared, b = shared })
  end)

  it("leave the old file when saving fails", function()
    tl.save(path, 1)
    assert.is_false(pcall(tl.save, path, { 1, print }))
    assert.equal(1, (tl.load(path)))
  end)

  it("load files from elsewhere with their metadata", function()
    raw('{"__metadata__":{"format":"pt"},"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', "\1\2")
    local t, notes = tl.load(path)
    assert.same({ 1, 2 }, t.w:tolist())
    assert.same({ format = "pt" }, notes)
  end)

  it("refuse damaged and contradictory files", function()
    raw('{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', "\1")
    raises("tensor 'w' ends at 2, the file holds 1 bytes", tl.load, path)
    raw('{"__metadata__":{"tlua":"2"}}')
    raises("written by a newer tlua %(format 2%)", tl.load, path)
    raw('{"__metadata__":{"tlua":"1","value:a":"n:1","value:a.b":"n:1"}}')
    raises("contradicts", tl.load, path)
    raw('{"__metadata__":{"tlua":"1","value:a":"code"}}')
    raises("contradicts", tl.load, path)
  end)
end)
