-- system.lua: what the library, its tools and its tests ask of the system alike: clocks, the program's file, the
-- environment, terminals, folders. Linux.
local ffi = require "ffi"

ffi.cdef [[
int tlua_system_clock(int clock, int64_t *seconds_and_nanoseconds) __asm__("clock_gettime");
int64_t tlua_system_readlink(const char *path, char *buffer, size_t bytes) __asm__("readlink");
int tlua_system_setenv(const char *name, const char *value, int overwrite) __asm__("setenv");
int tlua_system_getpid(void) __asm__("getpid");
int tlua_system_ioctl(int file, unsigned long request, ...) __asm__("ioctl");
int tlua_system_mkdir(const char *path, unsigned mode) __asm__("mkdir");
int tlua_system_kill(int pid, int signal) __asm__("kill");
typedef struct {
  uint64_t inode; int64_t offset; unsigned short length; unsigned char type; char name[256];
} tlua_dirent;
void *tlua_system_opendir(const char *name) __asm__("opendir");
tlua_dirent *tlua_system_readdir(void *directory) __asm__("readdir");
int tlua_system_closedir(void *directory) __asm__("closedir");
]]

local C = ffi.C

local system = {}

local timespec = ffi.new("int64_t[2]")
local function clock(which)
  C.tlua_system_clock(which, timespec)
  return tonumber(timespec[0]) + tonumber(timespec[1]) * 1e-9
end

--- Seconds since some moment; never set back.
function system.now() return clock(1) end -- CLOCK_MONOTONIC
--- Seconds since 1970.
function system.time() return clock(0) end -- CLOCK_REALTIME

--- Where a symbolic link leads; nil if it is none.
function system.link(path)
  local buffer = ffi.new("char[4096]")
  local n = tonumber(C.tlua_system_readlink(path, buffer, 4096))
  return n > 0 and ffi.string(buffer, n) or nil
end

--- The running program's file; nil where the system does not tell.
function system.program() return system.link("/proc/self/exe") end

function system.pid() return C.tlua_system_getpid() end

--- Sets a variable of the environment, for what is started from now on.
function system.setenv(name, value) C.tlua_system_setenv(name, value, 1) end

--- The columns of the terminal at fd, 80 where it does not know them; nil when fd is no terminal.
function system.columns(fd)
  local size = ffi.new("unsigned short[4]")
  if C.tlua_system_ioctl(fd, ffi.cast("unsigned long", 0x5413), size) ~= 0 then return nil end -- TIOCGWINSZ
  return size[1] > 0 and size[1] or 80
end

--- Makes a folder that only its owner enters. What fails shows when it is used.
function system.make_folder(path) C.tlua_system_mkdir(path, 448) end -- 0700

--- Makes a folder, and those above it, with the usual rights. What fails shows when it is used.
function system.make_folders(path)
  for above in path:gmatch("()/") do
    if above > 1 then C.tlua_system_mkdir(path:sub(1, above - 1), 511) end -- 0777, less the umask
  end
  C.tlua_system_mkdir(path, 511)
end

--- A folder's entries, name -> its type (readdir's d_type), without "." and ".."; nil if it cannot be read.
function system.entries(path)
  local directory = C.tlua_system_opendir(path)
  if directory == nil then return nil end
  local list = {}
  while true do
    local entry = C.tlua_system_readdir(directory)
    if entry == nil then break end
    local name = ffi.string(entry.name)
    if name ~= "." and name ~= ".." then list[name] = entry.type end
  end
  C.tlua_system_closedir(directory)
  return list
end

--- Does a process of this number run here?
function system.is_running(pid) return C.tlua_system_kill(pid, 0) == 0 or ffi.errno() == 1 end -- EPERM

return system
