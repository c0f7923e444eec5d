// Waiting, on the stream, for counters in pinned memory that a proxy raises when data has landed.
// The kernel is wait_kernel.h; this header needs no CUDA.
#pragma once

#include <cstdint>

#include "csrc/cuda/stream.h"

namespace uccl::cuda {

// Ends when counters[which[i]] >= thresholds[i] for all i, or when *abort is not 0.
struct WaitParams {
  const uint64_t* counters = nullptr;
  const uint32_t* which = nullptr;  // null: i itself
  const uint64_t* thresholds = nullptr;
  uint32_t count = 0;
  // Set once and for good, by whoever knows of the failure: it is what gives this wait its
  // deadline, for a kernel has no clock that a host could set.
  const uint64_t* abort = nullptr;
  uint64_t* outcome = nullptr;  // zeroed before; *abort where a counter was not waited for
};

// kInvalidArgument where a kernel could not run with these; no memory is read.
Status CheckParams(const WaitParams& params);
// Puts the kernel on the stream: what follows sees the data that the counters stand for.
Status LaunchWait(const WaitParams& params, Stream stream);

}  // namespace uccl::cuda
