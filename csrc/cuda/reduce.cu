// The kernel of reduce.h on a GPU.
#include "csrc/cuda/launch.cuh"
#include "csrc/cuda/reduce.h"
#include "csrc/cuda/reduce_kernel.h"

namespace uccl::cuda {
namespace {

template <class Kind, class Op>
__global__ void __launch_bounds__(kThreads) ReduceKernel(ReduceParams p) {
  fifo::BlockGroup group;
  Reduce<Kind, Op>(group, p);
}

}  // namespace

Status LaunchReduce(const ReduceParams& params, Stream stream) {
  if (Status s = CheckParams(params); !s.ok()) return s;
  if (params.count == 0) return Status::Ok();
  const uint64_t vectors = (params.count * ElementBytes(params.element) + 15) / 16;
  uint32_t blocks = 0;
  if (Status s = BlocksFor((vectors + kThreads - 1) / kThreads, &blocks); !s.ok()) return s;
  WithReduction(params.element, params.op, [&]<class Kind, class Op>() {
    ReduceKernel<Kind, Op><<<blocks, kThreads, 0, stream>>>(params);
  });
  return Launched("reduce");
}

}  // namespace uccl::cuda
