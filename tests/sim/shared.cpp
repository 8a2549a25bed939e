/* shared.cpp: shared memory has the life of a block: every block finds garbage in it.
 *
 * __shared__ variables are thread-local statics of the .cu files here, for which the symbol table of this library gives
 * names and sizes: all thread-local symbols that are local to a function. A kernel's own are learnt by looking which no
 * longer hold what was put there. */
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device.h"

struct variable {
  size_t offset, bytes; /* in the thread-local block */
};

struct kernel_use {
  const void *function;
  int count, room;
  int *variables;
  size_t bytes;
  bool reported;
};

static variable *variables;
static int variable_count;
static kernel_use *uses;
static int use_count;
static char *thread_block; /* of this thread */
static unsigned char garbage;

static void *grown(void *p, size_t bytes) {
  p = realloc(p, bytes);
  if (p == nullptr) abort();
  return p;
}

/* The file that this code is in. */
static const char *own_file() {
  static char path[4096];
  Dl_info info;
  if (dladdr(reinterpret_cast<void *>(sim_shared_begin), &info) == 0) return nullptr;
  if (access(info.dli_fname, R_OK) == 0) return info.dli_fname;
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1); /* a program that was found through PATH */
  return n < 0 ? nullptr : (path[n] = '\0', path);
}

/* Collects the symbols _ZZ... (local to a function) of type TLS. */
static void read_symbols(const char *file, size_t bytes) {
  const ElfW(Ehdr) *head = reinterpret_cast<const ElfW(Ehdr) *>(file);
  const ElfW(Shdr) *sections = reinterpret_cast<const ElfW(Shdr) *>(file + head->e_shoff);
  if (head->e_shoff + head->e_shnum * sizeof *sections > bytes) return;
  for (int s = 0; s < head->e_shnum; s++) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const ElfW(Sym) *symbols = reinterpret_cast<const ElfW(Sym) *>(file + sections[s].sh_offset);
    const char *names = file + sections[sections[s].sh_link].sh_offset;
    size_t n = sections[s].sh_size / sizeof *symbols;
    for (size_t i = 0; i < n; i++) {
      if (ELF64_ST_TYPE(symbols[i].st_info) != STT_TLS || symbols[i].st_shndx == SHN_UNDEF) continue;
      if (strncmp(names + symbols[i].st_name, "_ZZ", 3) != 0) continue;
      variables = static_cast<variable *>(grown(variables, sizeof *variables * (size_t)(variable_count + 1)));
      variables[variable_count++] = variable{symbols[i].st_value, symbols[i].st_size};
    }
  }
}

static void find_variables() {
  const char *path = own_file();
  int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  struct stat info;
  if (fd < 0 || fstat(fd, &info) != 0) {
    fprintf(stderr, "tlua-sim: cannot read the symbols of %s\n", path == nullptr ? "itself" : path);
    abort();
  }
  void *file = mmap(nullptr, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (file == MAP_FAILED) abort();
  read_symbols(static_cast<const char *>(file), (size_t)info.st_size);
  munmap(file, (size_t)info.st_size);
  const char *name = getenv("TLUA_SIM_SEED");
  /* A NaN and -1; a large number in every type; a small negative one. */
  static const unsigned char kinds[] = {0xff, 0x7e, 0xc1};
  garbage = kinds[name == nullptr ? 0 : strtoull(name, nullptr, 10) % 3];
}

static int with_own_block(struct dl_phdr_info *info, size_t, void *) {
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &info->dlpi_phdr[i];
    uintptr_t start = info->dlpi_addr + p->p_vaddr, here = reinterpret_cast<uintptr_t>(sim_shared_begin);
    if (p->p_type != PT_LOAD || here < start || here >= start + p->p_memsz) continue;
    thread_block = static_cast<char *>(info->dlpi_tls_data);
    return 1;
  }
  return 0;
}

/* Makes the thread's block exist before it is asked for. */
static thread_local char touched;

static kernel_use *use_of(const void *function) {
  static int last;
  if (last < use_count && uses[last].function == function) return &uses[last];
  for (int i = 0; i < use_count; i++)
    if (uses[i].function == function) return &uses[last = i];
  uses = static_cast<kernel_use *>(grown(uses, sizeof *uses * (size_t)(use_count + 1)));
  uses[use_count] = kernel_use{function, 0, 0, nullptr, 0, false};
  return &uses[last = use_count++];
}

static bool holds_garbage(const variable *v) {
  const char *p = thread_block + v->offset;
  return (unsigned char)p[0] == garbage && memcmp(p, p + 1, v->bytes - 1) == 0;
}

/* Adds what was written since and is not on the kernel's list. */
static void learn(kernel_use *u) {
  for (int i = 0; i < variable_count; i++) {
    if (variables[i].bytes == 0 || holds_garbage(&variables[i])) continue;
    bool known = false;
    for (int k = 0; k < u->count && !known; k++) known = u->variables[k] == i;
    if (!known) {
      u->variables = static_cast<int *>(grown(u->variables, sizeof(int) * (size_t)(u->count + 1)));
      u->variables[u->count++] = i;
      u->bytes += variables[i].bytes;
    }
    memset(thread_block + variables[i].offset, garbage, variables[i].bytes);
  }
}

void sim_shared_grid(const void *function) {
  static bool started;
  if (!started) find_variables();
  started = true;
  touched = 1;
  char *before = thread_block;
  dl_iterate_phdr(with_own_block, nullptr);
  if (thread_block != before)
    for (int i = 0; i < variable_count; i++) memset(thread_block + variables[i].offset, garbage, variables[i].bytes);
  use_of(function);
}

void sim_shared_begin(const void *function, char *dynamic, size_t bytes) {
  const kernel_use *u = use_of(function);
  for (int i = 0; i < u->count; i++) {
    const variable *v = &variables[u->variables[i]];
    memset(thread_block + v->offset, garbage, v->bytes);
  }
  memset(dynamic, garbage, bytes);
}

void sim_shared_first(const void *function) { learn(use_of(function)); }

void sim_shared_end(const sim_kernel *kernel, size_t most) {
  kernel_use *u = use_of(kernel->function);
  learn(u);
  if (u->reported || u->bytes + kernel->shared <= most) return;
  u->reported = true;
  sim_fault("shared", "kernel %s uses %zu bytes of static and %zu bytes of dynamic shared memory; a block may have %zu",
            kernel->name, u->bytes, kernel->shared, most);
}

int sim_shared_of(const void *p, const void **base, size_t *bytes) {
  for (int i = 0; i < variable_count; i++) {
    const char *start = thread_block + variables[i].offset;
    if (p < start || p >= start + variables[i].bytes) continue;
    *base = start;
    *bytes = variables[i].bytes;
    return 1;
  }
  return 0;
}
