/* einsum.c: sums of products by the names of dims, e.g. "bij,bjk->bik" (Einstein's convention, as numpy and PyTorch
 * have it). Everything is made of recorded operations: diagonals, sums, permutations and one batched product for each
 * operand after the first, from left to right. */
#include <string.h>

#include "autograd/tape.h"
#include "core/tensor.h"
#include "ops/autocast.h"

#define OP "einsum"
#define MAX_TERMS 16
#define LETTERS 52
#define LABELS (LETTERS + TL_MAX_DIMS) /* letters, then the dims that "..." stands for */

/* The labels of one operand or of the result, a dim each. */
typedef struct term {
  int n;
  uint8_t label[2 * LETTERS];
  int ellipsis; /* how many labels stand before "...", -1: there is none */
} term;

typedef struct plan {
  const char *equation;
  int terms;
  term in[MAX_TERMS], out;
  bool has_output;      /* "->" was written */
  int ellipsis_dims;    /* the most that "..." stands for in any operand */
  int64_t size[LABELS]; /* -1: not seen */
  int first[LABELS];    /* the operand that gave the size */
} plan;

/* A tensor (owned) and the labels of its dims. */
typedef struct operand {
  tl_tensor *t;
  int n;
  uint8_t label[TL_MAX_DIMS];
} operand;

static char letter_of(int label) {
  return label >= LETTERS ? '.' : label < 26 ? (char)('A' + label) : (char)('a' + label - 26);
}

/* ---- the equation ---- */

/* Reads one term up to ',', "->" or the end. */
static tl_status parse_term(const char *equation, const char **at, term *t) {
  t->n = 0;
  t->ellipsis = -1;
  for (const char *c = *at;; c++) {
    if (*c == '\0' || *c == ',' || (c[0] == '-' && c[1] == '>')) {
      *at = c;
      return TL_OK;
    }
    if (*c == ' ') continue;
    if (c[0] == '.' && c[1] == '.' && c[2] == '.') {
      if (t->ellipsis >= 0) return TL_FAIL(TL_ERR_VALUE, OP, "'%s': a term has more than one '...'", equation);
      t->ellipsis = t->n;
      c += 2;
      continue;
    }
    bool upper = *c >= 'A' && *c <= 'Z', lower = *c >= 'a' && *c <= 'z';
    if (!upper && !lower) return TL_FAIL(TL_ERR_VALUE, OP, "'%s': '%c' is no letter", equation, *c);
    if (t->n == LETTERS) return TL_FAIL(TL_ERR_VALUE, OP, "'%s': a term of more than %d letters", equation, LETTERS);
    t->label[t->n++] = (uint8_t)(upper ? *c - 'A' : *c - 'a' + 26);
  }
}

static tl_status parse(plan *p, int operands) {
  const char *at = p->equation;
  for (p->terms = 0;;) {
    if (p->terms == MAX_TERMS) return TL_FAIL(TL_ERR_VALUE, OP, "'%s': more than %d operands", p->equation, MAX_TERMS);
    TL_TRY(parse_term(p->equation, &at, &p->in[p->terms++]));
    if (*at != ',') break;
    at++;
  }
  p->has_output = *at == '-';
  if (p->has_output) {
    at += 2;
    TL_TRY(parse_term(p->equation, &at, &p->out));
    if (*at != '\0') return TL_FAIL(TL_ERR_VALUE, OP, "'%s': the result is one term", p->equation);
  }
  if (p->terms != operands)
    return TL_FAIL(TL_ERR_VALUE, OP, "'%s' has %d operand%s, got %d", p->equation, p->terms, p->terms == 1 ? "" : "s",
                   operands);
  return TL_OK;
}

/* Replaces "..." in t by `dims` labels, aligned to the right. */
static void insert_ellipsis(term *t, int dims, int most) {
  if (t->ellipsis < 0) return;
  memmove(t->label + t->ellipsis + dims, t->label + t->ellipsis, (size_t)(t->n - t->ellipsis));
  for (int i = 0; i < dims; i++) t->label[t->ellipsis + i] = (uint8_t)(LETTERS + most - dims + i);
  t->n += dims;
}

