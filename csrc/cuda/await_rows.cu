// The kernel of await_rows.h on a GPU: one warp, as for wait.cu.
#include "csrc/cuda/await_rows.h"
#include "csrc/cuda/await_rows_kernel.h"
#include "csrc/cuda/launch.cuh"

namespace uccl::cuda {
namespace {

struct DeviceClock {
  __device__ uint64_t operator()() const { return ClockNs(); }
};

__global__ void __launch_bounds__(kWarp) AwaitRowsKernel(AwaitRowsParams p) {
  fifo::BlockGroup group;
  AwaitRows(group, p, DeviceClock{});
}

}  // namespace

Status LaunchAwaitRows(const AwaitRowsParams& params, Stream stream) {
  if (Status s = CheckParams(params); !s.ok()) return s;
  if (params.ranks == 0) return Status::Ok();
  AwaitRowsKernel<<<1, kWarp, 0, stream>>>(params);
  return Launched("await_rows");
}

}  // namespace uccl::cuda
