-- tostring(x): what PyTorch prints, with a footer.
local tl = require "tlua"

local here = tl.get_default_device()

local function shows(expected, x) assert.are.equal((expected:gsub("cpu", here)), tostring(x)) end

describe("tostring", function()
  it("prints whole numbers with a point, integers without", function()
    shows("[[1., 2.],\n [3., 4.]]\n[float32 2x2 cpu]", tl.tensor({ { 1, 2 }, { 3, 4 } }))
    shows("[-1, 10]\n[int64 2 cpu]", tl.tensor({ -1, 10 }, { dtype = "int64" }))
    shows("[ true, false]\n[bool 2 cpu]", tl.tensor({ true, false }))
    shows("3.\n[float32 scalar cpu]", tl.tensor(3))
  end)

  it("prints four decimals, or exponents for a wide range", function()
    shows("[0.5000, 1.0000]\n[float32 2 cpu]", tl.tensor({ 0.5, 1 }))
    shows("[1.0000e-06, 1.0000e+00]\n[float64 2 cpu]", tl.tensor({ 1e-6, 1 }, { dtype = "float64" }))
    shows("[1.0000e+09]\n[float32 1 cpu]", tl.tensor({ 1e9 }))
    shows("[    nan,     inf, -1.5000]\n[float32 3 cpu]", tl.tensor({ 0 / 0, math.huge, -1.5 }))
  end)

  it("summarises what is large", function()
    shows("[   0,    1,    2, ..., 1098, 1099, 1100]\n[int64 1101 cpu]", tl.arange(1101, { dtype = "int64" }))
    local text = tostring(tl.zeros(100, 100))
    assert.are.equal("[[0., 0., 0., ..., 0., 0., 0.],", text:match("^[^\n]*"))
    assert.matches("\n %.%.%.,\n", text)
    assert.matches("%[float32 100x100 " .. here .. "%]$", text)
  end)

  it("breaks long lines", function()
    local lines = 0
    for line in tostring(tl.zeros(100)):gmatch("[^\n]+") do
      lines = lines + 1
      assert.is_true(#line <= 80)
    end
    assert.is_true(lines > 4)
  end)

  it("shows the history and empty tensors", function()
    local x = tl.ones(1, { requires_grad = true })
    shows("[1.]\n[float32 1 cpu requires_grad]", x)
    shows("[2.]\n[float32 1 cpu grad_fn=mul]", x * 2)
    shows("[]\n[float32 0x3 cpu]", tl.empty(0, 3))
  end)

  it("separates blocks of higher dims", function()
    shows("[[[0.],\n  [0.]],\n\n [[0.],\n  [0.]]]\n[float32 2x2x1 cpu]", tl.zeros(2, 2, 1))
  end)
end)