/* Fits the operands' terms to their dims. */
static tl_status expand_terms(plan *p, tl_tensor *const *tensors) {
  for (int i = 0; i < p->terms; i++) {
    const term *t = &p->in[i];
    const int more = tensors[i]->ndim - t->n;
    if (more < 0 || (more > 0 && t->ellipsis < 0))
      return TL_FAIL(TL_ERR_SHAPE, OP, "'%s': operand %lld of %s has %d dims, its term names %d", p->equation,
                     (long long)tl_position(i), tl_shape_of(tensors[i]), tensors[i]->ndim, t->n);
    if (t->ellipsis >= 0 && more > p->ellipsis_dims) p->ellipsis_dims = more;
  }
  for (int i = 0; i < p->terms; i++) insert_ellipsis(&p->in[i], tensors[i]->ndim - p->in[i].n, p->ellipsis_dims);
  return TL_OK;
}

/* Sizes of all labels; a size of 1 broadcasts. */
static tl_status measure(plan *p, tl_tensor *const *tensors) {
  for (int l = 0; l < LABELS; l++) p->size[l] = -1;
  for (int i = 0; i < p->terms; i++)
    for (int d = 0; d < p->in[i].n; d++) {
      const int l = p->in[i].label[d];
      const int64_t size = tensors[i]->shape[d], known = p->size[l];
      if (known != -1 && known != size && known != 1 && size != 1)
        return TL_FAIL(TL_ERR_SHAPE, OP, "'%s': '%c' is %lld in operand %lld and %lld in operand %lld", p->equation,
                       letter_of(l), (long long)known, (long long)tl_position(p->first[l]), (long long)size,
                       (long long)tl_position(i));
      if (known == -1 || known == 1) p->size[l] = size, p->first[l] = i;
    }
  return TL_OK;
}

/* The result's labels: as written, or else "..." and then the letters that occur once, in alphabetical order. */
static tl_status settle_output(plan *p) {
  term *o = &p->out;
  if (!p->has_output) {
    int count[LETTERS] = {0};
    for (int i = 0; i < p->terms; i++)
      for (int d = 0; d < p->in[i].n; d++)
        if (p->in[i].label[d] < LETTERS) count[p->in[i].label[d]]++;
    o->n = 0;
    o->ellipsis = 0;
    for (int l = 0; l < LETTERS; l++)
      if (count[l] == 1) o->label[o->n++] = (uint8_t)l;
  }
  bool seen[LABELS] = {false};
  for (int d = 0; d < o->n; d++) {
    const int l = o->label[d];
    if (seen[l]) return TL_FAIL(TL_ERR_VALUE, OP, "'%s': the result names '%c' twice", p->equation, letter_of(l));
    if (p->size[l] == -1)
      return TL_FAIL(TL_ERR_VALUE, OP, "'%s': no operand has the result's '%c'", p->equation, letter_of(l));
    seen[l] = true;
  }
  insert_ellipsis(o, p->ellipsis_dims, p->ellipsis_dims);
  if (o->n > TL_MAX_DIMS)
    return TL_FAIL(TL_ERR_SHAPE, OP, "'%s': the result has %d dims, a tensor has at most %d", p->equation, o->n,
                   TL_MAX_DIMS);
  return TL_OK;
}

/* ---- diagonals ---- */

typedef struct diagonal {
  int ndim, from, to; /* dims of the input: `from` was merged into `to` */
  int64_t shape[TL_MAX_DIMS];
} diagonal;

/* t's elements with equal positions in dims a < b; dim b goes. Unrecorded. */
static tl_status diagonal_of(const tl_tensor *t, int a, int b, tl_tensor **out) {
  int64_t shape[TL_MAX_DIMS], strides[TL_MAX_DIMS];
  int n = 0;
  for (int d = 0; d < t->ndim; d++) {
    if (d == b) continue;
    shape[n] = t->shape[d];
    strides[n++] = t->strides[d] + (d == a ? t->strides[b] : 0);
  }
  return tl_alias_as(t, n, shape, strides, t->offset, out);
}

static tl_status diagonal_backward(tl_node *n, tl_tensor *const *grad_out, tl_tensor **grad_in) {
  const diagonal *p = n->payload;
  tl_tensor *dx, *part = NULL;
  TL_TRY(tl_full(p->ndim, p->shape, 0, grad_out[0]->dtype, grad_out[0]->device, &dx));
  tl_status st = diagonal_of(dx, p->to, p->from, &part);
  if (st == TL_OK) st = tl_copy_(part, grad_out[0]);
  tl_tensor_free(part);
  return tl_give(st, dx, &grad_in[0]);
}

static const tl_node_class diagonal_class = {"diagonal", diagonal_backward, NULL};

