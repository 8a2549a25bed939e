/* archive.h: named tensors and notes on their way out of a file. */
#ifndef TL_DATA_ARCHIVE_H
#define TL_DATA_ARCHIVE_H

#include "core/tensor.h"

typedef struct tl_entry {
  char *name;
  tl_tensor *tensor;
} tl_entry;

typedef struct tl_note {
  char *key, *value;
} tl_note;

struct tl_archive {
  int count, notes;
  tl_entry *entries;
  tl_note *note;
};

/* Room for that many entries and notes; count and notes start at 0. */
tl_status tl_archive_new(const char *op, int entries, int notes, tl_archive **out);
/* Takes the tensor's reference, also on failure; copies the name. */
tl_status tl_archive_add(const char *op, tl_archive *a, const char *name, tl_tensor *t);
tl_status tl_archive_add_note(const char *op, tl_archive *a, const char *key, const char *value);

#endif
