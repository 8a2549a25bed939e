/* archive.c: named tensors and notes on their way out of a file. */
#include "data/archive.h"

#include <string.h>

#include "core/memory.h"

tl_status tl_archive_new(const char *op, int entries, int notes, tl_archive **out) {
  tl_archive *a = tl_host_calloc(1, sizeof *a);
  if (a != NULL) {
    a->entries = tl_host_calloc((size_t)entries, sizeof *a->entries);
    a->note = tl_host_calloc((size_t)notes, sizeof *a->note);
    if (a->entries != NULL && a->note != NULL) return *out = a, TL_OK;
  }
  tl_archive_free(a);
  return TL_FAIL(TL_ERR_MEMORY, op, "no memory for a list of %d tensors and %d notes", entries, notes);
}

void tl_archive_free(tl_archive *a) {
  if (a == NULL) return;
  for (int i = 0; i < a->count; i++) {
    tl_host_free(a->entries[i].name);
    tl_tensor_free(a->entries[i].tensor);
  }
  for (int i = 0; i < a->notes; i++) {
    tl_host_free(a->note[i].key);
    tl_host_free(a->note[i].value);
  }
  tl_host_free(a->entries);
  tl_host_free(a->note);
  tl_host_free(a);
}

static char *copy_text(const char *text) {
  size_t bytes = strlen(text) + 1;
  char *copy = tl_host_alloc(bytes);
  return copy == NULL ? NULL : memcpy(copy, text, bytes);
}

tl_status tl_archive_add(const char *op, tl_archive *a, const char *name, tl_tensor *t) {
  char *copy = copy_text(name);
  if (copy == NULL) {
    tl_tensor_free(t);
    return TL_FAIL(TL_ERR_MEMORY, op, "no memory for a name");
  }
  a->entries[a->count++] = (tl_entry){copy, t};
  return TL_OK;
}

tl_status tl_archive_add_note(const char *op, tl_archive *a, const char *key, const char *value) {
  tl_note note = {copy_text(key), copy_text(value)};
  if (note.key == NULL || note.value == NULL) {
    tl_host_free(note.key);
    tl_host_free(note.value);
    return TL_FAIL(TL_ERR_MEMORY, op, "no memory for a note");
  }
  a->note[a->notes++] = note;
  return TL_OK;
}

int tl_archive_count(const tl_archive *a) { return a->count; }
int tl_archive_notes(const tl_archive *a) { return a->notes; }

const char *tl_archive_name(const tl_archive *a, int i) { return i >= 0 && i < a->count ? a->entries[i].name : NULL; }
const char *tl_archive_note_key(const tl_archive *a, int i) { return i >= 0 && i < a->notes ? a->note[i].key : NULL; }
const char *tl_archive_note(const tl_archive *a, int i) { return i >= 0 && i < a->notes ? a->note[i].value : NULL; }

tl_status tl_archive_tensor(const tl_archive *a, int i, tl_tensor **out) {
  if (i < 0 || i >= a->count)
    return TL_FAIL(TL_ERR_INDEX, "archive", "there is no entry %lld of %d", (long long)tl_position(i), a->count);
  return tl_tensor_retain(a->entries[i].tensor, out);
}