static tl_status take_diagonal(tl_tensor *t, int a, int b, tl_tensor **out) {
  diagonal p = {.ndim = t->ndim, .from = b, .to = a};
  for (int d = 0; d < t->ndim; d++) p.shape[d] = t->shape[d];
  tl_tensor *y;
  TL_TRY(diagonal_of(t, a, b, &y));
  return tl_give(tl_record_view(&diagonal_class, y, t, &p, sizeof p), y, out);
}

/* ---- operands ---- */

/* Takes over `t` as o's tensor when st is a success; dim d of o goes. */
static tl_status drop_dim(operand *o, int d, tl_status st, tl_tensor *t) {
  if (st != TL_OK) return st;
  tl_tensor_free(o->t);
  o->t = t;
  memmove(o->label + d, o->label + d + 1, (size_t)(o->n - d - 1));
  o->n--;
  return TL_OK;
}

static int dim_of(const operand *o, int label) {
  for (int d = 0; d < o->n; d++)
    if (o->label[d] == label) return d;
  return -1;
}

/* A tensor with its labels: each once, and none that only broadcasts. */
static tl_status make_operand(const plan *p, int i, tl_tensor *t, operand *o) {
  tl_tensor *next = NULL;
  o->t = tl_hold(t);
  o->n = p->in[i].n;
  memcpy(o->label, p->in[i].label, (size_t)o->n);
  for (int d = o->n - 1; d >= 0; d--)
    if (o->t->shape[d] == 1 && p->size[o->label[d]] != 1) {
      tl_status st = tl_select(o->t, d, 0, &next);
      TL_TRY(drop_dim(o, d, st, next));
    }
  for (int d = o->n - 1; d > 0; d--) {
    const int same = dim_of(o, o->label[d]);
    if (same == d) continue;
    tl_status st = take_diagonal(o->t, same, d, &next);
    TL_TRY(drop_dim(o, d, st, next));
  }
  return TL_OK;
}

/* Sums over the labels that `keep` does not have. */
static tl_status sum_out(operand *o, const bool keep[LABELS]) {
  int dims[TL_MAX_DIMS], n = 0, kept = 0;
  for (int d = 0; d < o->n; d++) {
    if (!keep[o->label[d]]) dims[n++] = d;
    else o->label[kept++] = o->label[d];
  }
  if (n == 0) return TL_OK;
  tl_tensor *y;
  TL_TRY(tl_sum(o->t, n, dims, false, &y));
  tl_tensor_free(o->t);
  o->t = y;
  o->n = kept;
  return TL_OK;
}

/* o's dims in the order of `groups` (lists of labels), each group as one dim. */
static tl_status grouped(const operand *o, int groups, const term *group, tl_tensor **out) {
  int dims[TL_MAX_DIMS], n = 0;
  int64_t shape[3];
  for (int g = 0; g < groups; g++) {
    shape[g] = 1;
    for (int i = 0; i < group[g].n; i++) {
      dims[n] = dim_of(o, group[g].label[i]);
      shape[g] *= o->t->shape[dims[n++]];
    }
  }
  tl_tensor *ordered;
  TL_TRY(tl_permute(o->t, n, dims, &ordered));
  tl_status st = tl_reshape(ordered, groups, shape, out);
  tl_tensor_free(ordered);
  return st;
}

static void add_label(term *t, int label) { t->label[t->n++] = (uint8_t)label; }

/* y (batch, m, n) = a (batch, m, k) b (batch, k, n); without k a plain product with broadcasting */
static tl_status multiply(const operand *a, const operand *b, const term *batch, const term *m, const term *k,
                          const term *n, tl_tensor **out) {
  const term left[3] = {*batch, *m, *k}, right[3] = {*batch, *k, *n};
  tl_tensor *x, *y = NULL;
  TL_TRY(grouped(a, 3, left, &x));
  tl_status st = grouped(b, 3, right, &y);
  if (st == TL_OK) st = k->n > 0 ? tl_bmm(x, y, out) : tl_mul(x, y, out);
  tl_tensor_free(x);
  tl_tensor_free(y);
  return st;
}

