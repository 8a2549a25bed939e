-- tl.lora against PEFT (tests/golden/lora.py): its adapters, their logits; training, merging, saving.
local tl = require "tlua"
local models, lora, nn = tl.models, tl.lora, tl.nn
local golden = debug.getinfo(1, "S").source:match("^@(.*)lua/[^/]*$") .. "golden/"

local function close(a, b, tolerance)
  local difference = (a:cpu() - b:cpu()):abs():max():item()
  assert.is_true(difference <= (tolerance or 1e-4), difference)
end

local function load(name)
  local ids = tl.load(golden .. "models/" .. name .. "/answers.safetensors").ids
  return models.load(golden .. "models/" .. name), ids:to(tl.zeros(1).device)
end

local function with_folder(f)
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir -m 700 " .. folder) == 0)
  local ok, message = pcall(f, folder)
  os.execute("rm -r " .. folder)
  if not ok then error(message, 0) end
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

-- A model with adapters that do something.
local function adapted(options)
  tl.manual_seed(2)
  local model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
  lora.apply(model, options or { r = 2, alpha = 4, target_modules = { "0", "2" } })
  for _, p in ipairs(lora.parameters(model)) do nn.init.normal_(p) end
  return model
end

describe("adapters that PEFT made", function()
  for _, name in ipairs { "gpt2", "llama" } do
    it("give its logits, before and after merging: " .. name, function()
      local model, ids = load(name)
      local before = tl.no_grad(model, ids)
      local want = tl.load(golden .. "lora/" .. name .. "/logits.safetensors").logits
      assert.equal(model, lora.load(model, golden .. "lora/" .. name))
      assert.is_true((before:cpu() - want):abs():max():item() > 0.1)
      close(tl.no_grad(model, ids), want)
      lora.merge(model)
      close(tl.no_grad(model, ids), want)
      assert.is_nil(model:state_dict()["transformer.h.0.attn.c_attn.lora_A.weight"])
    end)

    it("are written as they were read: " .. name, function()
      with_folder(function(folder)
        local model = load(name)
        lora.save(lora.load(model, golden .. "lora/" .. name), folder)
        local want = tl.load(golden .. "lora/" .. name .. "/adapter_model.safetensors")
        local got = tl.load(folder .. "/adapter_model.safetensors")
        for key, t in pairs(want) do close(got[key], t, 0) end
        for key in pairs(got) do assert.is_truthy(want[key], key) end
        assert.is_truthy(read(folder .. "/adapter_config.json"):find(
          '"fan_in_fan_out": ' .. tostring(name == "gpt2"), 1, true))
      end)
    end)
  end
end)

