-- data.lua: what the REPL's ?name shows of tl.data, tl.save, tl.load and tl.progress: pure data.
return {
  ["tl.data"] = [[
Datasets (TensorDataset, Subset, ConcatDataset, random_split), DataLoader, samplers and readers of data files (idx, csv,
npy, npz, image, text, fashion_mnist, mnist). Files that start with gzip's magic are unpacked by idx, csv, npy and text.
Sizes are checked before memory is taken, errors name the file and the offence, nothing in a data file is ever run.]],

  ["tl.data.TensorDataset"] = [[
TensorDataset(x, y, ...): sample i is x[i], y[i], ... All tensors have the same size of dim 1, or it is an error. Batches
of it are gathered in C. Any table with size() and get(i), i from 1, is a dataset, too.]],
  ["tl.data.Subset"] = [[
Subset(dataset, indices): the samples at indices: a table of positions (from 1) or a 1-d int64 tensor of ids
(from 0).]],
  ["tl.data.ConcatDataset"] = [[
ConcatDataset({a, b, ...}): the samples of a, then of b, ...]],
  ["tl.data.random_split"] = [[
random_split(dataset, lengths, {generator=}): a table of Subsets without common samples. lengths are counts that sum to
the dataset's size, or fractions that sum to 1 (rounded down; what is left goes to the parts in turn).]],
  ["tl.data.TokenDataset"] = [[
TokenDataset(path, {context=, stride=context, dtype=}): windows of a file of token ids, which is mapped into memory: the
file may be larger than it. Sample i: x = the `context` tokens from (i-1)*stride on, y = those one token further on, both
int64 (context); a DataLoader cuts batches (batch, context) from the mapping in C. ds:size() windows, ds.tokens tokens,
ds:read(first, n) any of them (first counts from 1). Files: ids without a header (as nanoGPT's train.bin), npy, and llm.c's.
dtype: "uint8", "uint16", "int32", "uint32" or "int64", by default what the header says, uint16 without one. stride=1 with
RandomSampler(ds, {replacement=true, num_samples=n}) draws windows from anywhere. A file of the wrong length, or changed
while it is in use, is an error. See write_tokens.]],
  ["tl.data.write_tokens"] = [[
write_tokens(path, ids, {dtype="uint16"}): writes token ids as a file without a header for TokenDataset, and returns how
many. ids: an integer tensor, a table of them, or an iterator function that gives one tensor after the other until nil, so
that a corpus never has to fit into memory. An id that dtype does not hold is an error. Written whole or not at all.]],
  ["tl.data.DataLoader"] = [[
DataLoader(dataset, {batch_size=1, shuffle=false, drop_last=false, num_workers=0, prefetch=2, sampler=, generator=,
collate=, pin_memory=false, device=}). `for x, y in loader do ... end` is one epoch; loader:size() is the number of batches,
loader:close() stops an epoch that was left early (the next `for` does, too). shuffle draws a new order each epoch from
generator (default: the default generator); the order and the batches are the same for any num_workers. Datasets of
tensors are gathered by num_workers threads, prefetch batches ahead each. Datasets written in Lua are asked in the main
thread whatever num_workers is, and their samples joined by collate(samples), samples[i] = {values of get}; by default
tensors are stacked, numbers become a tensor of the default dtype, booleans a bool tensor, strings a list, tables are
joined key by key. pin_memory: batches lie in pinned memory (no effect without a GPU). device="cuda":
they are on the GPU, copied one batch ahead on a stream of their own. Tensors must not be written during an epoch.
loader:state_dict() is the position, also in the middle of an epoch, and loader:load_state_dict(that) lets the next `for`
give the rest of that epoch, in the same order: it is drawn again with the random numbers of then. A sampler written in
Lua draws from tl's default generator or from its field generator, or has state_dict() and load_state_dict() itself.]],
  ["tl.data.SequentialSampler"] = [[
SequentialSampler(dataset or n): samples in order. A sampler is a table with size() and order(): an int64 tensor of ids
(from 0), or a table of positions (from 1), once an epoch.]],
  ["tl.data.RandomSampler"] = [[
RandomSampler(dataset or n, {replacement=false, num_samples=, generator=}): a new permutation each epoch, or draws with
replacement. More num_samples than there are: one permutation after the other.]],
  ["tl.data.WeightedRandomSampler"] = [[
WeightedRandomSampler(weights, num_samples, {replacement=true, generator=}): sample i with a probability proportional to
weights[i]: a table or a 1-d tensor.]],
  ["tl.data.DistributedSampler"] = [[
DistributedSampler(dataset or n, {num_replicas=, rank=, shuffle=true, seed=0, drop_last=false, even=true}): the part of
this rank (0-based; both from tl.dist once it is initialised). The order comes from seed + epoch: call set_epoch(e) before
each epoch. It is padded from its start until all ranks have equally many (or cut with drop_last); padding() tells how
many of this rank's last samples are repeats. even=false, for evaluation: nothing is repeated or dropped.]],
  ["tl.data.default_collate"] = [[
default_collate(samples): what DataLoader does with the samples of a dataset written in Lua.]],

  ["tl.data.idx"] = [[
idx(path): a file of MNIST's format: uint8, int32 (also from int8, int16), float32, float64.]],
  ["tl.data.npy"] = [[
npy(path): a NumPy array, versions 1 to 3, either byte order, row- or column-major. int8, int16 and uint16 become int32,
uint32 becomes int64. Python objects, records, strings, complex numbers and uint64 are errors.]],
  ["tl.data.npz"] = [[
npz(path): a table name -> tensor of the arrays in a NumPy archive.]],
  ["tl.data.save_npy"] = [[
save_npy(path, x): x as a NumPy array, written whole or not at all. NumPy has no bfloat16: an error.]],
  ["tl.data.csv"] = [[
csv(path, {header=, columns=, delimiter=",", dtype="float32", missing=false}): the table (rows, columns), the list of
column names, and a table name -> column (rows). columns: names or positions (from 1), only these have to be numbers.
header: true, false, or by default the first line when one of its fields is not a number. missing=true reads empty fields
as nan, else they are errors. Errors name line and column. RFC 4180 quoting.]],
  ["tl.data.image"] = [[
image(path): a PNG or JPEG as uint8 (C, H, W): 1 gray, 2 gray + alpha, 3 RGB, 4 RGBA. 16-bit samples keep their high
byte.]],
  ["tl.data.text"] = [[
text(path, {bytes=false, limit=2^31}): the file as a string, or as a uint8 tensor. More bytes than limit: an error.]],
  ["tl.data.fashion_mnist"] = [[
fashion_mnist{root=, train=true}: images uint8 (N, 28, 28), labels int64 (N); 60,000 or 10,000 of them (Xiao et al.
2017). root: /usr/share/datasets/fashion-mnist (Debian's dataset-fashion-mnist), else data/fashion-mnist,
data/FashionMNIST/raw, data.]],
  ["tl.data.mnist"] = [[
mnist{root=, train=true}: images uint8 (N, 28, 28), labels int64 (N). root: data/mnist, data/MNIST/raw, data.]],

  ["tl.save"] = [[
tl.save(path, value): a tensor, number, string, boolean or nested table of them as a safetensors file, written whole or
not at all. A flat table name -> tensor is a plain file, which every other tool reads; anything else keeps its structure
in __metadata__. Keys are strings and integers.]],
  ["tl.load"] = [[
tl.load(path, {device="cpu"}): what tl.save wrote, or of any other safetensors file a table name -> tensor; and the
file's __metadata__ (key -> string).]],
  ["tl.progress"] = [[
tl.progress(what, {total=, desc="", unit="it", unit_scale=1, interval=0.1, line_interval=30, file=io.stderr}): iterates
over a loader, an iterator function, a list (i, value) or 1..n and shows steps done, elapsed and remaining time and the
rate (unit_scale units a step: the batch size for images/s). On a terminal a bar, redrawn every `interval` seconds;
elsewhere a line every `line_interval` seconds and one at the end. bar:set{loss=0.1} adds values behind the rate;
bar:close() ends a loop that was left early. Without a loop over it: bar:start(done) begins, bar:update(n) tells of n more
steps. bar:write(text) puts a line above the bar.]],
}
