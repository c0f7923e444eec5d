// Which parameters the kernel of issue.h takes.
#include "csrc/cuda/issue.h"

#include "csrc/cuda/check.h"

namespace uccl::cuda {

Status CheckParams(const IssueParams& p) {
  if (p.count > 0 && p.queues == nullptr) return Refuse("issue", "queues without an address");
  return Status::Ok();
}

}  // namespace uccl::cuda
