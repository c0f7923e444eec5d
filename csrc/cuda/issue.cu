// The kernel of issue.h on a GPU: a warp for each queue.
#include "csrc/cuda/issue.h"
#include "csrc/cuda/issue_kernel.h"
#include "csrc/cuda/launch.cuh"

namespace uccl::cuda {
namespace {

__global__ void __launch_bounds__(kWarp) IssueKernel(IssueParams p) {
  fifo::BlockGroup group;
  Issue(group, p);
}

}  // namespace

Status LaunchIssue(const IssueParams& params, Stream stream) {
  if (Status s = CheckParams(params); !s.ok()) return s;
  if (params.count == 0) return Status::Ok();
  uint32_t blocks = 0;
  if (Status s = BlocksFor(params.count, &blocks); !s.ok()) return s;
  IssueKernel<<<blocks, kWarp, 0, stream>>>(params);
  return Launched("issue");
}

}  // namespace uccl::cuda
