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

/* ---- batches (engine/data/loader.c) ---- */

typedef struct tl_loader tl_loader;

/* Batches of `batch` samples gathered along dim 0 of n tensors (all of the same first size; CPU), in the order of `order`
 * (int64 (count), 0-based). workers > 0: as many threads gather ahead, up to workers * prefetch batches; the results do
 * not depend on it. The tensors must not be written while the loader lives. */
TL_API tl_status tl_loader_new(int n, tl_tensor *const *tensors, tl_tensor *order, int64_t batch, bool drop_last,
                               int workers, int prefetch, tl_loader **out);
/* Batches that are begun from now on lie in pinned memory. TL_ERR_DEVICE: there is no CUDA device. */
TL_API tl_status tl_loader_pin(tl_loader *l);
/* The next batch: n tensors (batch, ...), the last one may be shorter. *more = false (and no tensors) at the end. */
TL_API tl_status tl_loader_next(tl_loader *l, tl_tensor **out, bool *more);
TL_API void tl_loader_free(tl_loader *l); /* stops and joins the threads at any moment; NULL is fine */
