-- mnist.lua: MNIST and the data sets made in its image.
local base = require "tlua.base"
local readers = require "tlua.data.readers"
local fail = base.fail

local function exists(path)
  local file = io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

-- root/NAME with the spellings that are around.
local function find(roots, name)
  for _, root in ipairs(roots) do
    for _, spelling in ipairs { name, (name:gsub("%-idx", ".idx")) } do
      for _, suffix in ipairs { "", ".gz" } do
        local path = root .. "/" .. spelling .. suffix
        if exists(path) then return path end
      end
    end
  end
end

local function reader(op, roots, hint)
  return function(options)
    local o = base.options(op, options, { root = base.optional, train = true })
    if o.root ~= nil and type(o.root) ~= "string" then
      fail(op .. ": option 'root' must be a path, got " .. base.kind(o.root))
    end
    local places = o.root and { o.root } or roots
    local prefix = o.train and "train" or "t10k"
    local x_path = find(places, prefix .. "-images-idx3-ubyte")
    local y_path = find(places, prefix .. "-labels-idx1-ubyte")
    if not (x_path and y_path) then
      fail(("%s: there is no %s-images-idx3-ubyte(.gz) with its labels in %s%s"):format(op, prefix,
        table.concat(places, ", "), hint))
    end
    local images, labels = readers.idx(x_path), readers.idx(y_path)
    if images:dim() ~= 3 or labels:dim() ~= 1 or #images ~= #labels then
      fail(("%s: %s is (%s) and %s is (%s)"):format(op, x_path, table.concat(images.shape, "x"), y_path,
        table.concat(labels.shape, "x")))
    end
    return images, labels:to("int64")
  end
end

return {
  --- data.fashion_mnist{root=, train=true}: images uint8 (N, 28, 28), labels int64 (N).
  fashion_mnist = reader("fashion_mnist",
    { "/usr/share/datasets/fashion-mnist", "data/fashion-mnist", "data/FashionMNIST/raw", "data" },
    "; on Debian: apt install dataset-fashion-mnist"),
  --- data.mnist{root=, train=true}: the same of MNIST.
  mnist = reader("mnist", { "data/mnist", "data/MNIST/raw", "data" }, "; pass root="),
}
