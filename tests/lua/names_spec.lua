-- names_spec.lua: every name that a user of PyTorch looks for first is there, and a name, argument or option that is
-- not there is an error that says so.
local tl = require "tlua"
local nn, optim, F = tl.nn, tl.optim, tl.F

local function raises(text, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.is_truthy(message:find(text, 1, true), message)
end

local function has(where, names)
  for name in names:gmatch "%S+" do
    local ok, value = pcall(function() return where[name] end)
    assert.is_true(ok and value ~= nil, name)
  end
end

describe("there are", function()
  it("functions", function()
    has(tl, [[nn optim data utils autograd F tensor zeros ones empty rand randn full arange linspace eye randint randperm
      zeros_like ones_like empty_like rand_like randn_like full_like randint_like cat stack allclose no_grad enable_grad
      save load progress manual_seed einsum where matmul mm bmm addmm dot outer is_tensor Generator get_num_threads
      set_num_threads get_default_dtype set_default_dtype get_default_device
      set_default_device is_grad_enabled]])
  end)

  it("fields and methods of tensors", function()
    local x = tl.ones(2, 3, { requires_grad = true })
    x:sum():backward()
    has(x, [[shape dtype device grad requires_grad is_leaf T size dim numel stride is_contiguous contiguous clone detach
      item tolist free to cpu cuda half bfloat16 float double long data_ptr view reshape permute transpose t flatten
      squeeze unsqueeze expand repeat_interleave tile chunk split select narrow slice index_select gather scatter_add
      masked_fill masked_select where add sub mul div pow neg abs exp log log1p sqrt rsqrt sin cos tanh sigmoid relu gelu
      silu clamp sign floor round reciprocal minimum maximum eq ne lt le gt ge isnan isinf isfinite logical_and
      logical_or logical_not add_ sub_ mul_ div_ pow_ neg_ abs_ exp_ log_ log1p_ sqrt_ rsqrt_ sin_ cos_ tanh_ sigmoid_
      relu_ gelu_ silu_ clamp_ sign_ floor_ round_ reciprocal_ zero_ fill_ copy_ masked_fill_ scatter_add_ uniform_
      normal_ sum mean prod var std max min argmax argmin norm logsumexp all any cumsum matmul mm bmm addmm dot outer
      softmax log_softmax topk sort triu tril allclose backward register_hook requires_grad_]])
  end)

  it("modules, losses and what belongs to them", function()
    has(nn, [[Module Parameter Linear Conv1d Conv2d ConvTranspose2d BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm
      LayerNorm GroupNorm RMSNorm Embedding RotaryEmbedding Dropout MaxPool2d AvgPool2d AdaptiveAvgPool2d Flatten Identity Sequential
      ModuleList ReLU GELU SiLU Tanh Sigmoid LeakyReLU ELU Softmax LogSoftmax MSELoss L1Loss SmoothL1Loss HuberLoss
      CrossEntropyLoss NLLLoss BCELoss BCEWithLogitsLoss KLDivLoss functional init utils]])
    has(nn.Linear(1, 1), [[parameters named_parameters buffers named_buffers modules named_modules children state_dict
      load_state_dict train eval to zero_grad apply register_buffer requires_grad_ register_forward_pre_hook
      register_forward_hook]])
    has(F, [[linear conv1d conv2d conv_transpose2d batch_norm layer_norm group_norm rms_norm embedding dropout
      max_pool2d avg_pool2d adaptive_avg_pool2d relu gelu silu tanh sigmoid leaky_relu elu softmax log_softmax
      mse_loss l1_loss smooth_l1_loss huber_loss cross_entropy linear_cross_entropy nll_loss binary_cross_entropy
      binary_cross_entropy_with_logits kl_div rope swiglu]])
    has(nn.init, [[uniform_ normal_ constant_ ones_ zeros_ eye_ xavier_uniform_ xavier_normal_ kaiming_uniform_
      kaiming_normal_ orthogonal_ trunc_normal_ calculate_gain]])
    has(nn.utils, "clip_grad_norm_ clip_grad_value_ parameters_to_vector vector_to_parameters")
    has(tl.autograd, "grad Function gradcheck detect_anomaly")
    has(tl.utils, "checkpoint")
  end)

  it("optimizers, schedules, data", function()
    has(optim, "SGD Adam AdamW RMSprop Adagrad NAdam RAdam lr_scheduler")
    local opt = optim.SGD({ tl.ones(1) }, { lr = 1 })
    has(opt, "step zero_grad param_groups add_param_group state_dict load_state_dict")
    has(optim.lr_scheduler, [[LambdaLR MultiplicativeLR StepLR MultiStepLR ConstantLR LinearLR ExponentialLR PolynomialLR
      CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR OneCycleLR ReduceLROnPlateau SequentialLR ChainedScheduler
      AdamLR]])
    has(optim.lr_scheduler.StepLR(opt, 1), "step get_last_lr state_dict load_state_dict")
    has(tl.data, [[TensorDataset random_split Subset DataLoader DistributedSampler RandomSampler WeightedRandomSampler idx
      csv npy npz image fashion_mnist mnist text]])
  end)
end)

describe("what is not there", function()
  it("is named in every table, with the nearest name", function()
    raises("there is no tl.zeroes, did you mean 'zeros'?", function() return tl.zeroes end)
    raises("'summ' of a tensor, did you mean 'sum'?", function() return tl.ones(1).summ end)
    raises("did you mean 'Linear'?", function() return nn.Liner end)
    raises("nn.functional.crossentropy, did you mean 'cross_entropy'?", function() return F.crossentropy end)
    raises("there is no nn.init.xavier_unifrom_, did you mean", function() return nn.init.xavier_unifrom_ end)
    raises("nn.utils.clip_grad_norm, did you mean 'clip_grad_norm_'?", function() return nn.utils.clip_grad_norm end)
    raises("there is no optim.Adm, did you mean 'Adam'?", function() return optim.Adm end)
    raises("optim.lr_scheduler.StepLr, did you mean", function() return optim.lr_scheduler.StepLr end)
    raises("there is no tl.autograd.gard, did you mean 'grad'?", function() return tl.autograd.gard end)
    raises("there is no tl.utils.checkpiont, did you mean", function() return tl.utils.checkpiont end)
    raises("there is no tl.data.DataLaoder, did you mean", function() return tl.data.DataLaoder end)
  end)

  it("is an argument too many, not a silence", function()
    raises("relu: there is an argument too many: a table", F.relu, tl.ones(1), { inplace = true })
    raises("exp: there is an argument too many: a number", tl.exp, tl.ones(1), 2)
    raises("exp_: there is an argument too many", function() tl.ones(1):exp_ {} end)
    raises("softmax: there is an argument too many", F.softmax, tl.ones(1), 1, { dtype = "float64" })
    raises("log_softmax: there is an argument too many", function() tl.ones(1):log_softmax(1, {}) end)
    raises("Tanh: there is an argument too many", nn.Tanh, { inplace = true })
    raises("Sigmoid: there is an argument too many", nn.Sigmoid, 1)
    raises("AdaptiveAvgPool2d: there is an argument too many", nn.AdaptiveAvgPool2d, 2, { stride = 1 })
    raises("Dropout: there is no option 'inplac', did you mean 'inplace'?", nn.Dropout, 0.5, { inplac = true })
    raises("index: a table of entries counts from 1", function() return tl.ones(1)[{ first = 1 }] end)
  end)

  it("is a size among the sizes", function()
    raises("is one of the sizes nil?", tl.zeros, 2, nil, 3)
    raises("is one of the sizes nil?", tl.rand, 2, 2, 2, 2, 2, nil, 3)
    raises("is one of the sizes nil?", function() tl.ones(6):view(2, nil, 3) end)
    raises("there are at most 8 dims", tl.zeros, 1, 1, 1, 1, 1, 1, 1, 1, 1)
    raises("zeros: size -2 of dim 2 is negative", tl.zeros, 1, -2)
    raises("randint: size -2 of dim 1 is negative", tl.randint, 0, 5, { -2 })
    for n = 1, 8 do
      local list = {}
      for i = 1, n do list[i] = i % 3 + 1 end
      assert.same(list, tl.zeros(unpack(list)).shape)
      list[n + 1] = { dtype = "int64" }
      assert.equal("int64", tl.zeros(unpack(list)).dtype)
    end
  end)
end)

describe("small things of PyTorch", function()
  it("Dropout writes in place on request", function()
    local drop, x = nn.Dropout(0.5, { inplace = true }), tl.ones(100)
    assert.equal(x, drop(x))
    assert.is_true(x:eq(0):any():item())
    assert.equal("Dropout(p=0.5, inplace=true)", tostring(drop))
  end)

  it("its keywords work where a number usually stands", function()
    local x = tl.rand(2, 3, 4)
    assert.is_true(nn.Softmax { dim = 2 }(x):equal(nn.Softmax(2)(x)))
    assert.is_true(nn.LogSoftmax { dim = -1 }(x):equal(nn.LogSoftmax(-1)(x)))
    assert.same({ 2, 12 }, nn.Flatten {}(x).shape)
    assert.same({ 6, 4 }, nn.Flatten { start_dim = 1, end_dim = 2 }(x).shape)
    assert.equal("Dropout(p=0.25)", tostring(nn.Dropout { p = 0.25 }))
    raises("Softmax: there is no option 'axis', did you mean 'dim'?", nn.Softmax, { axis = 1 })
    raises("Flatten: there is no option 'start', did you mean 'start_dim'?", nn.Flatten, { start = 1 })
  end)

  it("a module is not a list of parameters", function()
    for _, name in ipairs { "clip_grad_norm_", "clip_grad_value_", "parameters_to_vector" } do
      raises(name .. ": parameters are a list of tensors, as model:parameters() gives, got a module", nn.utils[name],
        nn.Linear(1, 1), 1)
    end
    raises("apply: argument 1 must be a function, got a number", function() nn.Linear(1, 1):apply(3) end)
  end)

  it("a tensor is walked row by row", function()
    local sum = 0
    for i, row in ipairs(tl.tensor { { 1, 2 }, { 3, 4 } }) do sum = sum + i * row:sum():item() end
    assert.equal(17, sum)
    raises("a 0-d tensor has no rows", ipairs, tl.tensor(1))
  end)

  it("a subclass that lacks its parent's fields still prints, and says what is missing", function()
    local Half = nn.Linear:extend "Half"
    function Half:init() end
    assert.matches("^Half%(%.%.%.%)", tostring(Half()))
    raises("Half(...): its weight must be a tensor, got nil", Half(), tl.ones(1, 1))
  end)
end)
