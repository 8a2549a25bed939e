-- dist.lua: what the REPL's ?name shows of training on several ranks: pure data.
return {
  ["tl.dist"] = [[
dist: several processes (ranks) that train together, begun by `tlua --ranks N script`, mpirun, srun or torchrun. Ranks
count from 0. Every rank calls the same collectives in the same order; what differs is an error on every rank.
docs/dist.md.]],
  ["tl.dist.init"] = [[
init{timeout=600}: joins the other ranks: over MPI (mpirun, `tlua --ranks`, srun --mpi=pmix), or over TCP where
MASTER_ADDR and MASTER_PORT are set (with torchrun's RANK and WORLD_SIZE, or by plain srun). Alone this is rank 0 of 1.
timeout: seconds that a collective waits for the others before it fails with what is missing.]],
  ["tl.dist.destroy"] = "destroy(): leaves the group after what is queued. The end of a script does it, too.",
  ["tl.dist.is_initialized"] = "is_initialized(): was dist.init called?",
  ["tl.dist.rank"] = "rank(): this process's number, 0 .. world_size()-1.",
  ["tl.dist.world_size"] = "world_size(): how many ranks there are.",
  ["tl.dist.local_rank"] = "local_rank(): this process's number among those of its machine: which GPU it takes.",
  ["tl.dist.all_reduce"] = [[
all_reduce(t, "sum" | "mean" | "max" | "min", {async=false}): t becomes the reduction over all ranks. Any dtype (mean:
floating), any strides. async: returns at once an object whose wait() gives t.]],
  ["tl.dist.broadcast"] = "broadcast(t, rank, {async=false}): t becomes that rank's t.",
  ["tl.dist.all_gather"] = "all_gather(t, {async=false}): a tensor (world_size, shape of t): everybody's t, by rank.",
  ["tl.dist.reduce_scatter"] = [[
reduce_scatter(t, "sum" | ..., {async=false}): this rank's part, along dim 1, of the reduction of t over all ranks.]],
  ["tl.dist.barrier"] = "barrier(): waits until every rank came here.",
  ["tl.dist.print"] = "print(...): prints on rank 0 only.",
  ["tl.dist.log"] = "log(...): prints on every rank, \"[rank 1]\" before it.",
  ["tl.dist.same"] = "same(text): is the text equal on all ranks? true, or false and rank 0's.",
  ["tl.nn.parallel.DistributedDataParallel"] = [[
DistributedDataParallel(model, {bucket_cap_mb=25, find_unused_parameters=false, broadcast_buffers=true}): a model whose
backward leaves the mean of all ranks' gradients in every parameter. Gradients are exchanged in buckets while backward
still computes (Li et al., VLDB 2020). Parameters and buffers begin as rank 0's; models that differ are an error.
ddp(...) calls the model, ddp:loss(...) its loss method if it has one (language models do).
ddp:no_sync(f, ...): backward in f adds up locally. find_unused_parameters: grad of what no rank uses stays nil.]],
  ["tl.optim.ZeroRedundancy"] = [[
ZeroRedundancy(optim.AdamW, params, options): that optimizer with its state divided among the ranks (ZeRO stage 1,
Rajbhandari et al. 2020). state_dict() is the whole state and is called on every rank. Schedules and GradScaler take it;
scaler:unscale_(zero), or zero:average_gradients() without a scaler, leaves the mean gradient in the parameters for
nn.utils.clip_grad_norm_ before the step (DistributedDataParallel does so, too).]],
}
