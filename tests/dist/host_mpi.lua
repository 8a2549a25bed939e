-- host_mpi.lua LEVEL: the program has begun MPI itself, with that level of threads.
local ffi = require "ffi"
ffi.cdef "int MPI_Init_thread(int *, char ***, int, int *); int MPI_Finalize(void);"
local mpi = ffi.load("libmpi.so.40", true)
mpi.MPI_Init_thread(nil, nil, tonumber(arg[1]), ffi.new "int[1]")
local tl = require "tlua"
tl.dist.init { timeout = 20 }
assert(tl.dist.all_reduce(tl.ones(2)):sum():item() == 2 * tl.dist.world_size())
tl.dist.destroy()
mpi.MPI_Finalize()
tl.dist.init()
