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
int tlua_kill(int pid, int signal) __asm__("kill");
int tlua_sigemptyset(void *set) __asm__("sigemptyset");
int tlua_sigaddset(void *set, int signal) __asm__("sigaddset");
int tlua_sigprocmask(int how, const void *set, void *former) __asm__("sigprocmask");
int tlua_sigtimedwait(const void *set, void *info, const long *seconds_and_nanoseconds) __asm__("sigtimedwait");
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
end

local SIGINT, SIGTERM, SIGCHLD = 2, 15, 17
local SIG_BLOCK, SIG_SETMASK = 0, 2
local WNOHANG = 1
local PATIENCE = 2 -- seconds

-- Waits for the end of mpirun. Returns its status, and the signal that came meanwhile, 0: none. A terminal's Ctrl-C
-- reaches mpirun, too, which ends the ranks; a signal for this process alone, or SIGTERM, is passed on: once, for a
-- second one lets mpirun exit at once, and the ranks may be writing a checkpoint.
local SI_KERNEL = 0x80
local function wait_for(pid, signals)
  local status, second, info = ffi.new("int[1]"), ffi.new("long[2]", 1, 0), ffi.new("int[32]")
  local came, since, passed = 0, 0, false
  while ffi.C.tlua_waitpid(pid, status, WNOHANG) == 0 do
    local signal = ffi.C.tlua_sigtimedwait(signals, info, second)
    if signal == SIGINT and info[2] == SI_KERNEL then passed = true end -- si_code: a terminal's
    if (signal == SIGINT or signal == SIGTERM) and came == 0 then came, since = signal, os.time() end
    local patient = came == SIGINT and os.time() - since < PATIENCE
    if signal == SIGTERM or (came ~= 0 and signal < 0 and not passed and not patient) then
      ffi.C.tlua_kill(pid, SIGTERM)
      passed = true
    end
  end
  return status[0], came
end

-- Runs to the end of mpirun, which ends with this process, too. Returns the exit code; a message if it did not start;
-- whether a signal ended it.
local NOT_STARTED = 127
local function run(words)
  local signals, former = ffi.new("char[128]"), ffi.new("char[128]") -- sigset_t
  ffi.C.tlua_sigemptyset(signals)
  for _, signal in ipairs { SIGINT, SIGTERM, SIGCHLD } do ffi.C.tlua_sigaddset(signals, signal) end
  ffi.C.tlua_sigprocmask(SIG_BLOCK, signals, former)
  local pid = ffi.C.tlua_fork()
  if pid < 0 then return 1, "no more processes can be started" end
  if pid == 0 then
    ffi.C.tlua_sigprocmask(SIG_SETMASK, former, nil)
    ffi.C.tlua_prctl(1, SIGTERM) -- PR_SET_PDEATHSIG
    exec(words)
    ffi.C.tlua_exit_now(NOT_STARTED)
  end
  local status, came = wait_for(pid, signals)
  ffi.C.tlua_sigprocmask(SIG_SETMASK, former, nil)
  if came ~= 0 then return 128 + came, nil, true end
  local signal, code = status % 128, math.floor(status / 256) % 256
  if signal ~= 0 then return 128 + signal end
  return code, code == NOT_STARTED and MISSING or nil
end

--- Starts `tlua arguments` in n processes, and again up to `restarts` times when they fail. Returns an exit code (130
--- after Ctrl-C) and a message for one that the ranks did not say themselves.
function ranks.launch(n, restarts, arguments)
  share_threads(n)
  local words = words_of(n, arguments)
  for attempt = 0, restarts do
    if restarts > 0 then system.setenv("TLUA_RESTART", tostring(attempt)) end
    local code, message, signalled = run(words)
    if code == 0 or code == 130 or signalled or message or attempt == restarts then return code, message end
    io.stderr:write(("tlua: the ranks ended with code %d; restart %d of %d\n"):format(code, attempt + 1, restarts))
  end
end

return ranks
