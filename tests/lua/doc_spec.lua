-- every method and function has a doc string.
local tl = require "tlua"
local base = require "tlua.base"
local doc = require "tlua.doc"

describe("doc strings", function()
  it("exist for every method of tensors", function()
    local aliases = {
      multiply = true, divide = true, true_divide = true, subtract = true, negative = true, absolute = true,
      clip = true,
      greater = true, greater_equal = true, less = true, less_equal = true, not_equal = true, arctan2 = true,
    }
    for name in pairs(base.methods) do
      assert.is_truthy(aliases[name:gsub("_$", "")] or doc.find("x:" .. name), name)
    end
  end)

  it("exist for every function of tl", function()
    for name, value in pairs(tl) do
      if type(value) == "function" and not base.methods[name] then assert.is_truthy(doc.find("tl." .. name), name) end
    end
  end)

  it("name nothing that does not exist", function()
    local x = tl.ones(1, 1)
    for _, name in ipairs(doc.names("^tl%.[%w_]+$")) do
      assert.is_true(pcall(function() return tl[name:sub(4)] end), name)
    end
    for _, name in ipairs(doc.names("^x:")) do assert.is_true(pcall(function() return x[name:sub(3)] end), name) end
  end)

  it("are found under any spelling", function()
    for _, name in ipairs { "matmul", "tl.matmul", "x:matmul", "Tensor.matmul" } do
      assert.are.equal("tl.matmul", select(2, doc.find(name)))
    end
    assert.matches("^In place .*a %+ alpha", doc.find("add_"))
    assert.is_nil(doc.find("nothing"))
    doc.add { ["tl.mine"] = "text" }
    assert.are.equal("text", doc.find("mine"))
  end)
end)
