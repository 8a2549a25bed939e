-- tensor.lua: what the REPL's ?name shows of tensors: pure data. The pointwise operations are in pointwise.lua.
return {
  ["tl"] = [[
The library: tensors (tl.tensor, tl.zeros, ...), tl.nn, tl.optim, tl.data, tl.amp, tl.autograd, tl.save, tl.load.
Positions written in Lua (dims, indices, ranges) count from 1, or from -1 at the end, ranges include both ends. Numbers
stored in tensors (labels, token ids, argmax results) count from 0.]],

  -- creation
  ["tl.tensor"] = [[
tensor(number | boolean | nested table, {dtype=, device=, requires_grad=}): float32 from numbers, bool from booleans,
unless dtype says otherwise. A ragged table or one that holds anything else is an error that names the place. A tensor
is copied.]],
  ["tl.zeros"] = [[
zeros(2, 3, opts), zeros({2, 3}, opts). opts: dtype (float32), device (the default one), requires_grad (false).]],
  ["tl.ones"] = "ones(2, 3, opts), ones({2, 3}, opts). opts: dtype, device, requires_grad.",
  ["tl.empty"] = "empty(2, 3, opts): values are whatever the memory holds. opts: dtype, device, requires_grad.",
  ["tl.full"] = "full({2, 3}, value, opts): every element is value; true and false make a bool tensor.",
  ["tl.arange"] = "arange(n), arange(first, last, step, opts): 0, 1, .. below n; first, first+step, .. before last.",
  ["tl.linspace"] = "linspace(first, last, n, opts): n values at equal distances, both ends included.",
  ["tl.eye"] = "eye(n, opts), eye(rows, columns, opts): ones on the main diagonal.",
  ["tl.rand"] = "rand(2, 3, opts): uniform in [0, 1). opts also: generator.",
  ["tl.randn"] = "randn(2, 3, opts): normal, mean 0, variance 1. opts also: generator.",
  ["tl.randint"] = "randint(low, high, {2, 3}, opts), randint(high, {2, 3}, opts): low .. high-1 (low 0), int64.",
  ["tl.randperm"] = "randperm(n, opts): 0 .. n-1 in random order, int64.",
  ["tl.zeros_like"] = "zeros_like(x, opts): zeros of x's shape, dtype and device; opts override.",
  ["tl.ones_like"] = "ones_like(x, opts): ones of x's shape, dtype and device; opts override.",
  ["tl.empty_like"] = "empty_like(x, opts): as x, values undefined.",
  ["tl.full_like"] = "full_like(x, value, opts): as x, every element is value.",
  ["tl.rand_like"] = "rand_like(x, opts): as x, uniform in [0, 1).",
  ["tl.randn_like"] = "randn_like(x, opts): as x, normal.",
  ["tl.randint_like"] = "randint_like(x, low, high, opts): as x, integers low .. high-1.",
  ["tl.get_default_dtype"] = "get_default_dtype(): the dtype of new floating tensors.",
  ["tl.set_default_dtype"] = [[set_default_dtype("float64"): the dtype of new floating tensors from now on.]],

  ["tl.get_default_device"] = "get_default_device(): the device of new tensors, if no option places them.",
  ["tl.set_default_device"] = [[
set_default_device("cuda"): where creation functions and layers make their tensors from now on, if no option places
them. What reads files or orders samples stays on the CPU; x:to(device) moves a batch.]],

  -- random numbers
  ["tl.manual_seed"] = "manual_seed(n): seeds the default generator.",
  ["tl.Generator"] = [[
Generator(seed): a random stream of its own (Philox4x32-10, Salmon et al. 2011): the same numbers on every device and
for
any number of threads. g:manual_seed(n), g:seed(), g:get_state(), g:set_state(state).]],
  ["tl.get_rng_state"] = "get_rng_state(): {seed=, offset=} of the default generator.",
  ["tl.set_rng_state"] = "set_rng_state(state): the default generator goes on from there.",
  ["tl.initial_seed"] = "initial_seed(): the default generator's seed.",
  ["x:uniform_"] = "x:uniform_(low=0, high=1, {generator=}): fills x from [low, high); returns x.",
  ["x:normal_"] = "x:normal_(mean=0, std=1, {generator=}): fills x; returns x.",
  ["x:random_"] = "x:random_(low, high, {generator=}): fills x with integers low .. high-1; returns x.",
  ["x:bernoulli_"] = "x:bernoulli_(p=0.5, {generator=}): 1 with probability p, else 0; returns x.",
  ["tl.multinomial"] = [[
weights:multinomial(n, {replacement=false, generator=}): n draws (0-based ids) from each row of weights (.., C): int64
(.., n).]],
  ["tl.dropout"] = [[
dropout(x, p=0.5, {training=true, generator=}): zeroes elements with probability p, scales the others by 1/(1-p)
(Srivastava et al. 2014).]],

  -- what a tensor is
  ["x:shape"] = "x.shape: the sizes as a table. x:size(d) is one of them.",
  ["x:dtype"] = "x.dtype: float32, float16, bfloat16, float64, int64, int32, uint8 or bool. x:to(dtype) converts.",
  ["x:device"] = [[x.device: "cpu", "cuda:0", ... x:to(device) moves.]],
  ["x:T"] = "x.T: the transposed matrix, a view.",
  ["x:data"] = "x.data: the same elements without a history. Assigning exchanges them and keeps the handle.",
  ["x:size"] = "x:size(): the sizes as a table. x:size(d): one of them. #x is size(1).",
  ["x:stride"] = "x:stride(), x:stride(d): steps in elements.",
  ["x:dim"] = "x:dim(): how many dims (0 to 8).",
  ["tl.numel"] = "numel(x): how many elements.",
  ["x:is_contiguous"] = "x:is_contiguous(): do the elements lie in row-major order?",
  ["x:is_floating_point"] = "x:is_floating_point(): is the dtype a floating one?",
  ["x:is_same_storage"] = "x:is_same_storage(y): do both view the same memory?",
  ["x:element_size"] = "x:element_size(): bytes of one element.",
  ["x:data_ptr"] = [[
x:data_ptr(): an FFI pointer to the first element (float *, int64_t *, ...), CPU only; valid while x lives.
LuaJIT takes some nan bits for other values: where there may be nan, read with x:item() or x:tolist().]],
  ["tl.is_tensor"] = "is_tensor(x): is x a tensor?",
  ["x:item"] = "x:item(): the value of a one-element tensor: a number, or a boolean for dtype bool.",
  ["x:tolist"] = "x:tolist(): nested tables of numbers (booleans for dtype bool).",
  ["x:free"] = "x:free(): gives the memory back now; x is empty afterwards.",

  -- conversions and copies
  ["x:to"] = [[
x:to("float16"), x:to("cuda"), x:to("cuda", "float16"), x:to(other), x:to{dtype=, device=}: x itself when nothing changes.
{non_blocking=true} (last, or in the table): a copy from pinned memory to a GPU returns at once; x must stay as it is
until it is done.]],
  ["x:pin_memory"] = [[
x:pin_memory(): a copy of a CPU tensor in pinned memory, from which a GPU copies by itself; x itself if it is pinned.]],
  ["x:is_pinned"] = "x:is_pinned(): does it lie in pinned host memory?",
  ["x:record_stream"] = [[
x:record_stream(s): work on stream s uses x's memory, which was made on another one: freed, it is not used again before
that work is done.]],
  ["x:type"] = [[x:type("int64"): another dtype.]],
  ["x:type_as"] = "x:type_as(y): y's dtype.",
  ["x:half"] = "x:half(): float16.",
  ["x:bfloat16"] = "x:bfloat16(): bfloat16.",
  ["x:float"] = "x:float(): float32.",
  ["x:double"] = "x:double(): float64.",
  ["x:long"] = "x:long(): int64.",
  ["x:int"] = "x:int(): int32.",
  ["x:byte"] = "x:byte(): uint8.",
  ["x:bool"] = "x:bool(): bool, true where x is not 0.",
  ["x:cpu"] = "x:cpu(): on the CPU; x itself if it is there.",
  ["x:cuda"] = "x:cuda(i): on GPU i (0).",
  ["tl.clone"] = "clone(x): a copy; gradients pass through.",
  ["tl.detach"] = "detach(x): the same elements without a history.",
  ["x:contiguous"] = "x:contiguous(): x itself if row-major, else a copy that is.",
  ["x:copy_"] = "x:copy_(src, {non_blocking=false}): copies src into x, broadcast and converted; returns x.",
  ["x:fill_"] = "x:fill_(value): every element becomes value; returns x.",
  ["x:zero_"] = "x:zero_(): every element becomes 0; returns x.",

  -- views
  ["x:view"] = [[
x:view(2, -1), x:view({2, -1}): another shape of the same elements; one size may be -1. An error if that needs a
copy.]],
  ["tl.reshape"] = "reshape(x, 2, -1): a view where possible, else a copy.",
  ["x:view_as"] = "x:view_as(y): x:view(y.shape).",
  ["x:reshape_as"] = "x:reshape_as(y): x:reshape(y.shape).",
  ["x:expand"] = "x:expand(3, -1): dims of size 1 grow without a copy; -1 keeps a size. Not to be written in place.",
  ["x:expand_as"] = "x:expand_as(y): x:expand(y.shape).",
  ["tl.broadcast_to"] = "broadcast_to(x, {3, 4}): x:expand({3, 4}).",
  ["tl.permute"] = "permute(x, 3, 1, 2): dims in a new order.",
  ["tl.transpose"] = "transpose(x, a, b): dims a and b change places.",
  ["tl.t"] = "t(x): the transposed matrix.",
  ["tl.movedim"] = "movedim(x, from, to): one dim moves, the others keep their order.",
  ["tl.flatten"] = "flatten(x, first=1, last=-1): dims first..last become one.",
  ["tl.unflatten"] = "unflatten(x, d, {2, -1}): dim d becomes several.",
  ["tl.squeeze"] = "squeeze(x), squeeze(x, d), squeeze(x, {1, 3}): dims of size 1 go.",
  ["tl.unsqueeze"] = "unsqueeze(x, d): a dim of size 1 becomes dim d.",
  ["tl.select"] = "select(x, d, i): part i of dim d, without the dim. x[i] is select(x, 1, i).",
  ["tl.narrow"] = "narrow(x, d, first, length): a part of dim d.",
  ["x:slice"] = "x:slice(d, first=1, last=-1, step=1): the inclusive range of dim d.",
  ["tl.split"] = "split(x, size, d=1), split(x, {2, 3}, d): a table of parts of dim d.",
  ["tl.chunk"] = "chunk(x, n, d=1): a table of at most n parts of dim d.",
  ["tl.unbind"] = "unbind(x, d=1): a table of the parts of dim d, without the dim.",

  -- joining, picking
  ["tl.cat"] = "cat({a, b, ...}, d=1): along dim d.",
  ["tl.concat"] = "concat({a, b, ...}, d=1): cat.",
  ["tl.stack"] = "stack({a, b, ...}, d=1): along a new dim d.",
  ["tl.tile"] = "tile(x, 2, 3): repeats whole dims (PyTorch's repeat; that is a word of Lua).",
  ["tl.repeat_interleave"] = [[
repeat_interleave(x, times, d): every part of dim d `times` times in a row; without d, flattened.]],
  ["tl.flip"] = "flip(x, d), flip(x, {1, 2}): dims in reverse.",
  ["tl.index_select"] = "index_select(x, d, ids): the parts of dim d that ids (1-d, 0-based) name.",
  ["tl.gather"] = [=[
gather(x, d, ids): out[i][j] = x[ids[i][j]][j] for d = 1, and so on; ids are 0-based, out has their shape.]=],
  ["tl.scatter_add"] = "scatter_add(x, d, ids, src): x with src's elements added where ids (0-based) say.",
  ["x:index_add_"] = "x:index_add_(d, ids, src, {alpha=1}): part ids[k] of dim d += alpha * part k of src.",
  ["tl.masked_select"] = "masked_select(x, mask): the elements where mask is true, 1-d. Also x[mask].",
  ["tl.nonzero"] = "nonzero(x): the indices (0-based) of the elements that are not 0: int64 (n, dims).",
  ["tl.one_hot"] = "one_hot(ids, classes): int64 (.., classes), 1 at each id; classes defaults to the largest id + 1.",

  -- reductions
  ["tl.sum"] = "sum(x), sum(x, d), sum(x, {1, 3}), each with {keepdim=true}. Integers sum to int64.",
  ["tl.mean"] = "mean(x, dims, {keepdim=false}). Floating dtypes.",
  ["tl.prod"] = "prod(x, dims, {keepdim=false}): the product.",
  ["tl.var"] = [[
var(x, dims, {correction=1, keepdim=false}): the variance, divided by n - correction. {unbiased=false}: correction
0.]],
  ["tl.std"] = "std(x, dims, {correction=1, keepdim=false}): the square root of var.",
  ["tl.norm"] = "norm(x, p=2, dims, {keepdim=false}): (sum |x|^p)^(1/p); p may be math.huge, -math.huge or 0.",
  ["tl.logsumexp"] = "logsumexp(x, dims, {keepdim=false}): log(sum(exp(x))), without overflow.",
  ["tl.amax"] = "amax(x, dims, {keepdim=false}): the largest; nan wins, equal ones share the gradient.",
  ["tl.amin"] = "amin(x, dims, {keepdim=false}): the smallest; nan wins, equal ones share the gradient.",
  ["tl.max"] = [[
max(x): the largest element. max(x, d, {keepdim=}): values and their ids (0-based). max(x, y): maximum.]],
  ["tl.min"] = [[
min(x): the smallest element. min(x, d, {keepdim=}): values and their ids (0-based). min(x, y): minimum.]],
  ["tl.argmax"] = [[
argmax(x, d, {keepdim=}): ids (0-based) of the first largest along d; without d, of the flattened x.]],
  ["tl.argmin"] = [[
argmin(x, d, {keepdim=}): ids (0-based) of the first smallest along d; without d, of the flattened x.]],
  ["tl.all"] = "all(x, dims, {keepdim=false}): bool, is everything not 0?",
  ["tl.any"] = "any(x, dims, {keepdim=false}): bool, is anything not 0?",
  ["tl.cumsum"] = "cumsum(x, d): running sums along d.",
  ["tl.softmax"] = "softmax(x, d): exp(x) / sum(exp(x)) along d. A row of -inf gives zeros.",
  ["tl.log_softmax"] = "log_softmax(x, d): log(softmax(x, d)), without overflow.",
  ["tl.sort"] = "sort(x, d=-1, {descending=false}): values and ids (0-based); stable, nan last.",
  ["tl.argsort"] = "argsort(x, d=-1, {descending=false}): the ids of sort.",
  ["tl.topk"] = "topk(x, k, d=-1, {largest=true, sorted=true}): the k largest along d and their ids (0-based).",
  ["tl.allclose"] = [[
allclose(x, y, {rtol=1e-5, atol=1e-8, equal_nan=false}): |x - y| <= atol + rtol * |y| everywhere? A boolean.]],
  ["tl.equal"] = "equal(x, y): the same shape and elements? A boolean.",

  -- matrices
  ["tl.matmul"] = [[
matmul(a, b): the matrix product. 1-d with 1-d: dot; 2-d: mm; 1-d counts as a row (left) or column (right); further
dims are batches and broadcast. Inner sizes must agree.]],
  ["tl.mm"] = "mm(a, b): (n, k) times (k, m).",
  ["tl.bmm"] = "bmm(a, b): (b, n, k) times (b, k, m).",
  ["tl.addmm"] = "addmm(c, a, b, {beta=1, alpha=1}): beta * c + alpha * a b; c broadcasts.",
  ["tl.dot"] = "dot(a, b): of two 1-d tensors of equal size.",
  ["tl.outer"] = "outer(a, b): (n) and (m) to (n, m).",
  ["tl.einsum"] = [[
einsum("bij,bjk->bik", a, b, ...): Einstein's summation, with ellipsis, repeated letters and implicit result.]],
  ["tl.triu"] = "triu(x, diagonal=0): zero below a diagonal of the last two dims.",
  ["tl.tril"] = "tril(x, diagonal=0): zero above a diagonal of the last two dims.",

  -- the machine
  ["tl.set_num_threads"] = "set_num_threads(n): threads of the CPU kernels.",
  ["tl.get_num_threads"] = "get_num_threads(): threads of the CPU kernels.",
  ["tl.cpu_kernel_set"] = "cpu_kernel_set(): the instruction set whose kernels run.",
  ["tl.device_count"] = [[device_count("cuda"): how many there are; if none, also why.]],
  ["tl.memory"] = "memory(device): bytes {live=, peak=, cached=, soft_limit=}, and {tensors=} handles.",
  ["tl.reset_peak_memory"] = "reset_peak_memory(device): peak starts again from what is live.",
  ["tl.empty_cache"] = "empty_cache(device): gives cached memory back to the system.",
  ["tl.version"] = "tl.version: the engine's version.",
}
