-- ranks.lua: `tlua --ranks N script`: the same script in N processes, by Open MPI's mpirun.
local ffi = require "ffi"
local system = require "tlua.system"

ffi.cdef [[
int tlua_execvp(const char *file, const char *const *argv) __asm__("execvp");
unsigned tlua_geteuid(void) __asm__("geteuid");
long tlua_sysconf(int name) __asm__("sysconf");
int tlua_fork(void) __asm__("fork");
int tlua_prctl(int option, unsigned long value) __asm__("prctl");
int tlua_waitpid(int pid, int *status, int options) __asm__("waitpid");
void tlua_exit_now(int code) __asm__("_exit");
]]

local ranks = {}

-- Processes share the cores: without this each would start a thread for every core.
local function share_threads(n)
  if os.getenv "OMP_NUM_THREADS" then return end
  local cores = tonumber(ffi.C.tlua_sysconf(84)) -- _SC_NPROCESSORS_ONLN
  system.setenv("OMP_NUM_THREADS", tostring(math.max(1, math.floor(cores / n))))
end

local function words_of(n, arguments)
  local words = { "mpirun", "-n", tostring(n), "--oversubscribe", "--bind-to", "none" }
  if ffi.C.tlua_geteuid() == 0 then words[#words + 1] = "--allow-run-as-root" end
  words[#words + 1] = system.program() or "tlua" -- wherever PATH leads
  for _, word in ipairs(arguments) do words[#words + 1] = word end
  return words
end

local MISSING = "mpirun cannot be started: install openmpi-bin"

local function exec(words)
  local argv = ffi.new("const char *[?]", #words + 1)
  for i, word in ipairs(words) do argv[i - 1] = word end
  ffi.C.tlua_execvp(words[1], argv)
  return MISSING
end

-- Runs to the end of mpirun, which ends with this process, too. Returns the exit code; a message if it did not start.
local NOT_STARTED = 127
local function run(words)
  local pid = ffi.C.tlua_fork()
  if pid < 0 then return 1, "no more processes can be started" end
  if pid == 0 then
    ffi.C.tlua_prctl(1, 15) -- PR_SET_PDEATHSIG, SIGTERM
    exec(words)
    ffi.C.tlua_exit_now(NOT_STARTED)
  end
  local status = ffi.new("int[1]")
  while ffi.C.tlua_waitpid(pid, status, 0) ~= pid do end -- Ctrl-C goes to mpirun, too: wait for it
  local signal, code = status[0] % 128, math.floor(status[0] / 256) % 256
  if signal ~= 0 then return 128 + signal end
  return code, code == NOT_STARTED and MISSING or nil
end

--- Starts `tlua arguments` in n processes, and again up to `restarts` times when they fail. Returns an exit code and a
--- message for one that the ranks did not say themselves; with no restarts this process becomes mpirun.
function ranks.launch(n, restarts, arguments)
  share_threads(n)
  local words = words_of(n, arguments)
  if restarts == 0 then return 1, exec(words) end
  for attempt = 0, restarts do
    system.setenv("TLUA_RESTART", tostring(attempt))
    local code, message = run(words)
    if code == 0 or code == 130 or message or attempt == restarts then return code, message end
    io.stderr:write(("tlua: the ranks ended with code %d; restart %d of %d\n"):format(code, attempt + 1, restarts))
  end
end

return ranks
