/* csv.c: tables of numbers as text (RFC 4180): records of one line each, fields apart by a delimiter, quoted where they
 * hold delimiters, quotes (doubled) or line ends. Both \n and \r\n end a line; a byte order mark and empty lines are
 * skipped. Only the selected columns have to be numbers. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* strtod_l: the C locale's point whatever the host program set */
#endif
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "data/archive.h"
#include "data/source.h"

#define OP "csv"
#define MAX_FIELDS 1000000
#define MAX_RECORD (1 << 28)

/* Growing arrays of bytes; elements are appended. */
typedef struct buffer {
  char *data;
  size_t used, room;
} buffer;

static tl_status reserve(buffer *b, size_t more) {
  if (b->room - b->used >= more) return TL_OK;
  size_t room = (b->room == 0 ? 4096 : b->room * 2);
  while (room - b->used < more) room *= 2;
  char *data = tl_host_alloc(room);
  if (data == NULL) return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for %zu bytes of the table", room);
  if (b->used > 0) memcpy(data, b->data, b->used);
  tl_host_free(b->data);
  b->data = data;
  b->room = room;
  return TL_OK;
}

static tl_status append(buffer *b, const void *data, size_t bytes) {
  TL_TRY(reserve(b, bytes));
  memcpy(b->data + b->used, data, bytes);
  b->used += bytes;
  return TL_OK;
}

typedef struct reader {
  tl_source *s;
  const tl_csv_options *o;
  int64_t line;   /* of the byte read next, from 1 */
  int64_t record; /* the line that the current record started on */
  buffer text;    /* the fields of the current record, each with a NUL behind it */
  buffer starts;  /* size_t: where they start in text */
  int fields;     /* of the current record */
  int width;      /* of every record */
  int count;      /* selected columns */
  int *selected;  /* [count] their places */
  buffer values;  /* double: the selected numbers, row by row */
  int64_t rows;
} reader;

static const char *field(const reader *r, int i) { return r->text.data + ((const size_t *)(void *)r->starts.data)[i]; }

/* ---- records ---- */

static tl_status put(reader *r, int byte) {
  char c = (char)byte;
  if (r->text.used >= MAX_RECORD)
    return TL_FAIL(TL_ERR_FORMAT, OP, "%s: the record at line %lld is longer than %d bytes", r->s->label,
                   (long long)r->record, MAX_RECORD);
  return append(&r->text, &c, 1);
}

static tl_status next_byte(reader *r, int *byte) {
  TL_TRY(tl_source_byte(r->s, byte));
  if (*byte == '\n') r->line++;
  if (*byte == 0) return TL_FAIL(TL_ERR_FORMAT, OP, "%s: line %lld holds a NUL byte", r->s->label, (long long)r->line);
  return TL_OK;
}

/* After an opening quote; *byte is what follows the closing one. */
static tl_status read_quoted(reader *r, int *byte) {
  for (;;) {
    TL_TRY(next_byte(r, byte));
    if (*byte == -1)
      return TL_FAIL(TL_ERR_FORMAT, OP, "%s: a quoted field of the record at line %lld never ends", r->s->label,
                     (long long)r->record);
    if (*byte == '"') {
      TL_TRY(next_byte(r, byte));
      if (*byte != '"') return TL_OK;
    }
    TL_TRY(put(r, *byte));
  }
}

/* One field, *byte being its first byte; afterwards what ended it: the delimiter, '\n' or -1. */
static tl_status read_field(reader *r, int *byte) {
  size_t start = r->text.used;
  if (r->fields == MAX_FIELDS)
    return TL_FAIL(TL_ERR_FORMAT, OP, "%s: line %lld has more than %d fields", r->s->label, (long long)r->record,
                   MAX_FIELDS);
  TL_TRY(append(&r->starts, &start, sizeof start));
  bool quoted = *byte == '"';
  if (quoted) TL_TRY(read_quoted(r, byte));
  while (*byte != r->o->delimiter && *byte != '\n' && *byte != -1) {
    bool carriage = *byte == '\r';
    int held = *byte;
    TL_TRY(next_byte(r, byte));
    if (carriage && (*byte == '\n' || *byte == -1)) break;
    if (quoted)
      return TL_FAIL(TL_ERR_FORMAT, OP, "%s: line %lld, column %d: text follows the closing quote", r->s->label,
                     (long long)r->record, r->fields + 1);
    TL_TRY(put(r, held));
  }
  r->fields++;
  return put(r, 0);
}

