/* npz.c: a zip file of npy files. What a member inflates to is limited by the shape that its npy header declares. */
#include <string.h>

#include <zip.h>

#include "core/tensor.h"
#include "data/archive.h"
#include "data/npy.h"

#define OP "npz"
#define DEFLATE_RATIO 1032
#define MAX_MEMBERS 65536

static int64_t member_read(tl_source *s, void *buffer, size_t bytes) {
  int64_t n = zip_fread(s->handle, buffer, bytes);
  if (n < 0) TL_FAIL(TL_ERR_FORMAT, OP, "%s: the zip data is damaged (%s)", s->label, zip_file_strerror(s->handle));
  return n;
}

static void member_close(void *handle) { zip_fclose(handle); }

/* "FILE: member" as the label of messages. */
static void label_member(tl_source *s, const char *path, const char *name) {
  char label[TL_LABEL_CHARS];
  tl_path_label(label, path);
  size_t room = TL_LABEL_CHARS - 70, length = strlen(label);
  memcpy(s->label, length > room ? label + length - room : label, (length > room ? room : length) + 1);
  strcat(s->label, ": ");
  strcat(s->label, tl_printable(name, strlen(name)));
}

static tl_status open_member(tl_source *s, zip_t *zip, const char *path, zip_uint64_t i, const char **name) {
  zip_stat_t info;
  *s = (tl_source){.op = OP};
  tl_path_label(s->label, path);
  if (zip_stat_index(zip, i, 0, &info) != 0 || (info.valid & ZIP_STAT_NAME) == 0)
    return TL_FAIL(TL_ERR_FORMAT, OP, "%s: member %llu cannot be read (%s)", s->label, (unsigned long long)i,
                   zip_strerror(zip));
  *name = info.name;
  label_member(s, path, info.name);
  size_t length = strlen(info.name);
  if (length < 5 || strcmp(info.name + length - 4, ".npy") != 0)
    return TL_FAIL(TL_ERR_FORMAT, OP, "%s: not an npy member", s->label);
  zip_uint64_t size = info.valid & ZIP_STAT_SIZE ? info.size : 0,
               packed = info.valid & ZIP_STAT_COMP_SIZE ? info.comp_size : 0;
  /* The declared sizes are claims: a member of n packed bytes cannot hold more than 1032 n. */
  if (size > INT64_MAX || packed > INT64_MAX / (2 * DEFLATE_RATIO) || size > packed * DEFLATE_RATIO + 64)
    return TL_FAIL(TL_ERR_FORMAT, OP, "%s: claims %llu bytes out of %llu", s->label, (unsigned long long)size,
                   (unsigned long long)packed);
  s->size = s->ceiling = (int64_t)size;
  s->handle = zip_fopen_index(zip, i, 0);
  if (s->handle == NULL) return TL_FAIL(TL_ERR_FORMAT, OP, "%s: %s", s->label, zip_strerror(zip));
  s->read = member_read;
  s->close = member_close;
  return TL_OK;
}

static tl_status add_member(tl_archive *a, const tl_source *s, const char *file, tl_tensor *t) {
  char name[1024];
  size_t length = strlen(file) - 4;
  if (length >= sizeof name) {
    tl_tensor_free(t);
    return TL_FAIL(TL_ERR_FORMAT, OP, "%s: a name of %zu bytes", s->label, length);
  }
  memcpy(name, file, length);
  name[length] = 0;
  for (int i = 0; i < a->count; i++)
    if (strcmp(a->entries[i].name, name) == 0) {
      tl_tensor_free(t);
      return TL_FAIL(TL_ERR_FORMAT, OP, "%s: is there twice", s->label);
    }
  return tl_archive_add(OP, a, name, t);
}

static tl_status read_members(zip_t *zip, const char *path, int n, tl_archive *a) {
  for (int i = 0; i < n; i++) {
    tl_source s;
    const char *name = NULL;
    tl_tensor *t = NULL;
    tl_status st = open_member(&s, zip, path, (zip_uint64_t)i, &name);
    if (st == TL_OK) st = tl_parse_npy(&s, &t);
    if (st == TL_OK) st = add_member(a, &s, name, t);
    tl_source_close(&s);
    TL_TRY(st);
  }
  return TL_OK;
}

static tl_status read_zip(zip_t *zip, const char *path, const char *label, tl_archive **out) {
  zip_int64_t n = zip_get_num_entries(zip, 0);
  if (n < 0 || n > MAX_MEMBERS) return TL_FAIL(TL_ERR_FORMAT, OP, "%s: %lld members", label, (long long)n);
  tl_archive *a;
  TL_TRY(tl_archive_new(OP, (int)n, 0, &a));
  tl_status st = read_members(zip, path, (int)n, a);
  if (st == TL_OK) *out = a;
  else tl_archive_free(a);
  return st;
}

tl_status tl_read_npz(const char *path, tl_archive **out) {
  /* Opening it as a source first says what is wrong with the path itself. */
  tl_source s;
  tl_status st = tl_source_open(&s, OP, path, false);
  tl_source_close(&s);
  TL_TRY(st);
  int code = 0;
  zip_t *zip = zip_open(path, ZIP_RDONLY | ZIP_CHECKCONS, &code);
  if (zip == NULL) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    TL_FAIL(TL_ERR_FORMAT, OP, "%s: not a zip file that can be read (%s)", s.label, zip_error_strerror(&error));
    zip_error_fini(&error);
    return TL_ERR_FORMAT;
  }
  st = read_zip(zip, path, s.label, out);
  zip_discard(zip);
  return st;
}
