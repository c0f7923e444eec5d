// Two buffers that the uses of an exchange take in turn. How many uses there were stands in memory
// that a kernel keeps (resolve.h), so the same launches may be repeated, for instance by a CUDA
// graph, and each time mean the other buffer.
#pragma once

#include <cstdint>

#include "csrc/fifo/host_device.h"

namespace uccl::cuda {

struct Turn {
  static constexpr uint32_t kBuffers = 2;

  const uint64_t* uses = nullptr;  // null: the first buffer, always

  UCCL_HOST_DEVICE uint64_t buffer() const { return uses == nullptr ? 0 : *uses % kBuffers; }
};

}  // namespace uccl::cuda
