// The table of device.h over the CUDA runtime.
#include <cuda_runtime_api.h>

#include "csrc/cuda/device.h"
#include "csrc/cuda/launch.cuh"
#include "csrc/cuda/pinned.h"

namespace uccl::cuda {
namespace {

Result<std::byte*> Allocate(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error != cudaSuccess || memory == nullptr) return FromCuda(error, "cudaMalloc");
  // By the default stream, for which those that XLA makes do not wait: so this thread does.
  cudaError_t zeroed = cudaMemset(memory, 0, bytes);
  if (zeroed == cudaSuccess) zeroed = cudaStreamSynchronize(nullptr);
  if (zeroed == cudaSuccess) return static_cast<std::byte*>(memory);
  (void)cudaFree(memory);
  return FromCuda(zeroed, "cudaMemset");
}

void Free(std::byte* memory) { (void)cudaFree(memory); }

Status Upload(std::byte* to, const std::byte* from, size_t bytes) {
  if (Status s = FromCuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
      !s.ok()) {
    return s;
  }
  return FromCuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

Result<int> Current() {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return FromCuda(error, "cudaGetDevice");
  return device;
}

Status Settle(int device) {
  const Result<int> before = Current();
  if (!before.ok()) return before.status();
  cudaError_t error = cudaSetDevice(device);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  const cudaError_t restored = cudaSetDevice(before.value());
  return FromCuda(error != cudaSuccess ? error : restored, "cudaDeviceSynchronize");
}

}  // namespace

const Device& CudaDevice() {
  static const Device device = [] {
    Device d;
    d.move_rows = &LaunchMoveRows;
    d.fold_rows = &LaunchFoldRows;
    d.reduce = &LaunchReduce;
    d.resolve = &LaunchResolve;
    d.ragged = &LaunchRagged;
    d.exchange = &LaunchExchange;
    d.issue = &LaunchIssue;
    d.send_rows = &LaunchSendRows;
    d.await_rows = &LaunchAwaitRows;
    d.allocate = &Allocate;
    d.free = &Free;
    d.allocate_pinned = &AllocatePinned;
    d.free_pinned = &FreePinned;
    d.upload = &Upload;
    d.current = &Current;
    d.settle = &Settle;
    return d;
  }();
  return device;
}

}  // namespace uccl::cuda
