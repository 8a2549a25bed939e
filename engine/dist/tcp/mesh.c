/* mesh.c: how ranks find each other over TCP. Rank 0 listens at an address that all know; the others connect to it, each
 * with a listening socket of its own; when all are there rank 0 tells everybody the addresses, and every rank connects to
 * those below it. Strangers that connect meanwhile are sent away. */
#define _GNU_SOURCE /* accept4 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"
#include "core/memory.h"
#include "dist/tcp/tcp.h"

#define MAGIC 0x746c7561u /* "tlua"; it differs where the byte order does */
#define GREETING_SECONDS 5.0

/* What a rank says that connects. job: 0 to rank 0, who gives it out, so that two jobs on one machine do not mix. */
typedef struct hello {
  uint32_t magic, abi;
  int32_t size, rank;
  uint32_t port; /* where it listens itself */
  uint32_t unused;
  uint64_t job;
} hello;

/* Rank 0's answer: addresses follow if `why` is empty. */
typedef struct answer {
  uint32_t magic;
  char why[116];
  uint64_t job;
} answer;

typedef struct place {
  struct sockaddr_storage address;
  uint32_t length;
} place;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- bytes within a time ---- */

static bool ready(int fd, short events, double deadline) {
  for (;;) {
    double left = deadline - now();
    if (left <= 0) return false;
    struct pollfd p = {fd, events, 0};
    int n = poll(&p, 1, left > 1 ? 1000 : (int)(left * 1000) + 1);
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

static bool send_all(int fd, const void *bytes, size_t n, double deadline) {
  for (const char *p = bytes; n > 0;) {
    ssize_t done = send(fd, p, n, MSG_NOSIGNAL);
    if (done > 0) p += done, n -= (size_t)done;
    else if (errno != EAGAIN && errno != EINTR) return false;
    else if (!ready(fd, POLLOUT, deadline)) return false;
  }
  return true;
}

static bool receive_all(int fd, void *bytes, size_t n, double deadline) {
  for (char *p = bytes; n > 0;) {
    ssize_t done = recv(fd, p, n, 0);
    if (done > 0) p += done, n -= (size_t)done;
    else if (done == 0 || (errno != EAGAIN && errno != EINTR)) return false;
    else if (!ready(fd, POLLIN, deadline)) return false;
  }
  return true;
}

/* ---- sockets ---- */

static void tune(int fd) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* signatures are small and everybody waits for them */
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

static tl_status listen_at(int port, int backlog, int *out) {
  struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)}; /* of both kinds */
  struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  int on = 1, off = 0, why = 0;
  for (int kind = 0; kind < 2; kind++) {
    int fd = socket(kind == 0 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (kind == 0) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    const struct sockaddr *address = kind == 0 ? (const struct sockaddr *)&six : (const struct sockaddr *)&four;
    if (bind(fd, address, kind == 0 ? sizeof six : sizeof four) == 0 && listen(fd, backlog) == 0) {
      *out = fd;
      return TL_OK;
    }
    why = errno;
    close(fd);
    if (why == EADDRINUSE) break;
  }
  return TL_FAIL(TL_ERR_STATE, "dist.init", "port %d cannot be listened at: %s", port, strerror(why));
}

static uint32_t port_of(int fd) {
  struct sockaddr_storage a;
  socklen_t n = sizeof a;
  if (getsockname(fd, (struct sockaddr *)&a, &n) != 0) return 0;
  return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
}

static int connect_once(const struct sockaddr *address, socklen_t length, double deadline) {
  int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  int error = connect(fd, address, length) == 0 ? 0 : errno;
  if (error == EINPROGRESS && ready(fd, POLLOUT, deadline)) {
    socklen_t n = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n);
  }
  if (error == 0) {
    tune(fd);
    return fd;
  }
  close(fd);
  errno = error;
  return -1;
}

