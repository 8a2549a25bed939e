/* data.h: loaders and file formats (a part of tlua.h).
 *
 * Readers check every size before they allocate, refuse what is not exactly the format, and never run code from a file:
 * TL_ERR_IO when the system refuses, TL_ERR_FORMAT when the file is not what it claims to be (the message names the
 * file and the offence), TL_ERR_UNSUPPORTED for a legal file with something that a tensor cannot hold. idx, csv, npy and
 * text are read through gzip when the file starts with gzip's magic. All tensors are made on the CPU. Stored int8, int16
 * and uint16 become int32, uint32 becomes int64. Writers write a temporary file beside the target, sync it and rename
 * it: the target is either the old file or the whole new one. */

/* ---- single tensors (engine/data/idx.c, npy.c, image.c, text.c) ---- */

TL_API tl_status tl_read_idx(const char *path, tl_tensor **out);   /* MNIST's format; uint8, int32, float32, float64 */
TL_API tl_status tl_read_npy(const char *path, tl_tensor **out);   /* NumPy's, versions 1 to 3, row-major result */
TL_API tl_status tl_write_npy(const char *path, tl_tensor *t);     /* version 1; bfloat16 has no NumPy type: an error */
TL_API tl_status tl_read_image(const char *path, tl_tensor **out); /* PNG or JPEG: uint8 (C, H, W), C 1 to 4 */
TL_API tl_status tl_read_bytes(const char *path, double limit, tl_tensor **out); /* uint8 (n); n > limit is an error */
TL_API tl_status tl_write_bytes(const char *path, const char *bytes, int64_t n);

/* ---- named tensors (engine/data/archive.c) ---- */

typedef struct tl_archive tl_archive;

TL_API void tl_archive_free(tl_archive *a); /* NULL is fine; tensors taken from it live on */
TL_API int tl_archive_count(const tl_archive *a);
TL_API const char *tl_archive_name(const tl_archive *a, int i); /* lives as long as the archive */
TL_API tl_status tl_archive_tensor(const tl_archive *a, int i, tl_tensor **out);
TL_API int tl_archive_notes(const tl_archive *a); /* pairs of strings beside the tensors */
TL_API const char *tl_archive_note_key(const tl_archive *a, int i);
TL_API const char *tl_archive_note(const tl_archive *a, int i);

/* ---- safetensors (engine/data/safetensors.c, safetensors_write.c): https://github.com/huggingface/safetensors ---- */

TL_API tl_status tl_read_safetensors(const char *path, tl_archive **out); /* notes: __metadata__ */
TL_API tl_status tl_write_safetensors(const char *path, int n, const char *const *names, tl_tensor *const *tensors,
                                      int notes, const char *const *keys, const char *const *values);

/* ---- npz (engine/data/npz.c): a zip file of npy files, names without ".npy" ---- */

TL_API tl_status tl_read_npz(const char *path, tl_archive **out);

/* ---- csv (engine/data/csv.c): RFC 4180 ---- */

typedef struct tl_csv_options {
  int delimiter;            /* ',' */
  int header;               /* 0 none, 1 the first record, -1 the first record when one of its fields is not a number */
  int columns;              /* how many are selected; 0: all */
  const char *const *names; /* [columns] by the header's name, an entry may be NULL: */
  const int *positions;     /* [columns] then by position, 0-based */
  bool allow_missing;       /* an empty field is nan instead of an error */
  int dtype;                /* of the table */
} tl_csv_options;
/* table (rows, columns); columns: its names, or positions as text without a header, each with its column (rows) */
TL_API tl_status tl_read_csv(const char *path, const tl_csv_options *options, tl_tensor **table, tl_archive **columns);

/* ---- characters as tokens (engine/data/vocab.c) ---- */

typedef struct tl_vocab tl_vocab;

/* The distinct Unicode code points of a UTF-8 text, ascending; the id of one is its place, from 0. Text that is not UTF-8
 * is TL_ERR_VALUE, with the byte. */
