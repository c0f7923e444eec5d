// Page-locked memory by the CUDA runtime.
#include <cuda_runtime_api.h>

#include <cstring>

#include "csrc/cuda/launch.cuh"
#include "csrc/cuda/pinned.h"

namespace uccl::cuda {

Result<std::byte*> AllocatePinned(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error =
      cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
  if (error != cudaSuccess || memory == nullptr) return FromCuda(error, "cudaHostAlloc");
  std::memset(memory, 0, bytes);
  return static_cast<std::byte*>(memory);
}

void FreePinned(std::byte* memory) { (void)cudaFreeHost(memory); }

}  // namespace uccl::cuda