/* Rank 0 may start later than the others: again and again. */
static tl_status connect_to(const char *name, int port, double deadline, int *out) {
  char service[8];
  int error = 0, why = 0;
  snprintf(service, sizeof service, "%d", port);
  do {
    struct addrinfo *list = NULL, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    error = getaddrinfo(name, service, &hints, &list);
    if (error == EAI_NONAME)
      return TL_FAIL(TL_ERR_VALUE, "dist.init", "MASTER_ADDR '%s' is not known: %s", name, gai_strerror(error));
    for (struct addrinfo *a = list; error == 0 && a != NULL; a = a->ai_next) {
      int fd = connect_once(a->ai_addr, a->ai_addrlen, deadline);
      why = errno;
      if (fd < 0) continue;
      freeaddrinfo(list);
      *out = fd;
      return TL_OK;
    }
    if (list != NULL) freeaddrinfo(list);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
  } while (now() < deadline);
  return TL_FAIL(TL_ERR_STATE, "dist.init", "rank 0 cannot be reached at %s, port %d: %s", name, port,
                 error != 0 ? gai_strerror(error) : strerror(why));
}

/* ---- who comes ---- */

/* The next rank that connects: its socket and what it said. Whoever says nothing sensible is sent away. */
static bool next_guest(int listening, double deadline, hello *said, int *out) {
  while (ready(listening, POLLIN, deadline)) {
    int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) continue;
    double patience = now() + GREETING_SECONDS;
    if (receive_all(fd, said, sizeof *said, patience < deadline ? patience : deadline) && said->magic == MAGIC) {
      tune(fd);
      *out = fd;
      return true;
    }
    close(fd);
  }
  return false;
}

static void refuse(int fd, const char *why) {
  answer a = {.magic = MAGIC};
  snprintf(a.why, sizeof a.why, "%s", why);
  send_all(fd, &a, sizeof a, now() + GREETING_SECONDS);
  close(fd);
}

static tl_status some_are_missing(const tl_mesh *m, int from, double seconds) {
  char who[160] = "";
  int used = 0;
  for (int r = from; r < m->size && used < (int)sizeof who - 16; r++)
    if (r != m->rank && m->sockets[r] < 0)
      used += snprintf(who + used, sizeof who - (size_t)used, used == 0 ? "%d" : ", %d", r);
  return TL_FAIL(TL_ERR_STATE, "dist.init", "not all of the %d ranks came within %g s: missing %s", m->size, seconds,
                 who);
}

/* Rank 0's part: waits for all, then tells everybody where the others are. */
static tl_status gather(tl_mesh *m, int listening, place *places, double seconds) {
  double deadline = now() + seconds;
  answer yes = {.magic = MAGIC};
  if (getrandom(&yes.job, sizeof yes.job, 0) != sizeof yes.job) yes.job = (uint64_t)(now() * 1e9);
  for (int came = 1; came < m->size;) {
    hello said;
    int fd;
    char why[sizeof yes.why] = "";
    if (!next_guest(listening, deadline, &said, &fd)) return some_are_missing(m, 1, seconds);
    if (said.abi != TL_ABI) snprintf(why, sizeof why, "its engine has ABI %u, rank 0's has %d", said.abi, TL_ABI);
    else if (said.size != m->size)
      snprintf(why, sizeof why, "its WORLD_SIZE is %d, rank 0's is %d", said.size, m->size);
    else if (said.rank < 1 || said.rank >= m->size || m->sockets[said.rank] >= 0)
      snprintf(why, sizeof why, "another process is rank %d already", said.rank);
    if (why[0] != '\0') {
      refuse(fd, why);
      continue;
    }
    place *p = &places[said.rank];
    p->length = sizeof p->address;
    getpeername(fd, (struct sockaddr *)&p->address, &p->length);
    if (p->address.ss_family == AF_INET6) ((struct sockaddr_in6 *)&p->address)->sin6_port = htons((uint16_t)said.port);
    else ((struct sockaddr_in *)&p->address)->sin_port = htons((uint16_t)said.port);
    m->sockets[said.rank] = fd;
    came++;
  }
  for (int r = 1; r < m->size; r++)
    if (!send_all(m->sockets[r], &yes, sizeof yes, deadline) ||
        !send_all(m->sockets[r], places, (size_t)m->size * sizeof *places, deadline))
      return TL_FAIL(TL_ERR_STATE, "dist.init", "rank %d left before all ranks had come", r);
  return TL_OK;
}