TL_API tl_status tl_vocab_new(const char *text, int64_t bytes, tl_vocab **out);
TL_API void tl_vocab_free(tl_vocab *v); /* NULL is fine */
TL_API int tl_vocab_size(const tl_vocab *v);
TL_API tl_status tl_vocab_characters(const tl_vocab *v, tl_tensor **out); /* all, as UTF-8: uint8 (bytes) */
/* int64 (characters). One that is not in the vocabulary becomes unknown_id; is that -1, it is TL_ERR_VALUE. */
TL_API tl_status tl_vocab_encode(const tl_vocab *v, const char *text, int64_t bytes, int unknown_id, tl_tensor **out);
/* Integer ids of any shape, row-major -> UTF-8: uint8 (bytes). */
TL_API tl_status tl_vocab_decode(const tl_vocab *v, tl_tensor *ids, tl_tensor **out);

/* ---- byte-level BPE (engine/data/bpe_*.c): Sennrich et al. 2016, on bytes as in GPT-2 ---- */

typedef struct tl_bpe tl_bpe;

/* A tokenizer.json of Hugging Face's tokenizers: byte-level BPE; pre-tokenizers ByteLevel, Split by a regular expression,
 * Digits and sequences of them; normalizer NFC; post-processor TemplateProcessing. Truncation and padding are no concern of
 * a tokenizer here. TL_ERR_UNSUPPORTED names whatever else the file asks for. */
TL_API tl_status tl_bpe_load(const char *path, tl_bpe **out);
TL_API tl_status tl_bpe_load_gpt2(const char *vocab, const char *merges, tl_bpe **out); /* vocab.json, merges.txt */
TL_API tl_status tl_bpe_parse(const char *text, int64_t bytes, tl_bpe **out); /* the text of a tokenizer.json */
TL_API tl_status tl_bpe_save(const tl_bpe *b, const char *path);              /* as a tokenizer.json */
TL_API tl_status tl_bpe_text(const tl_bpe *b, tl_tensor **out);               /* the same text: uint8 (bytes) */
TL_API void tl_bpe_free(tl_bpe *b);                                           /* NULL is fine */
TL_API int tl_bpe_size(const tl_bpe *b);                                      /* one more than the largest id */
TL_API int tl_bpe_find(const tl_bpe *b, const char *bytes,
                       int64_t n); /* the id of a token's bytes; -1: there is none */
/* The bytes of a token, which live as long as the tokenizer; NULL: there is none. */
TL_API const char *tl_bpe_token(const tl_bpe *b, int id, int *length);
TL_API bool tl_bpe_is_special(const tl_bpe *b, int id);
/* Any bytes -> ids: int64 or int32 (tokens). What is not UTF-8 is encoded, too, as pieces of their own. add_special_tokens:
 * with those of the template around it. Special tokens in the text become their ids: those of `allowed`, or all when
 * allowed_count is -1; others are text like any. A tokenizer belongs to one thread at a time. */
TL_API tl_status tl_bpe_encode(tl_bpe *b, const char *text, int64_t bytes, bool add_special_tokens, int allowed_count,
                               const int *allowed, int dtype, tl_tensor **out);
/* Integer ids of any shape, row-major -> uint8 (bytes). replace: what is not UTF-8 becomes U+FFFD. */
TL_API tl_status tl_bpe_decode(const tl_bpe *b, tl_tensor *ids, bool skip_special_tokens, bool replace,
                               tl_tensor **out);

/* Learns merges from texts: the most frequent pair first, of equals the one with the smaller ids. pattern: the regular
 * expression (PCRE2, Unicode) whose matches are the pieces of a text; NULL: GPT-2's. */
typedef struct tl_bpe_trainer tl_bpe_trainer;
TL_API tl_status tl_bpe_trainer_new(const char *pattern, tl_bpe_trainer **out);
TL_API tl_status tl_bpe_trainer_feed(tl_bpe_trainer *t, const char *text, int64_t bytes); /* counts its pieces */
/* Once: merges until there are vocab_size tokens (special ones first, then the bytes) or no pair occurs min_frequency
 * times. */
TL_API tl_status tl_bpe_trainer_finish(tl_bpe_trainer *t, int vocab_size, double min_frequency, int n,
                                       const char *const *special, tl_bpe **out);
TL_API void tl_bpe_trainer_free(tl_bpe_trainer *t); /* NULL is fine */

/* ---- token files (engine/data/tokens.c) ---- */