describe("PEFT #once", function()
  it("loads what lora.save wrote, and computes the same", function()
    with_folder(function(folder)
      local folders = {}
      for name, targets in pairs { gpt2 = { "c_attn", "c_proj", "c_fc" }, llama = "model%.layers%.1%..*_proj" } do
        local model, ids = load(name)
        lora.apply(model, { r = 2, alpha = 3, target_modules = targets })
        for _, p in ipairs(lora.parameters(model)) do nn.init.normal_(p, { std = 0.3 }) end
        folders[#folders + 1] = folder .. "/" .. name
        lora.save(model, folders[#folders], { base_model = golden .. "models/" .. name })
        tl.no_grad(function()
          local greedy = model:generate(ids, { max_new_tokens = 6, temperature = 0 })
          tl.save(folders[#folders] .. "/answers.safetensors", { ids = ids, logits = model(ids), greedy = greedy })
        end)
      end
      local log = folder .. "/log"
      local status = os.execute(("%s %s %s > %s 2>&1"):format(os.getenv "TLUA_PYTHON" or "python3",
        golden .. "models_read.py", table.concat(folders, " "), log)) / 256
      if status == 77 or status == 127 then return pending "needs peft (TLUA_PYTHON names a Python)" end
      assert.equal(0, status, read(log))
    end)
  end)
end)

describe("lora", function()
  it("changes nothing at first, and trains the adapters alone", function()
    tl.manual_seed(1)
    local model = models.gpt2 { vocab_size = 9, n_positions = 8, n_embd = 8, n_layer = 1, n_head = 2, resid_pdrop = 0,
      embd_pdrop = 0, attn_pdrop = 0, initializer_range = 0.3 }
    local ids = tl.randint(0, 9, { 2, 6 })
    local before, weights = model(ids):detach(), model:clone():state_dict()
    lora.apply(model, { r = 2, alpha = 4, target_modules = { "c_attn", "c_fc" } })
    close(model(ids), before, 0)
    local list = lora.parameters(model)
    assert.equal(4, #list)
    local optimizer = tl.optim.AdamW(list, { lr = 0.05 })
    local first, last
    for _ = 1, 20 do
      optimizer:zero_grad()
      last = model:loss(ids, ids)
      first = first or last:item()
      last:backward()
      optimizer:step()
    end
    assert.is_true(last:item() < first - 0.05)
    for key, t in pairs(weights) do close(model:state_dict()[key], t, 0) end
    for name, p in model:named_parameters() do assert.equal(name:find "lora_" ~= nil, p.grad ~= nil, name) end
    lora.remove(model)
    close(model(ids), before, 0)
    for _, p in ipairs(model:parameters()) do assert.is_true(p.requires_grad) end
  end)

  it("adapts the output layer, too", function()
    tl.manual_seed(1)
    local model = models.llama { vocab_size = 9, max_position_embeddings = 8, hidden_size = 8, intermediate_size = 12,
      num_hidden_layers = 1, num_attention_heads = 2 }
    local ids = tl.randint(0, 9, { 2, 6 })
    local before = model(ids):detach()
    lora.apply(model, { r = 2, alpha = 4, target_modules = { "lm_head" } })
    for _, p in ipairs(lora.parameters(model)) do nn.init.normal_(p) end
    local logits, loss = model(ids), model:loss(ids, ids)
    assert.is_true((logits - before):abs():max():item() > 0.1)
    close(logits, model.lm_head(model.model(ids)), 1e-5)
    close(loss, tl.F.cross_entropy(logits:flatten(1, 2), ids:flatten()), 1e-5)
    loss:backward()
    for _, p in ipairs(lora.parameters(model)) do assert.is_true(p.grad:abs():sum():item() > 0) end
    local options = { max_new_tokens = 2, temperature = 0 }
    local written = model:generate(ids, options)
    lora.merge(model)
    close(model(ids), logits, 1e-5)
    assert.same(written:tolist(), model:generate(ids, options):tolist())
  end)

  it("is W + (alpha / r) B A", function()
    local model, x = adapted(), tl.randn(4, 5)
    local layer = model[1]
    local w = layer.weight + layer.lora_B.weight:matmul(layer.lora_A.weight) * 2
    close(layer(x), tl.F.linear(x, w, layer.bias), 1e-5)
    local y = model(x)
    close(lora.merge(model)(x), y, 1e-5)
    assert.equal("Linear(5, 6)", tostring(layer):match "^%S+ %d+%)")
  end)

  it("drops inputs of the adapter in training only", function()
    local model, x = adapted { dropout = 0.5, target_modules = { "0" } }, tl.ones(1, 5)
    close(model:eval()(x), model(x), 0)
    model:train()
    assert.is_true((model(x) - model(x)):abs():max():item() > 0)
  end)

  it("adapts weights of low precision in float32", function()
    local model, ids = load "llama"
    model:to "bfloat16"
    lora.apply(model, { target_modules = { "q_proj" } })
    assert.equal("float32", lora.parameters(model)[1].dtype)
    assert.equal("bfloat16", model(ids).dtype)
    lora.merge(model)
    assert.equal("bfloat16", model.model.layers[1].self_attn.q_proj.weight.dtype)
  end)

  it("takes lists of names and patterns", function()
    local model = load "llama"
    lora.apply(model, { target_modules = { "layers.1.mlp.up_proj", "v_proj" } })
    assert.equal(2 * 3, #lora.parameters(model))
    lora.remove(model)
    lora.apply(model, { target_modules = ".*self_attn%.[qk]_proj" })
    assert.equal(2 * 4, #lora.parameters(model))
  end)

  it("comes along in copies and state dicts", function()
    local model, x = adapted(), tl.randn(2, 5)
    local copy = model:clone()
    close(copy(x), model(x), 0)
    copy:load_state_dict(model:state_dict())
    lora.merge(copy)
    assert.is_truthy(model[1].lora_A)
  end)

  it("refuses what it cannot do", function()
    local model = nn.Sequential(nn.Linear(5, 6), nn.Tanh())
    local function says(message, f, ...)
      local ok, said = pcall(f, ...)
      assert.is_false(ok)
      assert.matches(message, said, 1, true)
    end
    says("lora.apply: no layer is called 'c_attn'; the linear ones are: 0", lora.apply, model,
      { target_modules = { "c_attn" } })
    says("'1' is a Tanh; adapters go with nn.Linear", lora.apply, model, { target_modules = { "1" } })
    says("option 'target_modules' must be a list of names or a pattern, got nil", lora.apply, model, {})
    says("element 2 of option 'target_modules' must be a name, got a number", lora.apply, model,
      { target_modules = { "0", 1 } })
    says("option 'target_modules': unfinished capture", lora.apply, model, { target_modules = "(" })
    says("option 'r' must be an integer of at least 1, got 0", lora.apply, model, { r = 0, target_modules = { "0" } })
    says("did you mean 'dropout'?", lora.apply, model, { lora_dropout = 0, target_modules = { "0" } })
    says("lora.merge: the model has no adapters", lora.merge, model)
    lora.apply(model, { target_modules = { "0" } })
    says("the model has adapters already", lora.apply, model, { target_modules = { "0" } })
    local gpt2 = load "gpt2"
    lora.apply(gpt2, { target_modules = { "c_attn" } })
    says("save_pretrained: the model has adapters", gpt2.save_pretrained, gpt2, "/nowhere")
  end)

  it("refuses files that ask for more, or lack something, and leaves the model as it was", function()
    local function refused(change)
      local message
      with_folder(function(folder)
        os.execute(("cp %slora/gpt2/* %s"):format(golden, folder))
        change(folder)
        local model = load "gpt2"
        local ok
        ok, message = pcall(lora.load, model, folder)
        assert.is_false(ok)
        assert.is_nil(rawget(model, "lora_adapters"))
      end)
      return message
    end
    local function config(from, to)
      return function(folder)
        local text, n = read(folder .. "/adapter_config.json"):gsub(from, to)
        assert.equal(1, n)
        local file = assert(io.open(folder .. "/adapter_config.json", "wb"))
        file:write(text)
        file:close()
      end
    end
    local message = refused(config('"use_dora": false', '"use_dora": true'))
    assert.matches("use_dora = true is not supported", message, 1, true)
    assert.matches('peft_type = "IA3" is not supported', refused(config('"LORA"', '"IA3"')), 1, true)
    assert.matches("missing 'base_model.model.transformer.h.0.attn.c_attn.lora_A.weight'", refused(function(folder)
      local t = tl.load(folder .. "/adapter_model.safetensors")
      t["base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"] = nil
      tl.save(folder .. "/adapter_model.safetensors", t)
    end), 1, true)
  end)
end)
