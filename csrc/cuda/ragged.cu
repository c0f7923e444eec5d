// The kernel of ragged.h on a GPU.
#include "csrc/cuda/launch.cuh"
#include "csrc/cuda/ragged.h"
#include "csrc/cuda/ragged_kernel.h"

namespace uccl::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) RaggedKernel(RaggedParams p) {
  fifo::BlockGroup group;
  Ragged(group, p);
}

}  // namespace

Status LaunchRagged(const RaggedParams& params, Stream stream) {
  if (Status s = CheckParams(params); !s.ok()) return s;
  if (params.ranks == 0) return Status::Ok();
  RaggedKernel<<<1, kThreads, 0, stream>>>(params);
  return Launched("ragged");
}

}  // namespace uccl::cuda
