// The kernel of rows.h on a GPU.
#include "csrc/cuda/launch.cuh"
#include "csrc/cuda/rows.h"
#include "csrc/cuda/rows_kernel.h"

namespace uccl::cuda {
namespace {

template <class Codec>
__global__ void __launch_bounds__(kThreads) MoveRowsKernel(MoveRowsParams p) {
  fifo::BlockGroup group;
  MoveRows<Codec>(group, p);
}

}  // namespace

Status LaunchMoveRows(const MoveRowsParams& params, Stream stream) {
  if (Status s = CheckParams(params); !s.ok()) return s;
  const uint64_t pieces = RowPieces(params);
  if (pieces == 0) return Status::Ok();
  uint32_t blocks = 0;
  if (Status s = BlocksFor(pieces, &blocks); !s.ok()) return s;
  WithRowCodec(params, [&]<class Codec>() {
    MoveRowsKernel<Codec><<<blocks, kThreads, 0, stream>>>(params);
  });
  return Launched("move_rows");
}

}  // namespace uccl::cuda
