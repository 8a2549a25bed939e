-- The programs of examples/ run, and do what they say.
local tl = require "tlua"
local examples = debug.getinfo(1, "S").source:match("^@(.*)tests/lua/[^/]*$") .. "examples/"

-- Runs a program with these arguments; returns the lines that it printed. A line that matches `last` ends it.
local function run_until(last, name, ...)
  local lines = {}
  local function keep(...)
    local words = {}
    for i = 1, select("#", ...) do words[i] = tostring((select(i, ...))) end
    lines[#lines + 1] = table.concat(words, "\t")
    if last and lines[#lines]:find(last) then error("stopped", 0) end
  end
  local path = examples .. name
  local environment = setmetatable({ print = keep, arg = { [0] = path, ... } }, { __index = _G })
  local stderr = io.stderr
  rawset(io, "stderr", assert(io.open("/dev/null", "w"))) -- progress bars
  local ok, message = pcall(setfenv(assert(loadfile(path)), environment))
  io.stderr:close()
  rawset(io, "stderr", stderr)
  assert(ok or (last and message == "stopped"), message)
  return lines, table.concat(lines, "\n")
end
local function run(...) return run_until(nil, ...) end

-- The numbers behind `word` in the printed lines.
local function numbers_after(text, word)
  local list = {}
  for number in text:gmatch(word .. "%s+([%-%d%.]+)") do list[#list + 1] = tonumber(number) end
  return list
end

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

describe("examples/article #once", function()
  it("1-parallel.lua learns the weights", function()
    local _, text = run "article/1-parallel.lua"
    local losses = numbers_after(text, "mean loss")
    assert.equal(10, #losses)
    assert.is_true(losses[10] < 0.02 and losses[1] > 1)
    assert.is_true(numbers_after(text, "error of a weight")[1] < 0.05)
    assert.is_true(math.abs(numbers_after(text, "bias")[1] - 3) < 0.05)
  end)

  it("2-mixed-precision.lua learns the weights in float16", function()
    local _, text = run "article/2-mixed-precision.lua"
    local losses = numbers_after(text, "mean loss")
    assert.is_true(losses[10] < 0.02 and losses[1] > 1)
    assert.matches("products in float16, weights in float32, gradients in float32", text)
    assert.is_true(tonumber(text:match("(%d+) steps skipped")) > 0, text)
    assert.is_true(numbers_after(text, "error of a weight")[1] < 0.05)
  end)

  it("3-pruning.lua prunes, and removes for good", function()
    local _, text = run "article/3-pruning.lua"
    assert.matches("how much%?", text)
    assert.equal(3, numbers_after(text, "zeros in the weight")[1])
    assert.matches("hidden%s+64 %-> 32 channels", text)
  end)

  it("4-batch-norm.lua learns faster with the layer than without", function()
    local _, text = run "article/4-batch-norm.lua"
    local plain, normalised = numbers_after(text, "without batch norm")[1], numbers_after(text, "with it")[1]
    assert.is_true(normalised < 0.5 and plain > 3 * normalised, text)
    assert.equal("gathered means     1 2 3 4 5 6 7 8 9 10", text:match("gathered means[^\n]*"))
    assert.equal(30 * 16, numbers_after(text, "batches seen")[1])
  end)

  it("5-adaptive-lr.lua lowers the rate as lr / (1 + lr_decay * epoch)", function()
    local _, text = run "article/5-adaptive-lr.lua"
    local rates, losses = numbers_after(text, "lr"), numbers_after(text, "mean loss")
    for i = 1, 10 do assert.is_true(math.abs(rates[i] - 0.01 / (1 + 0.01 * (i - 1))) < 1e-8) end
    assert.is_true(losses[10] < losses[1] / 10)
  end)

  it("has its output in the README", function()
    local file = assert(io.open(examples .. "README.md"))
    local readme = file:read("*a")
    file:close()
    for _, name in ipairs { "1-parallel", "2-mixed-precision", "3-pruning", "4-batch-norm", "5-adaptive-lr" } do
      for _, line in ipairs((run("article/" .. name .. ".lua"))) do
        for part in line:gmatch("[^\n]+") do
          local words = part:gsub("%-?%d+%.%d+", "") -- rounding differs between kernel sets
          assert.is_truthy(readme:gsub("%-?%d+%.%d+", ""):find(words, 1, true), part)
        end
      end
    end
  end)
end)

describe("examples/amp.lua #once", function()
  it("compares the three types", function()
    if not exists "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz" then
      return pending "needs dataset-fashion-mnist"
    end
    local _, text = run("amp.lua", "--limit", "512", "--epochs", "1", "--device", "cpu")
    for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
      local accuracy, ms, peak = text:match("\n" .. dtype .. "%s+([%d.]+) %%%s+([%d.]+) ms%s+([%d.]+) MB")
      assert.is_truthy(accuracy, text)
      assert.is_true(tonumber(accuracy) > 25 and tonumber(ms) > 0 and tonumber(peak) > 1, text)
    end
  end)
end)

describe("examples/prune.lua #once", function()
  it("makes the network smaller", function()
    if not exists "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz" then
      return pending "needs dataset-fashion-mnist"
    end
    local _, text = run("prune.lua", "--limit", "640", "--epochs", "1", "--steps", "1")
    assert.matches("features.4%s+64 %-> 32 channels", text)
    local masked, compact = numbers_after(text, "pruned  test accuracy")[1], numbers_after(text, "\nafter")[1]
    assert.is_true(math.abs(masked - compact) < 0.05, text) -- 2 or 3 of 10,000 images may round to the other side
    assert.matches("3.98 x fewer parameters", text)
    local less = numbers_after(text, "smaller file")[1]
    assert.is_true(less > 1.5, text) -- memory
  end)
end)

describe("examples/fashion.lua #once", function()
  it("learns, saves its best model, and repeats itself exactly", function()
    if not exists "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz" then
      return pending "needs dataset-fashion-mnist"
    end
    local there = exists "fashion.safetensors"
    local _, first = run("fashion.lua", "--limit", "640", "--epochs", "1", "--seed", "3")
    local _, second = run("fashion.lua", "--limit", "640", "--epochs", "1", "--seed", "3")
    assert.equal(first, second)
    assert.matches("421,834 parameters", first)
    assert.is_true(numbers_after(first, "test accuracy")[1] > 40, first)
    local state = tl.load "fashion.safetensors"
    if not there then os.remove "fashion.safetensors" end
    assert.are.same({ 32, 1, 3, 3 }, state["features.0.weight"].shape)
    assert.equal("int64", state["features.1.num_batches_tracked"].dtype)
    package.path = examples .. "?.lua;" .. package.path
    require "fashion_net"():load_state_dict(state)
  end)
end)

describe("examples/gpt.lua #once", function()
  local folder, text = os.tmpname(), nil
  local function train(last, ...)
    return run_until(last, "gpt.lua", "--data", text, "--layers", "1", "--heads", "2", "--width", "16", "--context",
      "8", "--batch", "4", "--steps", "20", "--eval", "10", "--dropout", "0.1", "--sample", "5", ...)
  end

  setup(function()
    text = folder .. ".txt"
    local file = assert(io.open(text, "w"))
    file:write(("The quick brown fox jumps over the lazy dog.\n"):rep(20))
    file:close()
  end)
  teardown(function()
    for _, suffix in ipairs { "", ".txt", ".whole", ".part" } do os.remove(folder .. suffix) end
  end)

  it("learns, writes, and goes on from its checkpoint as if it had not stopped", function()
    local whole, output = train(nil, "--out", folder .. ".whole")
    local losses = numbers_after(output, "validation loss")
    assert.equal(2, #losses)
    assert.is_true(losses[2] < losses[1] and losses[1] < 3.5, output)
    train("^step 20", "--out", folder .. ".part") -- before the checkpoint of step 20 is written
    tl.dist.destroy()
    local part = train(nil, "--out", folder .. ".part", "--resume")
    assert.equal("going on with step 11", part[1])
    assert.are.same({ unpack(whole, 3) }, { unpack(part, 3) }) -- the losses of step 20, the text
    local a, b = tl.load(folder .. ".whole"), tl.load(folder .. ".part")
    for name, value in pairs(a.model) do assert.is_true(value:eq(b.model[name]):all():item(), name) end
  end)
end)

describe("examples/finetune.lua #once", function()
  it("teaches a small model capitals by adapters, and saves both ways", function()
    local folder = os.tmpname()
    os.remove(folder)
    local _, output = run("finetune.lua", "--base", "30", "--steps", "30", "--context", "16", "--batch", "8", "--out",
      folder)
    local before, after = numbers_after(output, "before  loss")[1], numbers_after(output, "after   loss")[1]
    local merged = numbers_after(output, "merged  loss")[1]
    assert.is_true(after < before - 0.3, output)
    assert.is_true(math.abs(merged - after) < 1e-3, output)
    assert.matches("training 16384 of %d+ parameters", output)
    local model = tl.models.load(folder .. "/base")
    tl.lora.load(model, folder .. "/adapter")
    local ids = tl.tensor({ { 1, 5, 7 } }, { dtype = "int64" })
    local difference = (model(ids) - tl.models.load(folder .. "/merged")(ids)):abs():max():item()
    os.execute("rm -r " .. folder)
    assert.is_true(difference < 1e-4, difference)
  end)

  it("takes a model with its tokenizer from a folder", function()
    local folder = os.tmpname()
    os.remove(folder)
    local tokenizer = tl.text.BPE.train { files = { examples .. "README.md" }, vocab_size = 300 }
    tl.models.llama {
      vocab_size = tokenizer:size(), hidden_size = 16, intermediate_size = 24, num_hidden_layers = 1,
      num_attention_heads = 2, max_position_embeddings = 32,
    }:save_pretrained(folder)
    tokenizer:save(folder .. "/tokenizer.json")
    local _, output = run("finetune.lua", "--model", folder, "--steps", "10", "--context", "16", "--rank", "2", "--out",
      folder .. "/out")
    os.execute("rm -r " .. folder)
    local before, after = numbers_after(output, "before  loss")[1], numbers_after(output, "after   loss")[1]
    assert.is_true(after < before, output)
    assert.matches("training 128 of", output)
  end)
end)

describe("examples/trainer.lua #once", function()
  it("learns, and goes on where it was", function()
    if not exists "/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz" then
      return pending "needs dataset-fashion-mnist"
    end
    local directory = os.tmpname()
    os.remove(directory)
    local _, first = run("trainer.lua", directory, "cpu", "256")
    local _, second = run("trainer.lua", directory, "cpu", "256")
    assert.equal(first, second)
    assert.is_true(numbers_after(first, "best test accuracy")[1] > 40, first)
    for name in pairs(require("tlua.system").entries(directory)) do os.remove(directory .. "/" .. name) end
    os.remove(directory)
  end)
end)
