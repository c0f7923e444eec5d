// The kernel of exchange.h on a GPU: a block for each line, as long as all of them run at once.
#include <algorithm>

#include "csrc/cuda/exchange.h"
#include "csrc/cuda/exchange_kernel.h"
#include "csrc/cuda/launch.cuh"

namespace uccl::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) ExchangeKernel(ExchangeParams p) {
  fifo::BlockGroup group;
  Exchange(group, p);
}

}  // namespace

Status LaunchExchange(const ExchangeParams& params, Stream stream) {
  if (Status s = CheckParams(params); !s.ok()) return s;
  if (params.line_count == 0) return Status::Ok();
  // Blocks wait for each other by way of the peers: one on each second processor leaves room for
  // those of a rank that shares the device, and all of them run.
  uint32_t blocks = 0;
  if (Status s = BlocksFor(params.line_count, &blocks); !s.ok()) return s;
  uint32_t most = 0;
  if (Status s = Processors(&most); !s.ok()) return s;
  blocks = std::min(blocks, std::max(most / 2, 1u));
  ExchangeKernel<<<blocks, kThreads, 0, stream>>>(params);
  return Launched("exchange");
}

}  // namespace uccl::cuda