typedef struct tl_tokens tl_tokens;
typedef struct tl_token_writer tl_token_writer;

/* Maps a file of token ids into memory; pages are read when their ids are wanted. dtype: how an id is stored: "uint8",
 * "uint16", "int32", "uint32", "int64"; NULL: as its header says (npy, llm.c's data files), uint16 without one. A length
 * that is no whole number of ids or not what a header promises is TL_ERR_FORMAT, and so is reading once the file was
 * changed. */
TL_API tl_status tl_tokens_open(const char *path, const char *dtype, tl_tokens **out);
TL_API void tl_tokens_free(tl_tokens *t); /* loaders of it go on; NULL is fine */
TL_API double tl_tokens_count(const tl_tokens *t);
TL_API const char *tl_tokens_dtype(const tl_tokens *t);
/* Ids first (0-based) .. first + n - 1: int64 (n). */
TL_API tl_status tl_tokens_read(const tl_tokens *t, int64_t first, int64_t n, tl_tensor **out);

/* Writes ids without a header, as long a corpus as there is room for. The file is there, whole, when close succeeds; a
 * writer that is freed without it leaves nothing. */
TL_API tl_status tl_token_writer_new(const char *path, const char *dtype, tl_token_writer **out);
TL_API tl_status tl_token_writer_add(tl_token_writer *w,
                                     tl_tensor *ids); /* integers, any shape; too big: TL_ERR_VALUE */
TL_API tl_status tl_token_writer_close(tl_token_writer *w);
TL_API void tl_token_writer_free(tl_token_writer *w); /* NULL is fine */

/* ---- TensorBoard's event files (engine/data/tensorboard.c) ---- */

typedef struct tl_events tl_events;

/* A new file; its name must hold "tfevents" for TensorBoard to find it. TL_ERR_IO: there is one already. `time`, here and
 * below: seconds since 1970. What was written is in the file when a call returns, so that it can be read meanwhile. */
TL_API tl_status tl_events_new(const char *path, double time, tl_events **out);
TL_API void tl_events_free(tl_events *e); /* closes; NULL is fine */
/* What other files of the folder have of `step` and later steps is void: a run goes on from before. */
TL_API tl_status tl_events_restart(tl_events *e, double time, int64_t step);
TL_API tl_status tl_events_scalar(tl_events *e, double time, int64_t step, const char *tag, double number);
TL_API tl_status tl_events_text(tl_events *e, double time, int64_t step, const char *tag,
                                const char *text); /* Markdown */
/* Any shape; numbers that are not finite are left out. */
TL_API tl_status tl_events_histogram(tl_events *e, double time, int64_t step, const char *tag, tl_tensor *t);

/* ---- batches (engine/data/loader.c) ---- */

typedef struct tl_loader tl_loader;

/* Batches of `batch` samples gathered along dim 0 of n tensors (all of the same first size; CPU), in the order of `order`
 * (int64 (count), 0-based). workers > 0: as many threads gather ahead, up to workers * prefetch batches; the results do
 * not depend on it. The tensors must not be written while the loader lives. */
TL_API tl_status tl_loader_new(int n, tl_tensor *const *tensors, tl_tensor *order, int64_t batch, bool drop_last,
                               int workers, int prefetch, tl_loader **out);
/* Windows of a token file. Sample i: x = the `context` ids from i * stride on, y = those one further on, what a language
 * model is to predict; a batch: both int64 (batch, context). */
TL_API tl_status tl_loader_windows(tl_tokens *t, int64_t context, int64_t stride, tl_tensor *order, int64_t batch,
                                   bool drop_last, int workers, int prefetch, tl_loader **out);
TL_API double tl_window_count(const tl_tokens *t, int64_t context, int64_t stride); /* how many samples there are */
/* Batches that are begun from now on lie in pinned memory. TL_ERR_DEVICE: there is no CUDA device. */
TL_API tl_status tl_loader_pin(tl_loader *l);
/* The next batch: n tensors (batch, ...), the last one may be shorter. *more = false (and no tensors) at the end. */
TL_API tl_status tl_loader_next(tl_loader *l, tl_tensor **out, bool *more);
TL_API void tl_loader_free(tl_loader *l); /* stops and joins the threads at any moment; NULL is fine */
