-- train.lua: what the REPL's ?name shows of tl.train: pure data.
return {
  ["tl.train"] = [[
Trainer, and the parts it is made of, each of which serves a loop of one's own: save_checkpoint, load_checkpoint,
Checkpoints; EMA; the loggers Console, CSV, JSONL, TensorBoard.]],

  ["tl.train.Trainer"] = [[
Trainer{...}: the training loop with everything around it. trainer:fit() trains, trainer:evaluate(batches) gives means.
- model=, optimizer=, train=: a DataLoader, or function(epoch, used) -> iterator (used: batches the epoch has given before).
- loss=: function(model, batch...) -> loss: the mean over the batch's samples; or the sum of losses, their count: tokens,
  say; the step's gradient is that of all sums / all counts over micro-batches and ranks. A third result, a table name ->
  sum (without a count: mean), is logged in the same way. Batches are moved to the model's device.
- epochs=, steps=: the end, whichever comes first. validation=: batches; evaluate_every=: steps (default: each epoch).
- accumulate=1: micro-batches a step. clip=: the largest gradient norm. amp="bfloat16" or {dtype=, device=}. scaler=: made
  for float16 (false: none). ema=0.999, or an EMA: its weights are evaluated, too. scheduler=, scheduler_every="step" or
  "epoch"; ReduceLROnPlateau steps with the metric.
- monitor="validation/loss", mode="min" or "max": the metric. early_stopping={patience=3, min_delta=0}: so many evaluations
  without a better one.
- directory=: checkpoints; save_every=: steps (default: each epoch), keep_last=2, keep_best=1. resume=true goes on from the
  newest, bit for bit; without it a directory with checkpoints is an error. state={name=object}: more to keep.
- log_every=50: steps; loggers={"csv", "jsonl", "tensorboard"}: files in directory, or objects with log(step, values). console=true.
  config=: a text for loggers that take one. unit=: what is counted: "tokens", or "samples" without a count. seed=: of a run that begins.
- on_step=function(trainer), on_evaluate=function(trainer, values).
Ctrl-C and SIGTERM: the step is ended, a checkpoint written, the program left with 130 or 143; the second one kills. With
ranks (tl.dist) the model is wrapped for them, rank 0 logs and saves, and all ranks stop together.]],
  ["tl.train.EMA"] = [[
EMA(model, {decay=0.999, warmup=false}): the exponential moving average of the weights; buffers are taken as they are.
ema:update() after each step; ema:apply(f, ...) runs f while the model has the averaged weights; ema:state_dict(),
ema:load_state_dict(s). warmup: the decay of update t is at most (1 + t) / (10 + t).]],
  ["tl.train.CSV"] = [[
CSV(path): csv:log(step, {name = number, ...}) writes a row, which is in the file when it returns. Columns: step, then the
names of the first row; a later name gets a column at the right, empty in the rows before. csv:rewind(step, n) before the
first row continues a file, without its rows after step (of the rows of step itself the first n stay); else an old file is
replaced. csv:close().]],
  ["tl.train.JSONL"] = [[
JSONL(path): as CSV, but each row is a line of JSON. nan and infinities are strings: "nan", "inf", "-inf".]],
  ["tl.train.TensorBoard"] = [[
TensorBoard(directory): event files there, for `tensorboard --logdir directory`: w:log(step, {name = number, ...}) (a/b is
chart b of the group a), w:scalar(tag, number, step), w:text(tag, markdown, step=0), w:histogram(tag, tensor, step),
w:rewind(step): what earlier files have of later steps is void, w:close(). What was written can be read at once.]],
  ["tl.train.Console"] = [[
Console{file=io.stderr}: console:log(step, {name = number, ...}). On a terminal a progress bar with losses, learning rate
and speed, and a line for each row with a value of validation; elsewhere a line for each row. console:start{done=0,
total=} begins, console:tick() tells of a step, console:write(text) writes a line, console:close() ends.]],

  ["tl.train.save_checkpoint"] = [[
save_checkpoint(path, {model=, optimizer=, scheduler=, scaler=, loader=, step=, ...}): one safetensors file, written whole
or not at all. Objects with state_dict() and load_state_dict(), and generators, give their state; numbers, strings,
booleans, tensors and tables of them are kept as they are; the default generator's state is always in it. With several
ranks all call it, rank 0 writes, and every rank's random numbers and loaders are kept. A loader may be in the middle of
an epoch.]],
  ["tl.train.load_checkpoint"] = [[
load_checkpoint(path, {model=, optimizer=, ...}, {rng=true}): each object takes its state back, and the default generator
does (rng=false: it stays as it is). Returns a table of everything else in the file: the values, and states that nobody
asked for. A run that goes on so computes, on the same machine, the very bits of the uninterrupted one. An object that the
file holds nothing for, or another number of ranks, is an error.]],
  ["tl.train.Checkpoints"] = [[
Checkpoints(directory, {keep_last=2, keep_best=1, mode="min"}): the checkpoints step-00000100.safetensors ... of a run.
c:save(step, {model=, ...}, metric) writes one and then deletes what is neither among the keep_last newest nor among the
keep_best of the best metric (mode "max": more is better). c:load({model=, ...}, {rng=true}) is load_checkpoint() of the
newest, nil where there is none yet; a file that is damaged is named on stderr, and the one before it is taken; when none
can be read it is an error. c:newest() and c:best() are paths (best: and the metric), c:wants(metric) tells whether a
checkpoint with this metric would be among the best.]],
}
