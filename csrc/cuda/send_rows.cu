// The kernel of send_rows.h on a GPU.
#include "csrc/cuda/launch.cuh"
#include "csrc/cuda/send_rows.h"
#include "csrc/cuda/send_rows_kernel.h"

namespace uccl::cuda {
namespace {

__global__ void __launch_bounds__(kWarp) SendRowsKernel(SendRowsParams p) {
  fifo::BlockGroup group;
  SendRows(group, p);
}

}  // namespace

Status LaunchSendRows(const SendRowsParams& params, Stream stream) {
  if (Status s = CheckParams(params); !s.ok()) return s;
  // Every thread may wait for room in the FIFO, so no more warps than the proxy keeps busy.
  constexpr uint32_t kMostWarps = 8;
  const uint64_t warps = (params.entries + kWarp - 1) / kWarp + 1;
  const uint32_t blocks = warps < kMostWarps ? static_cast<uint32_t>(warps) : kMostWarps;
  SendRowsKernel<<<blocks, kWarp, 0, stream>>>(params);
  return Launched("send_rows");
}

}  // namespace uccl::cuda
