/* error.c: the per-thread error record and the interrupt flag. */
#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/tensor.h"

/* Texts live on the heap: a library that is opened late has little room for thread-local storage (dlopen). */
typedef struct texts {
  char message[512];
  char ring[8][TL_SHAPE_CHARS];
  unsigned next;
} texts;

static _Thread_local texts *mine;
static _Thread_local tl_error last = {TL_OK, "", "", "", 0};
static _Thread_local int index_base = 0;

volatile int tl_interrupt_flag = 0;

/* Without memory all threads share one set: a message may then be garbled, which beats none. */
static texts *my_texts(void) {
  static texts shared;
  if (mine == NULL) mine = calloc(1, sizeof *mine);
  if (mine == NULL) return &shared;
  return mine;
}

void tl_error_thread_exit(void) {
  tl_clear_error();
  free(mine);
  mine = NULL;
}

const tl_error *tl_last_error(void) { return &last; }

void tl_clear_error(void) { last = (tl_error){TL_OK, "", "", "", 0}; }

void tl_error_index_base(int base) { index_base = base == 1; }

int64_t tl_position(int64_t i) { return i < 0 ? i : i + index_base; }

tl_status tl_vfail(int code, const char *op, const char *file, int line, const char *format, va_list args) {
  /* Formatted aside first: an argument may be the former message. */
  texts *t = my_texts();
  char text[sizeof t->message];
  vsnprintf(text, sizeof text, format, args);
  snprintf(t->message, sizeof t->message, "%s", text);
  last = (tl_error){code, op, t->message, file, line};
  return (tl_status)code;
}

tl_status tl_fail(int code, const char *op, const char *file, int line, const char *format, ...) {
  va_list args;
  va_start(args, format);
  tl_status st = tl_vfail(code, op, file, line, format, args);
  va_end(args);
  return st;
}

void tl_interrupt(void) { tl_interrupt_flag = 1; }

bool tl_take_interrupt(void) {
  bool was = tl_interrupt_flag != 0;
  tl_interrupt_flag = 0;
  return was;
}

tl_status tl_interrupted(const char *op) {
  tl_interrupt_flag = 0;
  return TL_FAIL(TL_ERR_INTERRUPT, op, "interrupted");
}

int tl_abi(void) { return TL_ABI; }

const char *tl_version(void) { return TLUA_VERSION; }

const char *tl_shape_text(int ndim, const int64_t *shape, char buffer[TL_SHAPE_CHARS]) {
  int at = snprintf(buffer, TL_SHAPE_CHARS, "(");
  for (int d = 0; d < ndim && d < TL_MAX_DIMS; d++)
    at += snprintf(buffer + at, (size_t)(TL_SHAPE_CHARS - at), d == 0 ? "%lld" : "x%lld", (long long)shape[d]);
  snprintf(buffer + at, (size_t)(TL_SHAPE_CHARS - at), ")");
  return buffer;
}

const char *tl_shape_of(const tl_tensor *t) {
  texts *own = my_texts();
  return tl_shape_text(t->ndim, t->shape, own->ring[own->next++ % 8]);
}
