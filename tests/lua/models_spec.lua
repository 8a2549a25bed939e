-- tl.models against transformers: files, logits, greedy continuations (tests/golden/models.py); caches, sampling, what
-- is refused.
local tl = require "tlua"
local models = tl.models
local golden = debug.getinfo(1, "S").source:match("^@(.*)lua/[^/]*$") .. "golden/models/"

local names = { "gpt2", "gpt2_untied", "llama", "llama_untied" }

local function answers(name) return (tl.load(golden .. name .. "/answers.safetensors")) end

local function close(a, b, tolerance)
  local difference = (a:cpu():float() - b:cpu():float()):abs():max():item()
  assert.is_true(difference <= (tolerance or 1e-4), difference)
end

local function here(t) return t:to(tl.zeros(1).device) end -- on the device that is tested

local function same(a, b) assert.are.same(a:tolist(), b:tolist()) end

-- A folder of its own for f(folder), gone afterwards.
local function with_folder(f)
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir -m 700 " .. folder) == 0)
  local ok, message = pcall(f, folder)
  os.execute("rm -r " .. folder)
  if not ok then error(message, 0) end
end

local function write(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

describe("models that transformers made", function()
  for _, name in ipairs(names) do
    it("give its logits: " .. name, function()
      local model, want = models.load(golden .. name), answers(name)
      assert.is_false(model.training)
      tl.no_grad(function() close(model(here(want.ids)), want.logits) end)
    end)

    it("continue as there, with and without a cache: " .. name, function()
      local model, want = models.load(golden .. name), answers(name)
      local ids = here(want.ids)
      local n = ids.device == "cpu" and 16 or 5 -- a simulated device is slow
      for _, use_cache in ipairs { true, false } do
        same(model:generate(ids, { max_new_tokens = n, temperature = 0, use_cache = use_cache }),
          want.greedy:narrow(2, 1, ids:size(2) + n))
      end
    end)

    it("come back from save_pretrained: " .. name, function()
      with_folder(function(folder)
        models.load(golden .. name):save_pretrained(folder)
        local model, want = models.load(folder .. "/model.safetensors"), answers(name)
        tl.no_grad(function() close(model(here(want.ids)), want.logits) end)
        local _, notes = tl.load(folder .. "/model.safetensors")
        assert.equal("pt", notes.format)
      end)
    end)
  end

  it("load in other dtypes", function()
    local model, want = models.load(golden .. "llama", { dtype = "bfloat16" }), answers "llama"
    assert.equal("bfloat16", model.lm_head == nil and model.model.embed_tokens.weight.dtype)
    tl.no_grad(function() close(model(here(want.ids)), want.logits, 0.5) end)
  end)

  it("keep what config.json says beside the options", function()
    with_folder(function(folder)
      models.load(golden .. "gpt2"):save_pretrained(folder)
      local text = read(folder .. "/config.json")
      for _, part in ipairs { '"summary_type": "cls_index"', '"model_type": "gpt2"', '"n_layer": 2' } do
        assert.is_truthy(text:find(part, 1, true), part)
      end
    end)
  end)

  it("write the biases that transformers wants", function()
    with_folder(function(folder)
      local model = models.gpt2 { vocab_size = 9, n_positions = 8, n_embd = 4, n_layer = 1, n_head = 2, bias = false }
      local ids = tl.tensor({ { 1, 5, 3 } }, { dtype = "int64" })
      model:eval():save_pretrained(folder)
      local other = models.load(folder)
      assert.is_truthy(other.transformer.ln_f.bias)
      tl.no_grad(function() close(other(ids), model(ids), 1e-6) end)
    end)
  end)
end)

describe("transformers #once", function()
  it("loads what save_pretrained wrote, and computes the same", function()
    with_folder(function(folder)
      local folders = {}
      local function put(name, model, ids)
        folders[#folders + 1] = folder .. "/" .. name
        model:save_pretrained(folders[#folders])
        tl.no_grad(function()
          local greedy = model:generate(ids, { max_new_tokens = 6, temperature = 0 })
          tl.save(folders[#folders] .. "/answers.safetensors", { ids = ids, logits = model(ids), greedy = greedy })
        end)
      end
      for _, name in ipairs(names) do put(name, models.load(golden .. name), answers(name).ids) end
      local ids = tl.randint(0, 11, { 2, 5 })
      put("fresh_gpt2", models.gpt2 { vocab_size = 11, n_positions = 12, n_embd = 8, n_layer = 2, n_head = 2,
        bias = false, initializer_range = 0.3 }:eval(), ids)
      put("fresh_llama", models.llama { vocab_size = 11, hidden_size = 8, intermediate_size = 12, rope_theta = 700,
        num_hidden_layers = 1, num_attention_heads = 2, max_position_embeddings = 32, initializer_range = 0.3 }:eval(),
        ids)
      local script, log = golden:gsub("models/$", "models_read.py"), folder .. "/log"
      local status = os.execute(("%s %s %s > %s 2>&1"):format(os.getenv "TLUA_PYTHON" or "python3", script,
        table.concat(folders, " "), log)) / 256
      if status == 77 or status == 127 then return pending "needs transformers (TLUA_PYTHON names a Python)" end
      assert.equal(0, status, read(log))
    end)
  end)
end)

describe("files that are not right #cpu (no kernel is involved)", function()
  -- The error of loading a copy of a golden model, of which `change` has its way.
  local function refused(name, change)
    local message
    with_folder(function(folder)
      os.execute(("cp %s%s/* %s"):format(golden, name, folder))
      change(folder)
      local ok
      ok, message = pcall(models.load, folder)
      assert.is_false(ok)
    end)
    return message
  end

  local function with_tensors(change)
    return function(folder)
      local tensors = tl.load(folder .. "/model.safetensors")
      change(tensors)
      tl.save(folder .. "/model.safetensors", tensors)
    end
  end

  local function with_config(from, to)
    return function(folder)
      local text, n = read(folder .. "/config.json"):gsub(from, to)
      assert.equal(1, n)
      write(folder .. "/config.json", text)
    end
  end

  it("names tensors that are missing, unexpected or misshapen", function()
    local message = refused("gpt2", with_tensors(function(t)
      t["transformer.ln_f.weight"] = nil
      t["transformer.h.2.ln_1.weight"] = tl.ones(16)
      t["transformer.h.0.mlp.c_fc.weight"] = tl.ones(64, 16)
    end))
    assert.matches("missing 'transformer.ln_f.weight'", message, 1, true)
    assert.matches("unexpected 'transformer.h.2.ln_1.weight'", message, 1, true)
    assert.matches("'transformer.h.0.mlp.c_fc.weight' is (64x16) in the file, the model's is (16x64)", message, 1, true)
  end)

  it("takes a tied lm_head and an old mask for granted", function()
    with_folder(function(folder)
      os.execute(("cp %sgpt2/* %s"):format(golden, folder))
      with_tensors(function(t)
        t["lm_head.weight"] = t["transformer.wte.weight"]:clone()
        t["transformer.h.0.attn.bias"] = tl.ones(1, 1, 32, 32)
      end)(folder)
      models.load(folder)
    end)
  end)

  it("names values of config.json that it cannot do", function()
    assert.matches("scale_attn_weights = false is not supported",
      refused("gpt2", with_config('"scale_attn_weights": true', '"scale_attn_weights": false')), 1, true)
    assert.matches("activation_function 'gelu_fast' is not supported",
      refused("gpt2", with_config('"gelu_new"', '"gelu_fast"')), 1, true)
    assert.matches("model_type \"gpt3\" is not supported; these are: 'gpt2', 'llama'",
      refused("gpt2", with_config('"model_type": "gpt2"', '"model_type": "gpt3"')), 1, true)
    assert.matches("rope_scaling of type 'yarn' is not supported",
      refused("llama", with_config('"llama3"', '"yarn"')), 1, true)
    assert.matches("rope_scaling's high_freq_factor must be a number, got nil",
      refused("llama", with_config('"high_freq_factor": 4.0,', "")), 1, true)
    assert.matches("option 'n_layer' must be a number, got a string",
      refused("gpt2", with_config('"n_layer": 2', '"n_layer": "2"')), 1, true)
    assert.matches("n_embd 16 cannot be divided among 3 heads",
      refused("gpt2", with_config('"n_head": 2', '"n_head": 3')), 1, true)
    assert.matches("config.json: json: cannot read", refused("gpt2", with_config("^{", "[")), 1, true)
  end)

  it("says which file is absent, and leaves no folder by an index", function()
    assert.matches("there is neither model.safetensors nor model.safetensors.index.json",
      refused("gpt2", function(folder) os.remove(folder .. "/model.safetensors") end), 1, true)
    assert.matches("config.json: No such file", refused("gpt2", function(folder)
      os.remove(folder .. "/config.json")
    end), 1, true)
    assert.matches("lies in no file of this folder", refused("llama_untied", function(folder)
      write(folder .. "/model.safetensors.index.json", '{"weight_map": {"a": "../b.safetensors"}}')
    end), 1, true)
    assert.has_error(function() models.load(7) end, "models.load: argument 1 must be a path, got a number")
    assert.has_error(function() models.load(golden .. "gpt2", { dtype = "float31" }) end,
      "models.load: there is no dtype 'float31', did you mean 'float32'?")
  end)
end)

describe("fresh models", function()
  local small = { vocab_size = 11, n_positions = 12, n_embd = 8, n_layer = 2, n_head = 2 }

  it("begin as GPT-2 does", function()
    tl.manual_seed(1)
    local model = models.gpt2 { vocab_size = 500, n_positions = 64, n_embd = 64, n_layer = 8, n_head = 4 }
    local dict = model:state_dict()
    local function std(name) return dict[name]:std():item() end
    assert.is_true(math.abs(std "transformer.wte.weight" - 0.02) < 1e-3)
    assert.is_true(math.abs(std "transformer.h.0.attn.c_attn.weight" - 0.02) < 1e-3)
    assert.is_true(math.abs(std "transformer.h.7.mlp.c_proj.weight" - 0.02 / 4) < 3e-4)
    assert.equal(0, dict["transformer.h.0.mlp.c_fc.bias"]:abs():max():item())
  end)

  it("have the loss that their logits have", function()
    for _, make in ipairs {
      function() return models.gpt2(small) end,
      function()
        return models.llama { vocab_size = 11, hidden_size = 8, intermediate_size = 12, num_hidden_layers = 1,
          num_attention_heads = 2, max_position_embeddings = 12 }
      end,
    } do
      local model = make():eval()
      local ids, targets = tl.randint(0, 11, { 2, 5 }), tl.randint(0, 11, { 2, 5 })
      targets[1][2] = -100
      local logits = model(ids)
      close(model:loss(ids, targets), tl.F.cross_entropy(logits:reshape(10, 11), targets:reshape(10)), 1e-5)
      model:loss(ids, targets):backward()
      for name, p in model:named_parameters() do assert.is_truthy(p.grad, name) end
    end
  end)

  it("have the same gradients when layers are computed anew", function()
    for _, name in ipairs { "gpt2", "llama" } do
      local model = models.load(golden .. name):train()
      local ids = tl.randint(0, 40, { 2, 9 })
      local losses, grads = {}, {}
      for k = 1, 2 do
        tl.manual_seed(3) -- dropout
        model:gradient_checkpointing(k == 2):zero_grad()
        local loss = model:loss(ids, ids)
        loss:backward()
        losses[k], grads[k] = loss:item(), {}
        for i, p in ipairs(model:parameters()) do grads[k][i] = p.grad:clone() end
      end
      assert.equal(losses[1], losses[2])
      for i, g in ipairs(grads[1]) do close(g, grads[2][i], 1e-5) end
    end
  end)

  it("share the embedding with the output, or do not", function()
    assert.is_nil(models.gpt2(small):state_dict()["lm_head.weight"])
    local untied = { tie_word_embeddings = false }
    for key, value in pairs(small) do untied[key] = value end
    assert.is_truthy(models.gpt2(untied):state_dict()["lm_head.weight"])
  end)

  it("refuse what makes no sense", function()
    assert.has_error(function() models.gpt2 { n_layers = 2 } end,
      "models.gpt2: there is no option 'n_layers', did you mean 'n_layer'?")
    assert.has_error(function() models.gpt2 { n_layer = 0 } end,
      "models.gpt2: option 'n_layer' must be an integer of at least 1, got 0")
    assert.has_error(function() models.gpt2 { n_layer = math.huge } end,
      "models.gpt2: option 'n_layer' must be at most 10000, got inf")
    assert.has_error(function() models.llama { vocab_size = 2 ^ 31 } end,
      "models.llama: option 'vocab_size' must be at most 2147483647, got 2.14748e+09")
    assert.has_error(function() models.gpt2 { attn_pdrop = 1 } end,
      "models.gpt2: option 'attn_pdrop' must be at least 0 and below 1, got 1")
    assert.has_error(function() models.llama { num_key_value_heads = 5 } end,
      "models.llama: 32 heads cannot share 5 keys and values")
    local model = models.gpt2(small)
    assert.has_error(function() model(tl.zeros({ 1, 13 }, { dtype = "int64" })) end,
      "GPT2: 13 tokens, the model takes 12 at most")
    assert.has_error(function() model(tl.zeros({ 3 }, { dtype = "int64" })) end, "GPT2: ids must be (B, T), got 1 dims")
  end)
end)

describe("generate", function()
  local model, ids

  before_each(function()
    tl.manual_seed(5)
    model = models.gpt2 { vocab_size = 23, n_positions = 20, n_embd = 16, n_layer = 2, n_head = 2,
      initializer_range = 0.5 }
    ids = tl.randint(0, 23, { 2, 4 })
  end)
  after_each(function() model, ids = nil, nil end)

  local function generate(o)
    o.generator = tl.Generator(9)
    return model:generate(ids, o)
  end

  it("draws the same with and without a cache", function()
    for _, o in ipairs { {}, { top_k = 3 }, { top_p = 0.7 }, { temperature = 2, top_k = 9, top_p = 0.9 } } do
      o.max_new_tokens = 6
      local a = generate(o)
      o.use_cache = false
      same(a, generate(o))
      assert.are.same({ 2, 10 }, a.shape)
      same(a:narrow(2, 1, 4), ids)
    end
  end)

  it("takes the likeliest where nothing else is left", function()
    local greedy = model:generate(ids, { max_new_tokens = 8, temperature = 0 })
    same(greedy, generate { max_new_tokens = 8, top_k = 1 })
    same(greedy, generate { max_new_tokens = 8, top_p = 1e-9 })
    for _, temperature in ipairs { 1e-4, 1e-40, 5e-324 } do
      same(greedy, generate { max_new_tokens = 8, temperature = temperature })
    end
  end)

  it("draws from the top k, from the nucleus, by probability", function()
    -- One embedding for all: the logits depend on the output layer's rows alone.
    local logits = { 3, 2, 1, 0 }
    local counts = { {}, {}, {} }
    for k, o in ipairs { { top_k = 2 }, { top_p = 0.8 }, { temperature = 0.5 } } do
      local fake = setmetatable({ training = false, config = {} }, { __index = models.gpt2 })
      function fake.next_logits(_, x) return here(tl.tensor { logits }):expand(x:size(1), 4) end
      function fake.cache() return nil end
      function fake.limit() return 10 end
      o.max_new_tokens, o.generator = 1, tl.Generator(1)
      local drawn = fake:generate(tl.zeros({ 4000, 1 }, { dtype = "int64" }), o):select(2, 2):tolist()
      for _, id in ipairs(drawn) do counts[k][id] = (counts[k][id] or 0) + 1 / 4000 end
    end
    local function share(list, i) -- of exp(list[i])
      local sum = 0
      for _, x in ipairs(list) do sum = sum + math.exp(x) end
      return math.exp(list[i]) / sum
    end
    assert.is_nil(counts[1][2])
    assert.is_true(math.abs(counts[1][0] - share({ 3, 2 }, 1)) < 0.03)
    assert.is_nil(counts[2][2]) -- 0.64 + 0.24 are enough
    assert.is_true(math.abs(counts[2][1] - share({ 3, 2 }, 2)) < 0.03)
    assert.is_true(math.abs(counts[3][0] - share({ 6, 4, 2, 0 }, 1)) < 0.03)
  end)

  it("ends when every row has ended, and fills with the padding id", function()
    local long = model:generate(ids, { max_new_tokens = 12, temperature = 0 }):tolist()
    local first, second = long[1][6], long[2][8] -- the 2nd and the 4th new token
    local stop = { max_new_tokens = 12, temperature = 0, eos_token_id = { first, second }, pad_token_id = 22 }
    local short = model:generate(ids, stop):tolist()
    local ends = { first, second }
    for row = 1, 2 do
      local ended = false
      for k = 5, #short[row] do
        assert.equal(ended and 22 or long[row][k], short[row][k])
        ended = ended or short[row][k] == ends[1] or short[row][k] == ends[2]
      end
      assert.is_true(ended)
    end
    assert.is_true(#short[1] <= 8)
  end)

  it("streams the same tokens, and leaves the mode as it was", function()
    local whole = model:generate(ids, { max_new_tokens = 5, temperature = 0 }):narrow(2, 5, 5):tolist()
    local k = 0
    for list in model:stream(ids, { max_new_tokens = 5, temperature = 0 }) do
      k = k + 1
      assert.are.same({ whole[1][k], whole[2][k] }, list)
    end
    assert.equal(5, k)
    k = 0
    for id in model:stream(ids:narrow(1, 2, 1), { max_new_tokens = 5, temperature = 0 }) do
      k = k + 1
      assert.equal(whole[2][k], id)
    end
    assert.is_true(model.training)
  end)

  it("goes on behind a cache in pieces of any size", function()
    model:eval()
    local whole, cache = tl.no_grad(model, ids), model:cache()
    local first = tl.no_grad(model, ids:narrow(2, 1, 1), cache)
    local rest = tl.no_grad(model, ids:narrow(2, 2, 3), cache)
    close(tl.cat({ first, rest }, 2), whole, 1e-5)
    assert.has_error(function() model(ids, cache) end,
      "a cache keeps no graph: call the model inside tl.no_grad")
  end)

  it("takes its own caches only, with the same rows", function()
    local function says(message, ...)
      local ok, said = pcall(tl.no_grad, model, ...)
      assert.is_false(ok)
      assert.matches(message, said, 1, true)
    end
    local cache = model:cache()
    tl.no_grad(model, ids:narrow(2, 1, 1), cache)
    says(("the cache holds tokens of %d rows, the ids have 1"):format(#ids), ids:narrow(1, 1, 1), cache)
    says("argument 2 must be a cache, as model:cache() makes it, got a table", ids, {})
    says("argument 2 must be a cache, as model:cache() makes it, got a number", ids, 5)
    says("the cache is another model's", ids, models.load(golden .. "llama"):cache())
  end)

  it("runs the hooks of the output layer", function()
    tl.manual_seed(1)
    local llama = models.llama { vocab_size = 9, max_position_embeddings = 8, hidden_size = 8, intermediate_size = 12,
      num_hidden_layers = 1, num_attention_heads = 2 }
    local some = tl.randint(0, 9, { 2, 6 })
    local loss = llama:loss(some, some):item()
    tl.nn.utils.prune.l1_unstructured(llama.lm_head, "weight", { count = 0 })
    local optimizer = tl.optim.SGD(llama:parameters(), { lr = 1 })
    assert.is_true(math.abs(llama:loss(some, some, { chunk = 2 }):item() - loss) < 1e-5)
    assert.are.same({ 2, 6 }, llama:loss(some, some, { reduction = "none" }).shape)
    for _ = 1, 3 do
      optimizer:zero_grad()
      llama:loss(some, some):backward()
      optimizer:step()
    end
    assert.is_true(llama:loss(some, some):item() < loss - 0.05)
    close(llama(some), llama.lm_head(llama.model(some)), 0)
    assert.equal(1, llama:generate(some, { max_new_tokens = 1 }):size(2) - 6)
  end)

  it("refuses what does not fit", function()
    local function says(message, o) assert.has_error(function() model:generate(ids, o) end, "generate: " .. message) end
    says("4 tokens and 17 new ones are more than the 20 that the model takes", { max_new_tokens = 17 })
    says("option 'temperature' must be at least 0, got -1", { temperature = -1 })
    says("option 'top_p' must be above 0 and at most 1, got 0", { top_p = 0 })
    says("option 'top_k' must be an integer of at least 0 (0: all), got 1.5", { top_k = 1.5 })
    says("option 'pad_token_id' must be an integer, got 1.5", { pad_token_id = 1.5 })
    says("there is no option 'max_tokens', did you mean 'max_new_tokens'?", { max_tokens = 5 })
  end)
end)
