/* tensorboard.c: event files, as TensorBoard reads them: a sequence of records (TFRecord), each a protocol buffer of
 * event.proto.
 *
 * A record: uint64 length, masked CRC32C of these 8 bytes, the data, masked CRC32C of the data; little-endian. The mask:
 * https://www.tensorflow.org/tutorials/load_data/tfrecord */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <isa-l/crc.h>

#include "core/memory.h"
#include "core/tensor.h"
#include "data/source.h"
#include "event.pb-c.h"

#define OP "TensorBoard"
#define FILE_VERSION "brain.Event:2"
#define MAX_RECORD (1 << 30)

struct tl_events {
  FILE *file;
  char label[TL_LABEL_CHARS];
};

/* ---- records ---- */

static uint32_t masked_crc(const void *data, size_t bytes) {
  uint32_t crc = ~crc32_iscsi((unsigned char *)data, (int)bytes, ~0U);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

static void put_little(unsigned char *to, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) to[i] = (unsigned char)(value >> 8 * i);
}

/* The record is in the file, for whoever reads it, when this returns. */
static tl_status write_record(tl_events *e, const unsigned char *data, size_t bytes) {
  unsigned char head[12], foot[4];
  put_little(head, bytes, 8);
  put_little(head + 8, masked_crc(head, 8), 4);
  put_little(foot, masked_crc(data, bytes), 4);
  if (fwrite(head, 1, 12, e->file) != 12 || fwrite(data, 1, bytes, e->file) != bytes ||
      fwrite(foot, 1, 4, e->file) != 4 || fflush(e->file) != 0)
    return TL_FAIL(TL_ERR_IO, OP, "%s: %s", e->label, strerror(errno));
  return TL_OK;
}

static tl_status write_event(tl_events *e, const Tl__Event *event) {
  size_t bytes = tl__event__get_packed_size(event);
  if (bytes > MAX_RECORD) return TL_FAIL(TL_ERR_VALUE, OP, "%s: an event of %zu bytes is too long", e->label, bytes);
  unsigned char *data = tl_host_alloc(bytes);
  if (data == NULL) return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for an event of %zu bytes", bytes);
  tl__event__pack(event, data);
  tl_status st = write_record(e, data, bytes);
  tl_host_free(data);
  return st;
}

static tl_status write_value(tl_events *e, double time, int64_t step, Tl__Value *value) {
  Tl__Summary summary = TL__SUMMARY__INIT;
  summary.n_value = 1;
  summary.value = &value;
  Tl__Event event = TL__EVENT__INIT;
  event.wall_time = time;
  event.step = step;
  event.what_case = TL__EVENT__WHAT_SUMMARY;
  event.summary = &summary;
  return write_event(e, &event);
}

/* ---- the file ---- */

void tl_events_free(tl_events *e) {
  if (e == NULL) return;
  if (e->file != NULL) fclose(e->file);
  tl_host_free(e);
}

static tl_status begin(tl_events *e, const char *path, double time) {
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd >= 0 && (e->file = fdopen(fd, "wb")) == NULL) close(fd);
  if (e->file == NULL) return TL_FAIL(TL_ERR_IO, OP, "%s: %s", e->label, strerror(errno));
  Tl__Event event = TL__EVENT__INIT;
  event.wall_time = time;
  event.what_case = TL__EVENT__WHAT_FILE_VERSION;
  event.file_version = FILE_VERSION;
  return write_event(e, &event);
}

tl_status tl_events_new(const char *path, double time, tl_events **out) {
  tl_events *e = tl_host_calloc(1, sizeof *e);
  if (e == NULL) return TL_FAIL(TL_ERR_MEMORY, OP, "no memory for an event file");
  tl_path_label(e->label, path);
  tl_status st = begin(e, path, time);
  if (st == TL_OK) *out = e;
  else tl_events_free(e);
  return st;
}

