// The kernel of wait.h on a GPU: one warp, so that waiting holds as little of a processor as it
// can.
#include "csrc/cuda/launch.cuh"
#include "csrc/cuda/wait.h"
#include "csrc/cuda/wait_kernel.h"

namespace uccl::cuda {
namespace {

__global__ void __launch_bounds__(kWarp) WaitKernel(WaitParams p) {
  fifo::BlockGroup group;
  Wait(group, p);
}

}  // namespace

Status LaunchWait(const WaitParams& params, Stream stream) {
  if (Status s = CheckParams(params); !s.ok()) return s;
  if (params.count == 0) return Status::Ok();
  WaitKernel<<<1, kWarp, 0, stream>>>(params);
  return Launched("wait");
}

}  // namespace uccl::cuda
