/* map.h: from an address to what is known about it: an open-addressed table, for blocks of memory that are in use. */
#ifndef TL_BACKEND_CUDA_MAP_H
#define TL_BACKEND_CUDA_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct tl_map {
  struct tl_map_entry {
    const void *key; /* NULL: empty */
    void *value;
  } * at;
  size_t room, count; /* room: a power of two, 0 at first */
} tl_map;

static inline size_t tl_map_hash(const void *key) {
  return (size_t)(((uintptr_t)key >> 9) * 0x9E3779B97F4A7C15ull >> 20);
}

static inline void tl_map_insert(tl_map *m, const void *key, void *value) {
  size_t i = tl_map_hash(key) & (m->room - 1);
  while (m->at[i].key != NULL) i = (i + 1) & (m->room - 1);
  m->at[i].key = key;
  m->at[i].value = value;
  m->count++;
}

/* Makes room for one more entry; false when there is no host memory. */
static inline bool tl_map_reserve(tl_map *m) {
  if (2 * (m->count + 1) <= m->room) return true;
  tl_map old = *m;
  size_t room = old.room == 0 ? 256 : 2 * old.room;
  struct tl_map_entry *at = calloc(room, sizeof *at);
  if (at == NULL) return false;
  *m = (tl_map){at, room, 0};
  for (size_t i = 0; i < old.room; i++)
    if (old.at[i].key != NULL) tl_map_insert(m, old.at[i].key, old.at[i].value);
  free(old.at);
  return true;
}

static inline void *tl_map_find(const tl_map *m, const void *key) {
  if (m->room == 0) return NULL;
  for (size_t i = tl_map_hash(key) & (m->room - 1); m->at[i].key != NULL; i = (i + 1) & (m->room - 1))
    if (m->at[i].key == key) return m->at[i].value;
  return NULL;
}

/* Removes a key and returns its value, NULL if it was not there. What follows in the row moves up. */
static inline void *tl_map_remove(tl_map *m, const void *key) {
  if (m->room == 0) return NULL;
  size_t mask = m->room - 1, i = tl_map_hash(key) & mask;
  while (m->at[i].key != key) {
    if (m->at[i].key == NULL) return NULL;
    i = (i + 1) & mask;
  }
  void *value = m->at[i].value;
  for (size_t j = (i + 1) & mask; m->at[j].key != NULL; j = (j + 1) & mask) {
    size_t home = tl_map_hash(m->at[j].key) & mask;
    if (((j - home) & mask) < ((j - i) & mask)) continue; /* it may not lie before its home */
    m->at[i] = m->at[j];
    i = j;
  }
  m->at[i].key = NULL;
  m->count--;
  return value;
}

#endif
