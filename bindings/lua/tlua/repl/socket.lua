-- socket.lua: UNIX sockets between `tlua --control` and `tlua attach`: one folder of the user's, one socket a process.
-- A message is its length in decimal, a line break, and so many bytes.
local ffi = require "ffi"
local system = require "tlua.system"

ffi.cdef [[
typedef struct { unsigned short family; char path[108]; } tlua_sockaddr;
typedef struct { int pid; unsigned uid, gid; } tlua_peer;
typedef struct { int fd; short events, revents; } tlua_pollfd;
int tlua_socket(int domain, int type, int protocol) __asm__("socket");
int tlua_bind(int fd, const tlua_sockaddr *address, unsigned bytes) __asm__("bind");
int tlua_connect(int fd, const tlua_sockaddr *address, unsigned bytes) __asm__("connect");
int tlua_listen(int fd, int backlog) __asm__("listen");
int tlua_accept4(int fd, void *address, void *bytes, int flags) __asm__("accept4");
int tlua_getsockopt(int fd, int level, int name, void *value, unsigned *bytes) __asm__("getsockopt");
ptrdiff_t tlua_recv(int fd, void *buffer, size_t bytes, int flags) __asm__("recv");
ptrdiff_t tlua_send(int fd, const void *buffer, size_t bytes, int flags) __asm__("send");
int tlua_close(int fd) __asm__("close");
int tlua_fcntl(int fd, int command, ...) __asm__("fcntl");
int tlua_poll(tlua_pollfd *list, unsigned long n, int milliseconds) __asm__("poll");
unsigned tlua_getuid(void) __asm__("getuid");
int tlua_unlink(const char *path) __asm__("unlink");
unsigned tlua_umask(unsigned mask) __asm__("umask");
int tlua_access(const char *path, int mode) __asm__("access");
char *tlua_strerror(int number) __asm__("strerror");
int tlua_lstat_owner(int folder, const char *path, void *buffer, int flags) __asm__("fstatat");
]]
local C = ffi.C

local AF_UNIX, SOCK_STREAM, NONBLOCK, CLOEXEC = 1, 1, 0x800, 0x80000
local SOL_SOCKET, SO_PEERCRED, MSG_NOSIGNAL, MSG_DONTWAIT = 1, 17, 0x4000, 0x40
local EAGAIN, EINTR, ECONNREFUSED = 11, 4, 111
local F_SETFL = 4

local socket = { most = 1024 * 1024 } -- bytes of a message, and of what may wait to be sent

local function failure(what)
  return nil, what .. ": " .. ffi.string(C.tlua_strerror(ffi.errno()))
end

--- The folder of this user's sockets: $XDG_RUNTIME_DIR/tlua, or /tmp/tlua-UID, which must be the user's own.
function socket.folder()
  local runtime = os.getenv "XDG_RUNTIME_DIR"
  local folder = runtime and runtime:sub(1, 1) == "/" and runtime .. "/tlua" or ("/tmp/tlua-%d"):format(C.tlua_getuid())
  system.make_folder(folder)
  -- struct stat: st_mode at byte 24, st_uid at 28 on x86-64; 16 and 24 on the others with a 64-bit Linux
  local buffer = ffi.new("uint8_t[256]")
  if C.tlua_lstat_owner(-100, folder, buffer, 0x100) ~= 0 then return failure(folder) end -- AT_FDCWD, no symlinks
  local x64 = ffi.arch == "x64"
  local mode = ffi.cast("uint32_t *", buffer + (x64 and 24 or 16))[0]
  local owner = ffi.cast("uint32_t *", buffer + (x64 and 28 or 24))[0]
  if owner ~= C.tlua_getuid() or bit.band(mode, 0xf000) ~= 0x4000 or bit.band(mode, 63) ~= 0 then
    return nil, folder .. " is not a folder that only you can use: remove it"
  end
  return folder
end

local function address_of(path)
  local address = ffi.new("tlua_sockaddr")
  if #path >= 108 then return nil, "the path of the socket is too long: " .. path end
  address.family = AF_UNIX
  ffi.copy(address.path, path)
  return address
end

--- A listening socket at `path` with mode 0600, not blocking.
function socket.listen(path)
  local address, message = address_of(path)
  if not address then return nil, message end
  local fd = C.tlua_socket(AF_UNIX, SOCK_STREAM + NONBLOCK + CLOEXEC, 0)
  if fd < 0 then return failure("socket") end
  C.tlua_unlink(path)
  local mask = C.tlua_umask(127) -- 0177
  local bound = C.tlua_bind(fd, address, ffi.sizeof(address))
  local number = ffi.errno()
  C.tlua_umask(mask)
  ffi.errno(number)
  if bound ~= 0 or C.tlua_listen(fd, 64) ~= 0 then
    local _, text = failure(path)
    C.tlua_close(fd)
    return nil, text
  end
  return fd
