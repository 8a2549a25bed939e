/* tokens.h: token files as the loader reads them. */
#ifndef TL_DATA_TOKENS_H
#define TL_DATA_TOKENS_H

#include "core/error.h"

tl_tokens *tl_tokens_retain(tl_tokens *t);
/* TL_ERR_FORMAT when the file is not what was mapped any more. */
tl_status tl_tokens_check(const tl_tokens *t);
/* Tokens first .. first + n, which exist, as int64. Any thread may. */
void tl_tokens_copy(const tl_tokens *t, int64_t first, int64_t n, int64_t *to);

#endif
