/* check_cuda.h: what the Check programs of this folder share: they are run with TLUA_CUDA=sim, or on a GPU. */
#ifndef CHECK_CUDA_H
#define CHECK_CUDA_H

#include "check_tl.h"

/* cuda:0; the plug-in is opened at first use. */
static inline tl_device cuda_device(void) {
  static tl_device device = -1;
  if (device < 0) ck_ok(tl_device_parse("cuda", &device));
  return device;
}

#endif
