/* utf8.h: UTF-8 as the Unicode standard defines it (chapter 3, table 3-7): no surrogates, no overlong forms. */
#ifndef TL_DATA_UTF8_H
#define TL_DATA_UTF8_H

#include <stddef.h>
#include <stdint.h>

typedef struct tl_utf8 {
  int length;    /* bytes of the character, or of the part that a reader replaces by one U+FFFD */
  int32_t point; /* -1: these bytes are no character */
} tl_utf8;

/* What starts at p; n > 0 bytes are there. */
static inline tl_utf8 tl_utf8_read(const char *p, size_t n) {
  const unsigned char *s = (const unsigned char *)p;
  if (s[0] < 0x80) return (tl_utf8){1, s[0]};
  if (s[0] < 0xC2 || s[0] > 0xF4) return (tl_utf8){1, -1};
  int length = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
  unsigned char low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80; /* what the second byte may be */
  unsigned char high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
  int32_t point = s[0] & (0x7F >> length);
  for (int i = 1; i < length; i++) {
    if ((size_t)i == n || s[i] < low || s[i] > high) return (tl_utf8){i, -1};
    point = point << 6 | (s[i] & 0x3F);
    low = 0x80, high = 0xBF;
  }
  return (tl_utf8){length, point};
}

/* The bytes of a code point, to[4]; returns how many. */
static inline int tl_utf8_write(int32_t c, char *to) {
  if (c < 0x80) return to[0] = (char)c, 1;
  int length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (int i = length - 1; i > 0; i--, c >>= 6) to[i] = (char)(0x80 | (c & 0x3F));
  to[0] = (char)((0xF00 >> length & 0xF0) | c);
  return length;
}

#endif
