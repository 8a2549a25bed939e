/* stream.h: streams and events (stream.c). */
#ifndef TL_BACKEND_CUDA_STREAM_H
#define TL_BACKEND_CUDA_STREAM_H

#include "backend/cuda/cuda.h"

/* Events without timing, for order between streams and for memory. NULL when the runtime gives none. */
cudaEvent_t tl_cuda_take_event(int index);
void tl_cuda_give_event(int index, cudaEvent_t event); /* its recording is forgotten */
bool tl_cuda_event_done(cudaEvent_t event);

/* Work given to `after` from now on starts once what `before` holds now is done. Both may be of any device. */
tl_status tl_cuda_order(int index_before, void *before, void *after);

tl_status tl_cuda_stream_new(int index, bool urgent, void **stream);
void tl_cuda_stream_free(int index, bool urgent, void *stream);
void *tl_cuda_stream_current(int index);
tl_status tl_cuda_stream_use(int index, void *stream); /* NULL: the device's own one */
tl_status tl_cuda_stream_query(int index, void *stream, bool *done);
tl_status tl_cuda_stream_synchronize(int index, void *stream);
tl_status tl_cuda_stream_wait(int index, void *stream, void *event);
tl_status tl_cuda_event_new(int index, bool timing, void **event);
void tl_cuda_event_free(int index, void *event);
tl_status tl_cuda_event_record(int index, void *event, void *stream);
tl_status tl_cuda_event_query(void *event, bool *done);
tl_status tl_cuda_event_synchronize(void *event);
tl_status tl_cuda_event_elapsed(void *from, void *to, double *milliseconds);

#endif