/* An address that rank 0 saw, as this machine can use it: those of IPv4 were seen through a socket of both kinds. */
static void plain_address(place *p) {
  struct sockaddr_in6 *six = (struct sockaddr_in6 *)&p->address;
  if (p->address.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) return;
  struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = six->sin6_port};
  memcpy(&four.sin_addr, six->sin6_addr.s6_addr + 12, 4);
  memcpy(&p->address, &four, sizeof four);
  p->length = sizeof four;
}

/* The other ranks' part: to rank 0, then to those below, then those above come. */
static tl_status visit(tl_mesh *m, const char *address, int port, int listening, place *places, double seconds) {
  double deadline = now() + seconds;
  hello mine = {.magic = MAGIC, .abi = TL_ABI, .size = m->size, .rank = m->rank, .port = port_of(listening)};
  answer said;
  TL_TRY(connect_to(address, port, deadline, &m->sockets[0]));
  if (!send_all(m->sockets[0], &mine, sizeof mine, deadline) ||
      !receive_all(m->sockets[0], &said, sizeof said, deadline) || said.magic != MAGIC)
    return TL_FAIL(TL_ERR_STATE, "dist.init",
                   "not all of the %d ranks came within %g s, or what listens at %s, port %d "
                   "is no rank 0",
                   m->size, seconds, address, port);
  said.why[sizeof said.why - 1] = '\0';
  if (said.why[0] != '\0') return TL_FAIL(TL_ERR_STATE, "dist.init", "rank 0 refuses rank %d: %s", m->rank, said.why);
  if (!receive_all(m->sockets[0], places, (size_t)m->size * sizeof *places, deadline))
    return TL_FAIL(TL_ERR_STATE, "dist.init", "rank 0 left before all ranks had met");
  mine.job = said.job;
  for (int r = 1; r < m->rank; r++) {
    plain_address(&places[r]);
    m->sockets[r] = connect_once((struct sockaddr *)&places[r].address, places[r].length, deadline);
    if (m->sockets[r] < 0 || !send_all(m->sockets[r], &mine, sizeof mine, deadline))
      return TL_FAIL(TL_ERR_STATE, "dist.init", "rank %d cannot be reached from rank %d: %s", r, m->rank,
                     strerror(errno));
  }
  for (int came = m->rank + 1; came < m->size;) {
    hello other;
    int fd;
    if (!next_guest(listening, deadline, &other, &fd)) return some_are_missing(m, m->rank + 1, seconds);
    if (other.job != said.job || other.rank <= m->rank || other.rank >= m->size || m->sockets[other.rank] >= 0) {
      close(fd);
      continue;
    }
    m->sockets[other.rank] = fd;
    came++;
  }
  return TL_OK;
}

tl_status tl_mesh_open(const char *address, int port, int rank, int size, double seconds, tl_mesh *out) {
  tl_mesh m = {rank, size, tl_host_alloc((size_t)size * sizeof(int))};
  place *places = tl_host_calloc((size_t)size, sizeof *places);
  tl_status st = TL_OK;
  int listening = -1;
  if (m.sockets == NULL || places == NULL) st = TL_FAIL(TL_ERR_MEMORY, "dist.init", "no memory for %d ranks", size);
  for (int r = 0; m.sockets != NULL && r < size; r++) m.sockets[r] = -1;
  if (st == TL_OK) st = listen_at(rank == 0 ? port : 0, size, &listening);
  if (st == TL_OK)
    st = rank == 0 ? gather(&m, listening, places, seconds) : visit(&m, address, port, listening, places, seconds);
  if (listening >= 0) close(listening);
  tl_host_free(places);
  if (st == TL_OK) *out = m;
  else if (m.sockets != NULL) tl_mesh_close(&m, 0);
  return st;
}

void tl_mesh_close(tl_mesh *m, double seconds) {
  double deadline = now() + seconds;
  char rest;
  for (int r = 0; r < m->size; r++)
    if (m->sockets[r] >= 0) shutdown(m->sockets[r], SHUT_WR);
  for (int r = 0; r < m->size; r++) {
    if (m->sockets[r] < 0) continue;
    /* its end, which says that it has read everything; closing earlier could lose what is under way */
    if (seconds > 0) receive_all(m->sockets[r], &rest, 1, deadline);
    close(m->sockets[r]);
  }
  tl_host_free(m->sockets);
  m->sockets = NULL;
}
