-- train.lua: what the REPL's ?name shows of tl.train: pure data.
return {
  ["tl.train"] = [[
Trainer, and the parts it is made of, each of which serves a loop of one's own: save_checkpoint, load_checkpoint,
Checkpoints.]],

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
