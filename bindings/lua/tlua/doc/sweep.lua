-- Doc strings of tl.sweep.
return {
  ["tl.sweep.run"] = [[
tl.sweep.run{space=, objective=, trials=, ...} -> study: a hyperparameter sweep; each trial is a process of its own that
runs this script again up to here.
  space      { name = distribution | value | function(p) } (a function: of the parameters drawn so far)
  objective  function(p, trial) -> number; or return trial:prune()
  trials     how many there shall be in all (a grid needs none)
  name="sweep", storage="sweep.db" (a file, or postgresql://...), direction="minimize", workers=1 (0: in this process),
  sampler=TPE{}, pruner=none, retries=0, devices={"cuda:0", ...}, pin=true, patience=60 (seconds without a sign of life
  after which another machine's trial is taken over), quiet=false
Started again, it goes on where it was.]],
  ["tl.sweep.open"] = [[
tl.sweep.open(storage, name) -> study: one that exists; the name may be left out if there is one only.
study:best(), study:trials(), study:counts(), study:failures(), study:enqueue(params), study:to_csv(path),
study:close()]],
  ["tl.sweep.uniform"] = "tl.sweep.uniform(low, high): evenly in [low, high].",
  ["tl.sweep.loguniform"] = "tl.sweep.loguniform(low, high): evenly in the logarithm; 0 < low.",
  ["tl.sweep.quniform"] = "tl.sweep.quniform(low, high, step): one of low, low + step, ... up to high.",
  ["tl.sweep.qloguniform"] = "tl.sweep.qloguniform(low, high, step): those of quniform, evenly in the logarithm.",
  ["tl.sweep.int"] = "tl.sweep.int(low, high, step=1): a whole number, both ends included.",
  ["tl.sweep.logint"] = "tl.sweep.logint(low, high): a whole number, evenly in the logarithm; 1 <= low.",
  ["tl.sweep.choice"] = "tl.sweep.choice{a, b, ...}: one of these numbers, strings or booleans.",
  ["tl.sweep.Random"] = "tl.sweep.Random{seed=}: every trial independent of the others.",
  ["tl.sweep.Sobol"] = "tl.sweep.Sobol{seed=}: a scrambled Sobol sequence; at most 64 parameters.",
  ["tl.sweep.Grid"] = [[
tl.sweep.Grid{points=5}: every combination once. A continuous range gives `points` values; points={lr=3, all=5} sets
them one by one.]],
  ["tl.sweep.TPE"] = [[
tl.sweep.TPE{seed=, startup=10, candidates=24}: multivariate tree-structured Parzen estimator: learns from the trials
that are over; those that run count as bad ones.]],
  ["tl.sweep.Median"] = [[
tl.sweep.Median{startup=5, warmup=0, interval=1}: ends trials whose best value so far is worse than the median of what
complete trials had at that step.]],
  ["tl.sweep.ASHA"] = [[
tl.sweep.ASHA{max_steps=, grace=1, eta=3}: at steps grace, grace*eta, ... only the best 1/eta of those that came so far
go on.]],
  ["tl.sweep.Hyperband"] = "tl.sweep.Hyperband{max_steps=, grace=1, eta=3}: ASHA in brackets that start ever later.",
  ["tl.sweep.none"] = "tl.sweep.none: the pruner that ends nothing.",
  ["trial:report"] = "trial:report(step, value): records a value on the way. true: return trial:prune().",
  ["trial:prune"] = "return trial:prune(): ends the trial early.",
  ["trial:set"] = "trial:set(name, value): records a number, a string, a boolean, a tensor or a table.",
}
