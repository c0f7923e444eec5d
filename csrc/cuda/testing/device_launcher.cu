// Kernels on the first CUDA device, for tests.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "csrc/cuda/launch.cuh"
#include "csrc/cuda/testing/host_launchers.h"

namespace uccl::cuda {
namespace {

class CudaLauncher final : public Launcher {
 public:
  explicit CudaLauncher(std::string name) : name_(std::move(name)) {}

  std::string name() const override { return name_; }
  Status Run(const MoveRowsParams& p) override { return End(LaunchMoveRows(p, nullptr)); }
  Status Run(const FoldRowsParams& p) override { return End(LaunchFoldRows(p, nullptr)); }
  Status Run(const ReduceParams& p) override { return End(LaunchReduce(p, nullptr)); }
  Status Run(const IssueParams& p) override { return End(LaunchIssue(p, nullptr)); }
  Status Run(const WaitParams& p) override { return End(LaunchWait(p, nullptr)); }
  Status Run(const RouteParams& p) override { return End(LaunchRoute(p, nullptr)); }
  Status Run(const SendRowsParams& p) override { return End(LaunchSendRows(p, nullptr)); }
  Status Run(const AwaitRowsParams& p) override { return End(LaunchAwaitRows(p, nullptr)); }
  Status Run(const ExchangeParams& p) override { return End(LaunchExchange(p, nullptr)); }
  Status Run(const ResolveParams& p) override { return End(LaunchResolve(p, nullptr)); }
  Status Run(const RaggedParams& p) override { return End(LaunchRagged(p, nullptr)); }
  Status Run(const LimitParams& p) override { return End(LaunchLimit(p, nullptr)); }

  std::shared_ptr<std::byte> Allocate(size_t bytes) override {
    void* p = nullptr;
    return Own(cudaMallocManaged(&p, bytes + 1), p, bytes, &cudaFree);
  }
  std::shared_ptr<std::byte> AllocatePinned(size_t bytes) override {
    void* p = nullptr;
    return Own(cudaHostAlloc(&p, bytes + 1, cudaHostAllocMapped), p, bytes, &cudaFreeHost);
  }

 private:
  static Status End(Status launched) {
    if (!launched.ok()) return launched;
    return FromCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  static std::shared_ptr<std::byte> Own(cudaError_t error, void* p, size_t bytes,
                                        cudaError_t (*free)(void*)) {
    if (error != cudaSuccess || p == nullptr) throw std::bad_alloc();
    std::memset(p, 0, bytes);
    return {static_cast<std::byte*>(p), [free](std::byte* q) { (void)free(q); }};
  }

  const std::string name_;
};

}  // namespace

std::unique_ptr<Launcher> DeviceLauncher() {
  int devices = 0;
  cudaDeviceProp properties;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0 ||
      cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    (void)cudaGetLastError();
    std::fprintf(stderr, "no CUDA device: kernels run on host threads only\n");
    return nullptr;
  }
  return std::make_unique<CudaLauncher>(properties.name);
}

}  // namespace uccl::cuda
