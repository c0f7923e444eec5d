// Whether numbers stay within a limit: a check of data on the device, which is told later. The
// kernel is limit_kernel.h; this header needs no CUDA.
#pragma once

#include <cstdint>

#include "csrc/cuda/rows.h"
#include "csrc/cuda/stream.h"

namespace uccl::cuda {

// Of the first values[i] > limit, i in [0, count): i in the upper half of *fault and the value in
// the lower, unless an earlier one is there already. kNoFault before.
struct LimitParams {
  const int32_t* values = nullptr;
  uint64_t count = 0;  // below 2^32
  int64_t limit = 0;
  uint64_t* fault = nullptr;
};
constexpr uint64_t LimitFault(uint64_t index, int32_t value) {
  return index << 32 | static_cast<uint32_t>(value);
}
constexpr uint64_t LimitIndex(uint64_t fault) { return fault >> 32; }
constexpr int32_t LimitValue(uint64_t fault) { return static_cast<int32_t>(fault); }

// kInvalidArgument where a kernel could not run with these; no memory is read.
Status CheckParams(const LimitParams& params);
Status LaunchLimit(const LimitParams& params, Stream stream);

}  // namespace uccl::cuda
