-- tlua doctor: what this build and this machine are, and whether the basics work here. Exits 1 if a self-test failed.
local ffi = require "ffi"
local base = require "tlua.base"
local C = base.C

if #arg > 0 then
  local help = arg[1] == "-h" or arg[1] == "--help"
  io[help and "stdout" or "stderr"]:write("usage: tlua doctor\n")
  os.exit(help and 0 or 2)
end

ffi.cdef [[
typedef struct { int major, minor, patch; } doctor_dnnl_version;
const doctor_dnnl_version *dnnl_version(void);
const char *zlibVersion(void);
const char *zip_libzip_version(void);
const char *spng_version_string(void);
const char *jansson_version_str(void);
]]

-- A line of the report; text is a format if arguments follow.
local function row(name, text, ...)
  if select("#", ...) > 0 then text = text:format(...) end
  print(("%-12s %s"):format(name, text))
end

-- The version that a library reports itself; it is loaded already if this build uses it.
local function library(name, ask)
  local found, version = pcall(ask)
  row(name, found and version or "not in this build")
end

local function read(path)
  local file = io.open(path)
  local text = file and file:read("*a") or ""
  if file then file:close() end
  return text
end

local function versions()
  row("tlua", "%s, ABI %d", ffi.string(C.tl_version()), C.tl_abi())
  row("LuaJIT", "%s, %s, %s", jit.version:gsub("^LuaJIT ", ""), ffi.abi("gc64") and "GC64" or "without GC64",
    jit.status() and "JIT on" or "JIT off")
  library("oneDNN", function()
    local v = ffi.C.dnnl_version()
    return ("%d.%d.%d"):format(v.major, v.minor, v.patch)
  end)
  library("zlib", function() return ffi.string(ffi.C.zlibVersion()) end)
  library("libzip", function() return ffi.string(ffi.C.zip_libzip_version()) end)
  library("libspng", function() return ffi.string(ffi.C.spng_version_string()) end)
  library("jansson", function() return ffi.string(ffi.C.jansson_version_str()) end)
end

