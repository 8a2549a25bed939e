/* idx.c: the IDX format of MNIST (http://yann.lecun.com/exdb/mnist): two zero bytes, a type, the number of dims, the
 * sizes as big-endian u32, the elements in row-major order, big-endian. */
#include "core/tensor.h"
#include "data/source.h"

static tl_status parse(tl_source *s, tl_tensor **out) {
  unsigned char head[4], size[4];
  TL_TRY(tl_source_read(s, head, 4, "the IDX header"));
  if (head[0] != 0 || head[1] != 0)
    return TL_FAIL(TL_ERR_FORMAT, s->op, "%s: not an IDX file (it starts with %02x %02x, not 00 00)", s->label, head[0],
                   head[1]);
  tl_element e;
  switch (head[2]) {
    case 0x08: e = TL_ELEMENT_U8; break;
    case 0x09: e = TL_ELEMENT_I8; break;
    case 0x0b: e = TL_ELEMENT_I16; break;
    case 0x0c: e = TL_ELEMENT_I32; break;
    case 0x0d: e = TL_ELEMENT_F32; break;
    case 0x0e: e = TL_ELEMENT_F64; break;
    default: return TL_FAIL(TL_ERR_FORMAT, s->op, "%s: there is no IDX type 0x%02x", s->label, head[2]);
  }
  int ndim = head[3];
  if (ndim > TL_MAX_DIMS)
    return TL_FAIL(TL_ERR_FORMAT, s->op, "%s: %d dims, a tensor has 0 to %d", s->label, ndim, TL_MAX_DIMS);
  int64_t shape[TL_MAX_DIMS];
  for (int d = 0; d < ndim; d++) {
    TL_TRY(tl_source_read(s, size, 4, "the IDX header"));
    shape[d] = (int64_t)size[0] << 24 | size[1] << 16 | size[2] << 8 | size[3];
  }
  tl_tensor *t;
  TL_TRY(tl_source_tensor(s, e, true, ndim, shape, &t));
  return tl_give(tl_source_finish(s), t, out);
}

tl_status tl_read_idx(const char *path, tl_tensor **out) {
  tl_source s;
  tl_status st = tl_source_open(&s, "idx", path, true);
  if (st == TL_OK) st = parse(&s, out);
  tl_source_close(&s);
  return st;
}
