/* update_rules.h: the rules for one type T; U(name) is its prefix. Included by update.h once for each type. */

typedef struct U(coefficients) {
#define TL_UPDATE_FIELD(name) T name;
  TL_UPDATE_COEFFICIENTS(TL_UPDATE_FIELD)
#undef TL_UPDATE_FIELD
} U(coefficients);

TL_FN U(coefficients) U(narrow)(const tl_update_coefficients *by) {
  U(coefficients) c;
#define TL_UPDATE_FIELD(name) c.name = (T)by->name;
  TL_UPDATE_COEFFICIENTS(TL_UPDATE_FIELD)
#undef TL_UPDATE_FIELD
  return c;
}

/* The gradient as the rules see it: negated to maximize, with the coupled weight decay. */
TL_FN T U(gradient)(const U(coefficients) * c, T g, T p) { return c->sign * g + c->decay * p; }

/* ---- SGD: a = momentum buffer; beta1 = momentum, rest1 = 1 - dampening ---- */

TL_FN void U(update_sgd)(const U(coefficients) * c, T g, T *p) { *p -= c->rate * U(gradient)(c, g, *p); }

TL_FN void U(update_sgd_first)(const U(coefficients) * c, T g, T *p, T *a) {
  *a = U(gradient)(c, g, *p);
  *p -= c->rate * *a;
}

TL_FN void U(update_sgd_momentum)(const U(coefficients) * c, T g, T *p, T *a) {
  *a = c->beta1 * *a + c->rest1 * U(gradient)(c, g, *p);
  *p -= c->rate * *a;
}

TL_FN void U(update_nesterov_first)(const U(coefficients) * c, T g, T *p, T *a) {
  g = U(gradient)(c, g, *p);
  *a = g;
  *p -= c->rate * (g + c->beta1 * *a);
}

TL_FN void U(update_nesterov)(const U(coefficients) * c, T g, T *p, T *a) {
  g = U(gradient)(c, g, *p);
  *a = c->beta1 * *a + c->rest1 * g;
  *p -= c->rate * (g + c->beta1 * *a);
}

/* ---- Adam, AdamW: a, b = first and second moment, d = largest second moment; rate = lr / (1 - beta1^t),
 * scale = 1 / sqrt(1 - beta2^t) ---- */

TL_FN void U(update_adam)(const U(coefficients) * c, T g, T *p, T *a, T *b) {
  g = U(gradient)(c, g, *p);
  *a += c->rest1 * (g - *a);
  *b = c->beta2 * *b + c->rest2 * g * g;
  *p = c->keep * *p - c->rate * *a / (f_sqrt(*b) * c->scale + c->eps);
}

TL_FN void U(update_amsgrad)(const U(coefficients) * c, T g, T *p, T *a, T *b, T *d) {
  g = U(gradient)(c, g, *p);
  *a += c->rest1 * (g - *a);
  *b = c->beta2 * *b + c->rest2 * g * g;
  *d = f_max(*b, *d);
  *p = c->keep * *p - c->rate * *a / (f_sqrt(*d) * c->scale + c->eps);
}

/* ---- RMSprop: a = mean square (beta2 = alpha), b = momentum buffer (beta1 = momentum); centered: the mean comes
 * last ---- */

TL_FN void U(update_rmsprop)(const U(coefficients) * c, T g, T *p, T *a) {
  g = U(gradient)(c, g, *p);
  *a = c->beta2 * *a + c->rest2 * g * g;
  *p -= c->rate * g / (f_sqrt(*a) + c->eps);
}

TL_FN void U(update_rmsprop_momentum)(const U(coefficients) * c, T g, T *p, T *a, T *b) {
  g = U(gradient)(c, g, *p);
  *a = c->beta2 * *a + c->rest2 * g * g;
  *b = c->beta1 * *b + g / (f_sqrt(*a) + c->eps);
  *p -= c->rate * *b;
}

/* The variance; rounding must not make it negative, nan must stay. */
TL_FN T U(centre)(T square, T mean) {
  T v = square - mean * mean;
  return v < 0 ? 0 : v;
}

TL_FN void U(update_rmsprop_centered)(const U(coefficients) * c, T g, T *p, T *a, T *b) {
  g = U(gradient)(c, g, *p);
  *a = c->beta2 * *a + c->rest2 * g * g;
  *b += c->rest2 * (g - *b);
  *p -= c->rate * g / (f_sqrt(U(centre)(*a, *b)) + c->eps);
}

TL_FN void U(update_rmsprop_centered_momentum)(const U(coefficients) * c, T g, T *p, T *a, T *b, T *d) {
  g = U(gradient)(c, g, *p);
  *a = c->beta2 * *a + c->rest2 * g * g;
  *d += c->rest2 * (g - *d);
  *b = c->beta1 * *b + g / (f_sqrt(U(centre)(*a, *d)) + c->eps);
  *p -= c->rate * *b;
}

/* ---- Adagrad: a = sum of squares; rate = lr / (1 + (t - 1) lr_decay) ---- */

TL_FN void U(update_adagrad)(const U(coefficients) * c, T g, T *p, T *a) {
  g = U(gradient)(c, g, *p);
  *a += g * g;
  *p -= c->rate * g / (f_sqrt(*a) + c->eps);
}

/* ---- NAdam, RAdam: a, b = first and second moment ---- */

/* scale = 1 / sqrt(1 - beta2^t) */
TL_FN void U(update_nadam)(const U(coefficients) * c, T g, T *p, T *a, T *b) {
  g = U(gradient)(c, g, *p);
  *a += c->rest1 * (g - *a);
  *b = c->beta2 * *b + c->rest2 * g * g;
  *p = c->keep * *p - (c->rate2 * g + c->rate * *a) / (f_sqrt(*b) * c->scale + c->eps);
}

/* rate = lr / (1 - beta1^t) */
TL_FN void U(update_radam)(const U(coefficients) * c, T g, T *p, T *a, T *b) {
  g = U(gradient)(c, g, *p);
  *a += c->rest1 * (g - *a);
  *b = c->beta2 * *b + c->rest2 * g * g;
  *p = c->keep * *p - c->rate * *a;
}

/* rate = lr / (1 - beta1^t) * rectification * sqrt(1 - beta2^t): eps is added before the correction */
TL_FN void U(update_radam_rectified)(const U(coefficients) * c, T g, T *p, T *a, T *b) {
  g = U(gradient)(c, g, *p);
  *a += c->rest1 * (g - *a);
  *b = c->beta2 * *b + c->rest2 * g * g;
  *p = c->keep * *p - c->rate * *a / (f_sqrt(*b) + c->eps);
}
