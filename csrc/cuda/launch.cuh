// What the launch functions of this room share.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "csrc/base/status.h"
#include "csrc/cuda/stream.h"

namespace uccl::cuda {

inline constexpr uint32_t kThreads = 256, kWarp = 32;

// Where `what` failed: CUDA's own words.
inline Status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status::Ok();
  const StatusCode code = error == cudaErrorMemoryAllocation ? StatusCode::kResourceExhausted
                                                             : StatusCode::kUnsupported;
  Status status = Status::Error(
      code, std::string("CUDA: ") + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
  status.op = what;
  return status;
}

// Multiprocessors of the current device.
inline Status Processors(uint32_t* processors) {
  int device = 0, count = 0;
  if (Status s = FromCuda(cudaGetDevice(&device), "cudaGetDevice"); !s.ok()) return s;
  if (Status s = FromCuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
                          "cudaDeviceGetAttribute");
      !s.ok()) {
    return s;
  }
  *processors = static_cast<uint32_t>(count);
  return Status::Ok();
}

// Blocks for `work` pieces: as many as fill the device a few times over, never more than pieces.
// The kernels step by the number of blocks, so that any number is right.
inline Status BlocksFor(uint64_t work, uint32_t* blocks) {
  constexpr uint64_t kBlocksPerProcessor = 16;
  uint32_t processors = 0;
  if (Status s = Processors(&processors); !s.ok()) return s;
  const uint64_t most = uint64_t{processors} * kBlocksPerProcessor;
  *blocks = static_cast<uint32_t>(std::max<uint64_t>(1, std::min(work, most)));
  return Status::Ok();
}

// After a <<<launch>>>; what went wrong before it is cleared there.
inline Status Launched(const char* kernel) { return FromCuda(cudaGetLastError(), kernel); }

}  // namespace uccl::cuda