tl_status tl_events_restart(tl_events *e, double time, int64_t step) {
  Tl__SessionLog log = TL__SESSION_LOG__INIT;
  log.status = TL__SESSION_LOG__STATUS__START;
  Tl__Event event = TL__EVENT__INIT;
  event.wall_time = time;
  event.step = step;
  event.what_case = TL__EVENT__WHAT_SESSION_LOG;
  event.session_log = &log;
  return write_event(e, &event);
}

/* ---- what there is to show ---- */

tl_status tl_events_scalar(tl_events *e, double time, int64_t step, const char *tag, double number) {
  Tl__Value value = TL__VALUE__INIT;
  value.tag = (char *)tag;
  value.what_case = TL__VALUE__WHAT_SIMPLE_VALUE;
  value.simple_value = (float)number;
  return write_value(e, time, step, &value);
}

tl_status tl_events_text(tl_events *e, double time, int64_t step, const char *tag, const char *text) {
  Tl__Plugin plugin = TL__PLUGIN__INIT;
  plugin.plugin_name = "text";
  Tl__Metadata metadata = TL__METADATA__INIT;
  metadata.plugin_data = &plugin;
  Tl__Dim dim = TL__DIM__INIT, *dims = &dim;
  dim.size = 1;
  Tl__Shape shape = TL__SHAPE__INIT;
  shape.n_dim = 1;
  shape.dim = &dims;
  ProtobufCBinaryData bytes = {strlen(text), (uint8_t *)text};
  Tl__Tensor tensor = TL__TENSOR__INIT;
  tensor.dtype = TL__TENSOR__TYPE__STRING;
  tensor.tensor_shape = &shape;
  tensor.n_string_val = 1;
  tensor.string_val = &bytes;
  Tl__Value value = TL__VALUE__INIT;
  value.tag = (char *)tag;
  value.metadata = &metadata;
  value.what_case = TL__VALUE__WHAT_TENSOR;
  value.tensor = &tensor;
  return write_value(e, time, step, &value);
}

/* Equal buckets between the least and the largest finite number. h's limits and buckets are [bins]. */
static void count(Tl__Histogram *h, int bins, const double *x, int64_t n) {
  h->min = INFINITY;
  h->max = -INFINITY;
  for (int64_t i = 0; i < n; i++) {
    if (!isfinite(x[i])) continue;
    h->min = fmin(h->min, x[i]);
    h->max = fmax(h->max, x[i]);
    h->num += 1;
    h->sum += x[i];
    h->sum_squares += x[i] * x[i];
  }
  if (h->num == 0) h->min = h->max = 0;
  double width = (h->max - h->min) / bins;
  for (int b = 0; b < bins; b++) {
    h->bucket_limit[b] = b == bins - 1 ? h->max : h->min + width * (b + 1);
    h->bucket[b] = 0;
  }
  for (int64_t i = 0; i < n; i++) {
    if (!isfinite(x[i])) continue;
    double place = width > 0 ? (x[i] - h->min) / width : bins - 1;
    h->bucket[place < bins ? (int)place : bins - 1] += 1;
  }
}

tl_status tl_events_histogram(tl_events *e, double time, int64_t step, const char *tag, tl_tensor *t) {
  enum { BINS = 30 };
  double limits[BINS], buckets[BINS];
  Tl__Histogram h = TL__HISTOGRAM__INIT;
  h.n_bucket_limit = h.n_bucket = BINS;
  h.bucket_limit = limits;
  h.bucket = buckets;
  tl_tensor *host = NULL, *rows = NULL;
  bool grad = tl_set_grad_enabled(false);
  tl_status st = tl_to(t, TL_FLOAT64, TL_CPU, &host);
  if (st == TL_OK) st = tl_contiguous(host, &rows);
  tl_set_grad_enabled(grad);
  if (st == TL_OK) {
    count(&h, BINS, tl_data(rows), rows->numel);
    Tl__Value value = TL__VALUE__INIT;
    value.tag = (char *)tag;
    value.what_case = TL__VALUE__WHAT_HISTO;
    value.histo = &h;
    st = write_value(e, time, step, &value);
  }
  tl_tensor_free(host);
  tl_tensor_free(rows);
  return st;
}
