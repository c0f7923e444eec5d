// Which parameters the kernel of await_rows.h takes.
#include "csrc/cuda/await_rows.h"

#include <limits>
#include <string>

#include "csrc/cuda/check.h"

namespace uccl::cuda {

Status CheckParams(const AwaitRowsParams& p) {
  constexpr const char* kKernel = "await_rows";
  if (p.ranks == 0) return Status::Ok();
  if (p.counters == nullptr || p.state == nullptr || p.counts == nullptr) {
    return Refuse(kKernel, "counters, state or counts without an address");
  }
  if (p.abort == nullptr || p.outcome == nullptr) {
    return Refuse(kKernel, "a wait needs an abort word and a place for its outcome");
  }
  if (!Aligned(p.counters, 8) || !Aligned(p.state, 8) || !Aligned(p.waited, 4) ||
      !Aligned(p.awaits, 8) || !Aligned(p.abort, 8) || !Aligned(p.outcome, 8)) {
    return Refuse(kKernel,
                  "counters, state, abort and outcome must be aligned to 8 bytes, times to 4");
  }
  constexpr uint64_t kMost = std::numeric_limits<int32_t>::max();
  if (p.most > kMost || (p.order != nullptr && p.most * p.ranks > kMost)) {
    return Refuse(kKernel, std::to_string(p.most) + " rows from each of " +
                               std::to_string(p.ranks) + " ranks: slots are below 2^31");
  }
  return Status::Ok();
}

}  // namespace uccl::cuda
