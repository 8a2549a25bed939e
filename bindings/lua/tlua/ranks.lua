-- ranks.lua: `tlua --ranks N script`: the same script in N processes, by Open MPI's mpirun.
local ffi = require "ffi"

ffi.cdef [[
int tlua_execvp(const char *file, const char *const *argv) __asm__("execvp");
int tlua_setenv(const char *name, const char *value, int overwrite) __asm__("setenv");
unsigned tlua_geteuid(void) __asm__("geteuid");
long tlua_readlink(const char *path, char *buffer, size_t bytes) __asm__("readlink");
long tlua_sysconf(int name) __asm__("sysconf");
]]

local ranks = {}

local function quote(word) return "'" .. word:gsub("'", "'\\''") .. "'" end

-- The program's own file: mpirun starts that, wherever PATH leads.
local function program()
  local buffer = ffi.new("char[4096]")
  local n = ffi.C.tlua_readlink("/proc/self/exe", buffer, 4096)
  return n > 0 and ffi.string(buffer, n) or "tlua"
end

-- Processes share the cores: without this each would start a thread for every core.
local function share_threads(n)
  if os.getenv "OMP_NUM_THREADS" then return end
  local cores = tonumber(ffi.C.tlua_sysconf(84)) -- _SC_NPROCESSORS_ONLN
  ffi.C.tlua_setenv("OMP_NUM_THREADS", tostring(math.max(1, math.floor(cores / n))), 1)
end

local function words_of(n, arguments)
  local words = { "mpirun", "-n", tostring(n), "--oversubscribe", "--bind-to", "none" }
  if ffi.C.tlua_geteuid() == 0 then words[#words + 1] = "--allow-run-as-root" end
  words[#words + 1] = program()
  for _, word in ipairs(arguments) do words[#words + 1] = word end
  return words
end

local function exec(words)
  local argv = ffi.new("const char *[?]", #words + 1)
  for i, word in ipairs(words) do argv[i - 1] = word end
  ffi.C.tlua_execvp(words[1], argv)
  return "mpirun cannot be started: install openmpi-bin"
end

-- Runs to the end. Returns the exit code; Ctrl-C is 130.
local function run(words)
  local quoted = {}
  for i, word in ipairs(words) do quoted[i] = quote(word) end
  local status = os.execute(table.concat(quoted, " "))
  if status % 256 ~= 0 then return 128 + status % 128 end
  return math.floor(status / 256)
end

--- Starts `tlua arguments` in n processes, and again up to `restarts` times when they fail. Returns an exit code and a
--- message for one that the ranks did not say themselves; with no restarts this process becomes mpirun.
function ranks.launch(n, restarts, arguments)
  share_threads(n)
  local words = words_of(n, arguments)
  if restarts == 0 then return 1, exec(words) end
  for attempt = 0, restarts do
    ffi.C.tlua_setenv("TLUA_RESTART", tostring(attempt), 1)
    local code = run(words)
    if code == 0 or code == 130 or attempt == restarts then return code end
    io.stderr:write(("tlua: the ranks ended with code %d; restart %d of %d\n"):format(code, attempt + 1, restarts))
  end
end

return ranks
