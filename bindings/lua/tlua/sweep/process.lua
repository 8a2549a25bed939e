-- process.lua: what a sweep asks of the system: clocks, processes, signals, cores. Linux.
local ffi = require "ffi"
local system = require "tlua.system"

ffi.cdef [[
typedef struct { int fd; short events, revents; } tlua_sweep_pollfd;
typedef struct { uint64_t bits[128]; } tlua_sweep_blob; // room for sigset_t, cpu_set_t and the spawn structures
int tlua_sweep_getppid(void) __asm__("getppid");
int tlua_sweep_kill(int pid, int signal) __asm__("kill");
int tlua_sweep_prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d) __asm__("prctl");
int tlua_sweep_poll(tlua_sweep_pollfd *fds, unsigned long n, int milliseconds) __asm__("poll");
int tlua_sweep_pipe2(int *fds, int flags) __asm__("pipe2");
int tlua_sweep_fcntl(int fd, int command, ...) __asm__("fcntl");
int64_t tlua_sweep_read(int fd, void *buffer, size_t bytes) __asm__("read");
int tlua_sweep_close(int fd) __asm__("close");
int tlua_sweep_waitpid(int pid, int *status, int options) __asm__("waitpid");
int tlua_sweep_isatty(int fd) __asm__("isatty");
extern char **tlua_sweep_environ __asm__("environ");
char *tlua_sweep_strerror(int number) __asm__("strerror");
char *tlua_sweep_strsignal(int number) __asm__("strsignal");
int tlua_sweep_signalfd(int fd, const void *mask, int flags) __asm__("signalfd");
int tlua_sweep_sigprocmask(int how, const void *set, void *former) __asm__("sigprocmask");
int tlua_sweep_sigemptyset(void *set) __asm__("sigemptyset");
int tlua_sweep_sigaddset(void *set, int signal) __asm__("sigaddset");
int tlua_sweep_getaffinity(int pid, size_t bytes, void *set) __asm__("sched_getaffinity");
int tlua_sweep_setaffinity(int pid, size_t bytes, const void *set) __asm__("sched_setaffinity");
int tlua_sweep_spawn(int *pid, const char *path, const void *actions, const void *attributes,
                     const char *const *argv, char *const *envp) __asm__("posix_spawn");
int tlua_sweep_actions_init(void *) __asm__("posix_spawn_file_actions_init");
int tlua_sweep_actions_destroy(void *) __asm__("posix_spawn_file_actions_destroy");
int tlua_sweep_actions_dup2(void *, int fd, int as) __asm__("posix_spawn_file_actions_adddup2");
int tlua_sweep_actions_open(void *, int fd, const char *path, int flags, unsigned mode)
  __asm__("posix_spawn_file_actions_addopen");
int tlua_sweep_attr_init(void *) __asm__("posix_spawnattr_init");
int tlua_sweep_attr_destroy(void *) __asm__("posix_spawnattr_destroy");
int tlua_sweep_attr_setflags(void *, short flags) __asm__("posix_spawnattr_setflags");
int tlua_sweep_attr_setpgroup(void *, int group) __asm__("posix_spawnattr_setpgroup");
int tlua_sweep_attr_setsigmask(void *, const void *set) __asm__("posix_spawnattr_setsigmask");
int tlua_sweep_attr_setsigdefault(void *, const void *set) __asm__("posix_spawnattr_setsigdefault");
]]

local C = ffi.C
local CLOEXEC, NONBLOCK = 0x80000, 0x800

local process = {
  SIGINT = 2, SIGKILL = 9, SIGTERM = 15, SIGCHLD = 17,
  now = system.now, time = system.time, pid = system.pid, setenv = system.setenv, program = system.program,
}

local function blob() return ffi.new "tlua_sweep_blob" end

local function fail(what) error(("sweep: %s: %s"):format(what, ffi.string(C.tlua_sweep_strerror(ffi.errno()))), 0) end

-- ---- time ----

--- Waits. Ctrl-C ends the wait.
function process.sleep(seconds) C.tlua_sweep_poll(nil, 0, math.ceil(seconds * 1000)) end

-- ---- who runs ----

function process.parent() return C.tlua_sweep_getppid() end
function process.kill(pid, signal) return C.tlua_sweep_kill(pid, signal) == 0 end

