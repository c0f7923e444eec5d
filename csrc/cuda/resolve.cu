// The kernel of resolve.h on a GPU.
#include "csrc/cuda/launch.cuh"
#include "csrc/cuda/resolve.h"
#include "csrc/cuda/resolve_kernel.h"

namespace uccl::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) ResolveKernel(ResolveParams p) {
  fifo::BlockGroup group;
  Resolve(group, p);
}

}  // namespace

Status LaunchResolve(const ResolveParams& params, Stream stream) {
  if (Status s = CheckParams(params); !s.ok()) return s;
  if (params.count == 0 && params.mark == nullptr && params.uses == nullptr) return Status::Ok();
  ResolveKernel<<<1, kThreads, 0, stream>>>(params);
  return Launched("resolve");
}

}  // namespace uccl::cuda
