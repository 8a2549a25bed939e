/* device.h: accelerators, as the engine's other files ask for them. */
#ifndef TL_BACKEND_DEVICE_H
#define TL_BACKEND_DEVICE_H

#include "backend/backend.h"

/* Of a device that a user named; TL_ERR_DEVICE where it is host memory. */
tl_status tl_accelerator_of(const char *op, tl_device device, const tl_accelerator **out);

/* Who shows the ranges that the engine opens by itself; NULL: nobody (TLUA_NVTX is not 1, or there is no accelerator). */
extern const tl_accelerator *tl_ranges;

#endif
