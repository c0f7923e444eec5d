// Which parameters the kernel of wait.h takes.
#include "csrc/cuda/wait.h"

#include "csrc/cuda/check.h"

namespace uccl::cuda {

Status CheckParams(const WaitParams& p) {
  constexpr const char* kKernel = "wait";
  if (p.count == 0) return Status::Ok();
  if (p.counters == nullptr || p.thresholds == nullptr) {
    return Refuse(kKernel, "counters or thresholds without an address");
  }
  // Without them a wait could never be ended, or nobody would know that it was.
  if (p.abort == nullptr || p.outcome == nullptr) {
    return Refuse(kKernel, "a wait needs an abort word and a place for its outcome");
  }
  if (!Aligned(p.counters, 8) || !Aligned(p.thresholds, 8) || !Aligned(p.abort, 8) ||
      !Aligned(p.outcome, 8)) {
    return Refuse(kKernel, "counters, thresholds, abort and outcome must be aligned to 8 bytes");
  }
  return Status::Ok();
}

}  // namespace uccl::cuda