/* The next record that is not an empty line; r->fields = 0 at the end of the file. */
static tl_status read_record(reader *r) {
  for (;;) {
    int byte;
    r->record = r->line;
    r->text.used = r->starts.used = 0;
    r->fields = 0;
    TL_TRY(next_byte(r, &byte));
    if (byte == -1) return TL_OK;
    TL_TRY(read_field(r, &byte));
    while (byte == r->o->delimiter) {
      TL_TRY(next_byte(r, &byte));
      TL_TRY(read_field(r, &byte));
    }
    if (r->fields > 1 || field(r, 0)[0] != 0) return TL_OK;
  }
}

/* ---- numbers ---- */

static locale_t c_locale;
static void make_locale(void) { c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

/* At most 15 digits with a point among them: exact in a double, and one division rounds correctly (Clinger 1990). */
static bool parse_short(const char *text, double *value) {
  static const double powers[16] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
  bool negative = *text == '-';
  int64_t digits = 0;
  int n = 0, after = -1;
  for (text += negative; *text != 0; text++) {
    if (*text == '.' && after < 0) {
      after = 0;
      continue;
    }
    if (*text < '0' || *text > '9' || n == 15) return false;
    digits = digits * 10 + (*text - '0');
    n++;
    if (after >= 0) after++;
  }
  if (n == 0) return false;
  double v = after > 0 ? (double)digits / powers[after] : (double)digits;
  *value = negative ? -v : v;
  return true;
}

static bool is_blank(const char *text) { return text[strspn(text, " \t")] == 0; }

static bool parse_number(const char *text, double *value) {
  if (parse_short(text, value)) return true;
  char *end;
  *value = strtod_l(text, &end, c_locale);
  return end != text && is_blank(end);
}

/* ---- columns ---- */

static tl_status locate(reader *r, int i, bool header, int *place) {
  const char *name = r->o->names == NULL ? NULL : r->o->names[i];
  if (name == NULL) {
    *place = r->o->positions[i] < 0 ? r->o->positions[i] + r->width : r->o->positions[i];
    if (*place >= 0 && *place < r->width) return TL_OK;
    return TL_FAIL(TL_ERR_INDEX, OP, "%s: there is no column %lld, line %lld has %d", r->s->label,
                   (long long)tl_position(r->o->positions[i]), (long long)r->record, r->width);
  }
  if (!header)
    return TL_FAIL(TL_ERR_VALUE, OP, "%s: column '%s' is asked for by name, and there is no header", r->s->label, name);
  for (*place = 0; *place < r->width; ++*place)
    if (strcmp(field(r, *place), name) == 0) return TL_OK;
  return TL_FAIL(TL_ERR_VALUE, OP, "%s: the header (line %lld) has no column '%s'", r->s->label, (long long)r->record,
                 name);
}

static tl_status select_columns(reader *r, bool header) {
  r->width = r->fields;
  r->count = r->o->columns > 0 ? r->o->columns : r->width;
  r->selected = tl_host_alloc((size_t)r->count * sizeof *r->selected);
  if (r->selected == NULL) return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for %d columns", r->count);
  for (int i = 0; i < r->count; i++) {
    if (r->o->columns > 0) TL_TRY(locate(r, i, header, &r->selected[i]));
    else r->selected[i] = i;
  }
  return TL_OK;
}

static bool is_header(const reader *r) {
  double unused;
  if (r->o->header >= 0) return r->o->header == 1;
  for (int i = 0; i < r->fields; i++)
    if (!is_blank(field(r, i)) && !parse_number(field(r, i), &unused)) return true;
  return false;
}

static tl_status take_row(reader *r) {
  if (r->fields != r->width)
    return TL_FAIL(TL_ERR_FORMAT, OP, "%s: line %lld has %d fields, the lines before have %d", r->s->label,
                   (long long)r->record, r->fields, r->width);
  TL_TRY(reserve(&r->values, (size_t)r->count * sizeof(double)));
  for (int i = 0; i < r->count; i++) {
    const char *text = field(r, r->selected[i]);
    double value = NAN;
    if (!parse_number(text, &value)) {
      if (!is_blank(text))
        return TL_FAIL(TL_ERR_FORMAT, OP, "%s: line %lld, column %d: '%s' is not a number", r->s->label,
                       (long long)r->record, r->selected[i] + 1, tl_printable(text, strlen(text)));
      if (!r->o->allow_missing)
        return TL_FAIL(TL_ERR_FORMAT, OP, "%s: line %lld, column %d is empty", r->s->label, (long long)r->record,
                       r->selected[i] + 1);
      value = NAN;
    }
    TL_TRY(append(&r->values, &value, sizeof value));
  }
  r->rows++;
  return TL_OK;
}

/* ---- the table ---- */

/* Named columns are views of the table. */
static tl_status add_column(tl_archive *a, const char *name, int i, tl_tensor *table) {
  tl_tensor *column;
  TL_TRY(tl_select(table, 1, i, &column));
  return tl_archive_add(OP, a, name, column);
}

static tl_status finish(reader *r, const buffer *names, tl_tensor **table, tl_archive **columns) {
  int64_t shape[2] = {r->rows, r->count};
  tl_tensor *t;
  TL_TRY(tl_from_doubles(2, shape, r->o->dtype, TL_CPU, (const double *)(void *)r->values.data, &t));
  tl_archive *a = NULL;
  tl_status st = tl_archive_new(OP, r->count, 0, &a);
  const char *name = names->data;
  for (int i = 0; i < r->count && st == TL_OK; i++, name += strlen(name) + 1) st = add_column(a, name, i, t);
  if (st != TL_OK) {
    tl_archive_free(a);
    tl_tensor_free(t);
    return st;
  }
  *table = t;
  *columns = a;
  return TL_OK;
}

/* What the selected columns are called, one after the other. */
static tl_status collect_names(const reader *r, bool header, buffer *names) {
  for (int i = 0; i < r->count; i++) {
    char number[16];
    snprintf(number, sizeof number, "%lld", (long long)tl_position(r->selected[i]));
    const char *name = header ? field(r, r->selected[i]) : number;
    TL_TRY(append(names, name, strlen(name) + 1));
  }
  return TL_OK;
}

/* A byte order mark at the start of the file is no data. */
static tl_status skip_mark(tl_source *s) {
  int byte;
  TL_TRY(tl_source_byte(s, &byte));
  if (byte != -1) s->ahead_pos = s->ahead_length >= 3 && memcmp(s->ahead, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
  return TL_OK;
}

static tl_status read_table(reader *r, buffer *names) {
  TL_TRY(skip_mark(r->s));
  TL_TRY(read_record(r));
  if (r->fields == 0) return TL_FAIL(TL_ERR_FORMAT, OP, "%s: holds no records", r->s->label);
  bool header = is_header(r);
  TL_TRY(select_columns(r, header));
  TL_TRY(collect_names(r, header, names));
  if (!header) TL_TRY(take_row(r));
  for (;;) {
    TL_CHECK_INTERRUPT(OP);
    TL_TRY(read_record(r));
    if (r->fields == 0) return TL_OK;
    TL_TRY(take_row(r));
  }
}

tl_status tl_read_csv(const char *path, const tl_csv_options *o, tl_tensor **table, tl_archive **columns) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_locale);
  if (o->delimiter <= 0 || o->delimiter > 127 || strchr("\"\r\n", o->delimiter) != NULL)
    return TL_FAIL(TL_ERR_VALUE, OP, "the delimiter must be one ASCII character other than a quote or a line end");
  if (tl_dtype_name(o->dtype) == NULL) return TL_FAIL(TL_ERR_DTYPE, OP, "there is no dtype number %d", o->dtype);
  tl_source s;
  reader r = {.s = &s, .o = o, .line = 1};
  buffer names = {NULL, 0, 0};
  tl_status st = tl_source_open(&s, OP, path, true);
  if (st == TL_OK) st = read_table(&r, &names);
  if (st == TL_OK) st = finish(&r, &names, table, columns);
  tl_source_close(&s);
  tl_host_free(r.text.data);
  tl_host_free(r.starts.data);
  tl_host_free(r.values.data);
  tl_host_free(r.selected);
  tl_host_free(names.data);
  return st;
}
