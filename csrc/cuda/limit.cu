// The kernel of limit.h on a GPU.
#include "csrc/cuda/launch.cuh"
#include "csrc/cuda/limit.h"
#include "csrc/cuda/limit_kernel.h"

namespace uccl::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) LimitKernel(LimitParams p) {
  fifo::BlockGroup group;
  Limit(group, p);
}

}  // namespace

Status LaunchLimit(const LimitParams& params, Stream stream) {
  if (Status s = CheckParams(params); !s.ok()) return s;
  if (params.count == 0) return Status::Ok();
  uint32_t blocks = 0;
  if (Status s = BlocksFor((params.count + kThreads - 1) / kThreads, &blocks); !s.ok()) return s;
  LimitKernel<<<blocks, kThreads, 0, stream>>>(params);
  return Launched("limit");
}

}  // namespace uccl::cuda