/* a = the product of a and b, summed over what neither the result nor a later operand names (keep) */
static tl_status contract(const plan *p, operand *a, operand *b, const bool keep[LABELS]) {
  bool needed[LABELS];
  for (int l = 0; l < LABELS; l++) needed[l] = keep[l] || dim_of(b, l) >= 0;
  TL_TRY(sum_out(a, needed));
  for (int l = 0; l < LABELS; l++) needed[l] = keep[l] || dim_of(a, l) >= 0;
  TL_TRY(sum_out(b, needed));
  term batch = {0}, m = {0}, k = {0}, n = {0};
  for (int d = 0; d < a->n; d++)
    add_label(dim_of(b, a->label[d]) < 0 ? &m : keep[a->label[d]] ? &batch : &k, a->label[d]);
  for (int d = 0; d < b->n; d++)
    if (dim_of(a, b->label[d]) < 0) add_label(&n, b->label[d]);
  const int ndim = batch.n + m.n + n.n;
  if (ndim > TL_MAX_DIMS)
    return TL_FAIL(TL_ERR_SHAPE, OP, "'%s': a product on the way has %d dims, a tensor has at most %d", p->equation,
                   ndim, TL_MAX_DIMS);
  tl_tensor *product, *shaped;
  TL_TRY(multiply(a, b, &batch, &m, &k, &n, &product));
  int64_t shape[TL_MAX_DIMS];
  const term *parts[3] = {&batch, &m, &n};
  uint8_t labels[TL_MAX_DIMS];
  int count = 0;
  for (int g = 0; g < 3; g++)
    for (int i = 0; i < parts[g]->n; i++) {
      labels[count] = parts[g]->label[i];
      shape[count++] = p->size[parts[g]->label[i]];
    }
  tl_status st = tl_reshape(product, count, shape, &shaped);
  tl_tensor_free(product);
  if (st != TL_OK) return st;
  tl_tensor_free(a->t);
  a->t = shaped;
  a->n = count;
  memcpy(a->label, labels, (size_t)count);
  return TL_OK;
}

/* ---- all together ---- */

static void labels_from(const plan *p, int operand, bool keep[LABELS]) {
  memset(keep, 0, LABELS * sizeof *keep);
  for (int d = 0; d < p->out.n; d++) keep[p->out.label[d]] = true;
  for (int i = operand; i < p->terms; i++)
    for (int d = 0; d < p->in[i].n; d++) keep[p->in[i].label[d]] = true;
}

static tl_status evaluate(const plan *p, tl_tensor *const *tensors, operand *total, operand *next) {
  bool keep[LABELS];
  TL_TRY(make_operand(p, 0, tensors[0], total));
  for (int i = 1; i < p->terms; i++) {
    labels_from(p, i + 1, keep);
    TL_TRY(make_operand(p, i, tensors[i], next));
    TL_TRY(contract(p, total, next, keep));
    tl_tensor_free(next->t);
    next->t = NULL;
  }
  labels_from(p, p->terms, keep);
  return sum_out(total, keep);
}

static tl_status einsum(const char *equation, int n, tl_tensor *const *tensors, tl_tensor **out) {
  plan p = {.equation = equation};
  TL_TRY(parse(&p, n));
  for (int i = 1; i < n; i++) {
    TL_TRY(tl_check_same_device(OP, tensors[0], tensors[i]));
    if (tensors[i]->dtype != tensors[0]->dtype)
      return TL_FAIL(TL_ERR_DTYPE, OP, "%s and %s: convert one of them with to()", tl_dtype_name(tensors[0]->dtype),
                     tl_dtype_name(tensors[i]->dtype));
  }
  TL_TRY(expand_terms(&p, tensors));
  TL_TRY(measure(&p, tensors));
  TL_TRY(settle_output(&p));
  operand total = {0}, next = {0};
  tl_status st = evaluate(&p, tensors, &total, &next);
  if (st == TL_OK) {
    int dims[TL_MAX_DIMS];
    for (int d = 0; d < p.out.n; d++) dims[d] = dim_of(&total, p.out.label[d]);
    st = tl_permute(total.t, p.out.n, dims, out);
  }
  tl_tensor_free(total.t);
  tl_tensor_free(next.t);
  return st;
}

/* Under autocast the operands, and everything on the way, are of the low precision type. */
tl_status tl_einsum(const char *equation, int n, tl_tensor *const *tensors, tl_tensor **out) {
  if (!tl_autocast_on) return einsum(equation, n, tensors, out);
  tl_tensor *cast[MAX_TERMS];
  if (n < 1 || n > MAX_TERMS) return einsum(equation, n, tensors, out); /* which refuses */
  memcpy(cast, tensors, (size_t)n * sizeof *cast);
  bool converts = tl_autocast_wants(TL_CAST_LOW, n, cast);
  if (converts) TL_TRY(tl_autocast_convert(TL_CAST_LOW, n, cast));
  bool former = tl_autocast_pause();
  tl_status st = einsum(equation, n, cast, out);
  tl_autocast_on = former;
  for (int i = 0; i < n && converts; i++) tl_tensor_free(cast[i]);
  return st;
}