-- Instruction sets that matter here, of those the kernel names in /proc/cpuinfo.
local interesting = { "sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
  "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "asimdhp", "sve", "bf16" }

local function machine()
  local info = read("/proc/cpuinfo")
  local model = info:match("model name%s*:%s*([^\n]+)") or ffi.arch
  local flags, has = info:match("\nflags%s*:%s*([^\n]+)") or info:match("\nFeatures%s*:%s*([^\n]+)") or "", {}
  for flag in flags:gmatch("%S+") do has[flag] = true end
  local present = {}
  for _, flag in ipairs(interesting) do
    if has[flag] then present[#present + 1] = flag end
  end
  local _, count = info:gsub("processor%s*:", "")
  row("CPU", "%s, %d logical", model, count)
  row("features", #present > 0 and table.concat(present, " ") or "(none that matter here)")
  row("kernels", ffi.string(C.tl_cpu_kernel_set()))
  row("threads", "%d", C.tl_get_num_threads())
  local memory = read("/proc/meminfo")
  local total, free = memory:match("MemTotal:%s*(%d+)"), memory:match("MemAvailable:%s*(%d+)")
  if total and free then row("memory", "%.1f GB, %.1f GB free", total / 2 ^ 20, free / 2 ^ 20) end
end

local function devices()
  row("cpu", "ready")
  local why = ffi.new("const char *[1]")
  local count = C.tl_device_count("cuda", why)
  if count > 0 then
    row("cuda", "%d device%s", count, count == 1 and "" or "s")
  else
    row("cuda", "none: " .. (why[0] ~= nil and ffi.string(why[0]) or "no reason given"))
  end
end

-- ---- the self-test -----------------------------------------------------------------------------------------------

local tests = {}
local function test(name, f) tests[#tests + 1] = { name, f } end

-- Fails unless the elements of t are those of `expected` (a flat list), within a small relative error.
local function expect(t, expected)
  local flat = t:flatten():tolist()
  if #flat ~= #expected then error(("%d elements instead of %d"):format(#flat, #expected), 0) end
  for i, value in ipairs(expected) do
    if not (math.abs(flat[i] - value) <= 1e-5 * math.max(1, math.abs(value))) then
      error(("element %d is %.9g instead of %.9g"):format(i, flat[i], value), 0)
    end
  end
end

test("arithmetic", function(tl)
  expect((tl.arange(4) * 2 - 3):relu(), { 0, 0, 1, 3 })
  expect(tl.tensor({ 0, 1 }):exp(), { 1, 2.718281828 })
end)

test("low precision", function(tl)
  expect(tl.tensor({ 1 / 3 }, { dtype = "bfloat16" }):float(), { 0.333984375 })
  expect(tl.tensor({ 1 / 3 }, { dtype = "float16" }):float(), { 0.333251953125 })
end)

test("matrix product", function(tl)
  expect(tl.tensor { { 1, 2 }, { 3, 4 } }:matmul(tl.tensor { { 5, 6 }, { 7, 8 } }), { 19, 22, 43, 50 })
  local big = tl.ones(192, 256):matmul(tl.ones(256, 320))
  expect(tl.stack({ big:min(), big:max() }, 1), { 256, 256 })
end)

test("convolution", function(tl)
  expect(tl.F.conv2d(tl.ones(1, 2, 4, 4), tl.ones(1, 2, 3, 3)), { 18, 18, 18, 18 })
end)

test("gradients", function(tl)
  local x = tl.tensor({ 1, 2, 3 }, { requires_grad = true });
  (x ^ 2):sum():backward()
  expect(x.grad, { 2, 4, 6 })
end)

test("random numbers", function(tl)
  local function draw(seed) return tl.rand(5, { generator = tl.Generator(seed) }):tolist() end
  expect(tl.tensor(draw(7)), draw(7))
end)

test("threads", function(tl)
  local x, all = tl.rand(1000003), C.tl_get_num_threads()
  base.check(C.tl_set_num_threads(1))
  local alone = x:sum():item()
  base.check(C.tl_set_num_threads(all))
  if x:sum():item() ~= alone then error("a sum depends on the number of threads", 0) end
end)

test("training", function(tl)
  local model = tl.nn.Linear(1, 1)
  local optimizer = tl.optim.SGD(model:parameters(), { lr = 0.1 })
  local x = tl.linspace(-1, 1, 16):reshape(16, 1)
  local y, loss = x * 2 + 1, nil
  for _ = 1, 300 do
    optimizer:zero_grad()
    loss = tl.nn.MSELoss()(model(x), y)
    loss:backward()
    optimizer:step()
  end
  if not (loss:item() < 1e-6) then error(("the loss is still %g"):format(loss:item()), 0) end
  local line = {}
  for i, p in ipairs(model:parameters()) do line[i] = math.floor(p:item() * 100 + 0.5) / 100 end
  expect(tl.tensor(line), { 2, 1 })
end)

test("files", function(tl)
  local path = os.tmpname()
  tl.save(path, { x = tl.arange(6):reshape(2, 3) })
  local back = tl.load(path)
  os.remove(path)
  expect(back.x, { 0, 1, 2, 3, 4, 5 })
end)

local function self_test()
  local failed = 0
  local loaded, tl = pcall(require, "tlua")
  if not loaded then
    row("FAILED", "the Lua library: %s", tostring(tl))
    return 1
  end
  for _, t in ipairs(tests) do
    local ok, message = pcall(t[2], tl)
    row(ok and "ok" or "FAILED", ok and t[1] or t[1] .. ": " .. tostring(message))
    if not ok then failed = failed + 1 end
  end
  return failed
end

versions()
print()
machine()
print()
devices()
print()
os.exit(self_test() == 0 and 0 or 1, true)