--- From now on the kernel kills this process when `parent` ends; it is gone already: false.
function process.die_with(parent)
  C.tlua_sweep_prctl(1, process.SIGKILL, 0, 0, 0) -- PR_SET_PDEATHSIG
  return process.parent() == parent
end

local function read_line(path)
  local file = io.open(path, "rb")
  local text = file and file:read("*l")
  if file then file:close() end
  return text
end

-- When a process started, in clock ticks since the machine did: pids are used again, this pair is not. Nil: there is no
-- such process, or it is a zombie.
local function start_of(pid)
  local stat = read_line(("/proc/%d/stat"):format(pid))
  local state, rest = (stat or ""):match("^.*%)%s(%a)(.*)$")
  if not state or state == "Z" or state == "X" then return nil end
  local fields = {}
  for field in rest:gmatch("%S+") do fields[#fields + 1] = field end
  return fields[19]
end

-- Processes that see the same pids: one boot of one machine, one pid namespace.
local function host()
  return (read_line("/proc/sys/kernel/random/boot_id") or "?") .. "/" .. (system.link("/proc/self/ns/pid") or "?")
end

--- A text that names this process among all of all machines.
function process.identity()
  local pid = process.pid()
  return ("%s %d %s"):format(host(), pid, start_of(pid) or "?")
end

--- Does the process of that name still run? Nil: it belongs to another machine.
function process.is_alive(identity)
  local where, pid, start = identity:match("^(%S+) (%d+) (%S+)")
  if where ~= host() then return nil end
  return start_of(tonumber(pid)) == start
end

--- The words of this process's command line.
function process.command_line()
  local file = assert(io.open("/proc/self/cmdline", "rb"))
  local text = file:read("*a")
  file:close()
  local words = {}
  for word in text:gmatch("([^%z]*)%z") do words[#words + 1] = word end
  return words
end

function process.host_name() return read_line("/proc/sys/kernel/hostname") or "?" end
function process.is_terminal(fd) return C.tlua_sweep_isatty(fd) == 1 end

--- Columns of the terminal at fd.
function process.columns(fd) return system.columns(fd) or 80 end

function process.strsignal(signal) return ffi.string(C.tlua_sweep_strsignal(signal)) end

-- ---- cores ----

--- The cores this process may use: 0, 1, ...
function process.cores()
  local set, list = blob(), {}
  if C.tlua_sweep_getaffinity(0, ffi.sizeof(set), set) ~= 0 then return { 0 } end
  for core = 0, ffi.sizeof(set) * 8 - 1 do
    local word = set.bits[math.floor(core / 64)]
    if bit.band(bit.rshift(word, core % 64), 1) ~= 0 then list[#list + 1] = core end
  end
  return list
end

--- Sets the cores that this process, and what it starts from now on, may use.
function process.use_cores(list)
  local set = blob()
  for _, core in ipairs(list) do
    local word = math.floor(core / 64)
    set.bits[word] = bit.bor(set.bits[word], bit.lshift(1ULL, core % 64))
  end
  return C.tlua_sweep_setaffinity(0, ffi.sizeof(set), set) == 0
end

-- ---- starting a process ----

local function environment(changes)
  local list = {}
  local current, i = C.tlua_sweep_environ, 0
  while current[i] ~= nil do
    local entry = ffi.string(current[i])
    if changes[entry:match("^[^=]*")] == nil then list[#list + 1] = entry end
    i = i + 1
  end
  for name, value in pairs(changes) do
    if value then list[#list + 1] = name .. "=" .. value end
  end
  return list
end

local function strings(list)
  local array = ffi.new("const char *[?]", #list + 1)
  for i, text in ipairs(list) do array[i - 1] = text end
  return array
end

-- A pipe whose reading end does not block.
local function pipe()
  local ends = ffi.new("int[2]")
  if C.tlua_sweep_pipe2(ends, CLOEXEC) ~= 0 then fail("pipe") end
  C.tlua_sweep_fcntl(ends[0], 4, ffi.cast("int", NONBLOCK)) -- F_SETFL
  return ends[0], ends[1]
end

--- Starts `words` in a process group of its own (a terminal's Ctrl-C does not reach it), with no input, its output in a
--- pipe, signals as they were. Returns pid, the pipe's reading end.
function process.spawn(words, changes)
  local reader, writer = pipe()
  local actions, attributes, signals, none = blob(), blob(), blob(), blob()
  C.tlua_sweep_actions_init(actions)
  C.tlua_sweep_actions_open(actions, 0, "/dev/null", 0, 0)
  C.tlua_sweep_actions_dup2(actions, writer, 1)
  C.tlua_sweep_actions_dup2(actions, writer, 2)
  C.tlua_sweep_attr_init(attributes)
  C.tlua_sweep_sigemptyset(none)
  C.tlua_sweep_sigemptyset(signals)
  for _, signal in ipairs { process.SIGINT, process.SIGTERM, process.SIGCHLD, 13 } do
    C.tlua_sweep_sigaddset(signals, signal)
  end
  C.tlua_sweep_attr_setsigdefault(attributes, signals)
  C.tlua_sweep_attr_setsigmask(attributes, none)
  C.tlua_sweep_attr_setpgroup(attributes, 0)
  C.tlua_sweep_attr_setflags(attributes, 2 + 4 + 8) -- SETPGROUP, SETSIGDEF, SETSIGMASK
  local pid = ffi.new("int[1]")
  local env = environment(changes)
  -- This very program, even if its file has been replaced meanwhile.
  local status = C.tlua_sweep_spawn(pid, "/proc/self/exe", actions, attributes, strings(words),
    ffi.cast("char *const *", strings(env)))
  C.tlua_sweep_actions_destroy(actions)
  C.tlua_sweep_attr_destroy(attributes)
  C.tlua_sweep_close(writer)
  if status ~= 0 then
    C.tlua_sweep_close(reader)
    ffi.errno(status)
    fail("cannot start " .. words[1])
  end
  return pid[0], reader
end

local status = ffi.new("int[1]")

--- Has the child ended? Returns nil, or "exit", code or "signal", number. With `block`: waits for it.
function process.reap(pid, block)
  if C.tlua_sweep_waitpid(pid, status, block and 0 or 1) ~= pid then return nil end
  local signal = bit.band(status[0], 127)
  if signal ~= 0 then return "signal", signal end
  return "exit", bit.band(bit.rshift(status[0], 8), 255)
end

local buffer = ffi.new("char[65536]")

--- What can be read from a pipe now: a text ("" if nothing), or nil at its end.
function process.read(fd)
  local n = tonumber(C.tlua_sweep_read(fd, buffer, 65536))
  if n > 0 then return ffi.string(buffer, n) end
  return n < 0 and "" or nil
end

function process.close(fd) C.tlua_sweep_close(fd) end

-- ---- waiting for many things ----

--- Blocks signals and makes them readable from a file instead. Returns the file and a function that ends it.
function process.catch(signals)
  local set, former = blob(), blob()
  C.tlua_sweep_sigemptyset(set)
  for _, signal in ipairs(signals) do C.tlua_sweep_sigaddset(set, signal) end
  C.tlua_sweep_sigprocmask(0, set, former)
  local fd = C.tlua_sweep_signalfd(-1, set, CLOEXEC + NONBLOCK)
  if fd < 0 then fail("signalfd") end
  return fd, function()
    C.tlua_sweep_close(fd)
    C.tlua_sweep_sigprocmask(2, former, nil)
  end
end

--- The signals that came: a list of numbers.
function process.signals(fd)
  local list = {}
  while true do
    local n = tonumber(C.tlua_sweep_read(fd, buffer, 128)) -- struct signalfd_siginfo
    if n ~= 128 then return list end
    list[#list + 1] = ffi.cast("uint32_t *", buffer)[0]
  end
end

--- Waits until one of the files can be read, at most so many seconds. Returns a set of those that can.
function process.wait(files, seconds)
  local array, ready = ffi.new("tlua_sweep_pollfd[?]", #files), {}
  for i, fd in ipairs(files) do array[i - 1].fd, array[i - 1].events = fd, 1 end
  C.tlua_sweep_poll(array, #files, math.max(0, math.ceil(seconds * 1000)))
  for i = 0, #files - 1 do
    if array[i].revents ~= 0 then ready[array[i].fd] = true end
  end
  return ready
end

return process
