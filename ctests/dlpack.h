/* The part of dlpack.h 1.0 that the tests look into. */
#ifndef LANEWAY_TEST_DLPACK_H
#define LANEWAY_TEST_DLPACK_H

#include <stdint.h>

struct DLManagedTensorVersioned {
  struct { uint32_t major, minor; } version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  struct {
    void *data;
    struct { int32_t device_type, device_id; } device;
    int32_t ndim;
    struct { uint8_t code, bits; uint16_t lanes; } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
  } dl_tensor;
};

#endif
