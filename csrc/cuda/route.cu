// The kernel of route.h on a GPU: a warp for 32 ranks.
#include "csrc/cuda/launch.cuh"
#include "csrc/cuda/route.h"
#include "csrc/cuda/route_kernel.h"

namespace uccl::cuda {
namespace {

__global__ void __launch_bounds__(kWarp) RouteKernel(RouteParams p) {
  fifo::BlockGroup group;
  Route(group, p);
}

}  // namespace

Status LaunchRoute(const RouteParams& params, Stream stream) {
  if (Status s = CheckParams(params); !s.ok()) return s;
  if (params.tokens == 0 || params.width == 0) return Status::Ok();
  uint32_t blocks = 0;
  if (Status s = BlocksFor((params.ranks + kWarp - 1) / kWarp, &blocks); !s.ok()) return s;
  RouteKernel<<<blocks, kWarp, 0, stream>>>(params);
  return Launched("route");
}

}  // namespace uccl::cuda
