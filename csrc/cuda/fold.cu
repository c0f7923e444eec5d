// The kernel of fold.h on a GPU.
#include "csrc/cuda/fold.h"
#include "csrc/cuda/fold_kernel.h"
#include "csrc/cuda/launch.cuh"

namespace uccl::cuda {
namespace {

template <class From, class To>
__global__ void __launch_bounds__(kThreads) FoldRowsKernel(FoldRowsParams p) {
  fifo::BlockGroup group;
  FoldRows<From, To>(group, p);
}

}  // namespace

Status LaunchFoldRows(const FoldRowsParams& params, Stream stream) {
  if (Status s = CheckParams(params); !s.ok()) return s;
  if (params.rows == 0 || params.channels == 0) return Status::Ok();
  constexpr uint64_t kPiece = uint64_t{kThreads} * kChunk;
  uint32_t blocks = 0;
  if (Status s = BlocksFor(params.rows * ((params.channels + kPiece - 1) / kPiece), &blocks);
      !s.ok()) {
    return s;
  }
  WithFoldCodecs(params, [&]<class From, class To>() {
    FoldRowsKernel<From, To><<<blocks, kThreads, 0, stream>>>(params);
  });
  return Launched("fold_rows");
}

}  // namespace uccl::cuda