end

--- A connection to the socket at `path`. nil, a message and "dead" (nobody listens there) or "busy" (those who wait to
--- be accepted are too many) where there is none.
function socket.connect(path)
  local address, message = address_of(path)
  if not address then return nil, message end
  local fd = C.tlua_socket(AF_UNIX, SOCK_STREAM + CLOEXEC + NONBLOCK, 0)
  if fd < 0 then return failure("socket") end
  if C.tlua_connect(fd, address, ffi.sizeof(address)) == 0 then
    C.tlua_fcntl(fd, F_SETFL, ffi.cast("int", 0))
    return fd
  end
  local number = ffi.errno()
  local _, text = failure(path)
  C.tlua_close(fd)
  return nil, text, number == ECONNREFUSED and "dead" or number == EAGAIN and "busy" or nil
end

--- The next client of this very user that waits, nil if there is none. Another user's is closed at once.
function socket.accept(listener)
  local fd = C.tlua_accept4(listener, nil, nil, NONBLOCK + CLOEXEC)
  if fd < 0 then return nil end
  local peer, bytes = ffi.new("tlua_peer"), ffi.new("unsigned[1]", ffi.sizeof("tlua_peer"))
  if C.tlua_getsockopt(fd, SOL_SOCKET, SO_PEERCRED, peer, bytes) == 0 and peer.uid == C.tlua_getuid() then return fd end
  C.tlua_close(fd)
  return nil
end

function socket.close(fd) C.tlua_close(fd) end

local chunk = ffi.new("char[?]", 65536)

--- At most 64 KB that came. "" when nothing did (or, with `wait`, after a signal); nil when the other side is gone.
function socket.receive(fd, wait)
  local n = tonumber(C.tlua_recv(fd, chunk, 65536, wait and 0 or MSG_DONTWAIT))
  if n > 0 then return ffi.string(chunk, n) end
  local number = ffi.errno()
  if n < 0 and (number == EAGAIN or number == EINTR) then return "" end
  return nil
end

--- Sends what fits now. Returns how many bytes went; nil when the other side is gone.
function socket.send(fd, text, wait)
  local n = tonumber(C.tlua_send(fd, text, #text, MSG_NOSIGNAL + (wait and 0 or MSG_DONTWAIT)))
  if n >= 0 then return n end
  local number = ffi.errno()
  return (number == EAGAIN or number == EINTR) and 0 or nil
end

--- Waits at most so many milliseconds until something comes, or can be sent where sending[i]. Returns at a signal, too.
function socket.wait(fds, milliseconds, sending)
  local list = ffi.new("tlua_pollfd[?]", #fds)
  for i, fd in ipairs(fds) do
    list[i - 1].fd, list[i - 1].events = fd, sending and sending[i] and 5 or 1 -- POLLIN, POLLOUT
  end
  return C.tlua_poll(list, #fds, milliseconds) > 0
end

function socket.pack(text) return ("%d\n%s"):format(#text, text) end

--- The first whole message in `buffer` and the rest. nil and the buffer when none is whole; false when it is none.
function socket.unpack(buffer)
  local digits, start = buffer:match("^(%d+)\n()")
  if not digits then
    if #buffer > 8 or buffer:find("[^%d]") then return false end
    return nil, buffer
  end
  local n = tonumber(digits)
  if n > socket.most then return false end
  if #buffer < start - 1 + n then return nil, buffer end
  return buffer:sub(start, start - 1 + n), buffer:sub(start + n)
end

--- The folder's sockets: { { pid=, path= } }.
function socket.list()
  local folder, message = socket.folder()
  if not folder then return nil, message end
  local pipe = io.popen(("ls '%s' 2>/dev/null"):format(folder:gsub("'", "'\\''")))
  local found = {}
  for name in pipe:lines() do
    local pid = tonumber(name:match("^(%d+)%.sock$"))
    if pid then found[#found + 1] = { pid = pid, path = folder .. "/" .. name } end
  end
  pipe:close()
  return found
end

function socket.path(folder, pid) return ("%s/%d.sock"):format(folder, pid) end


function socket.remove(path) C.tlua_unlink(path) end

return socket
