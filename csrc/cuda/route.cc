// Which parameters the kernel of route.h takes.
#include "csrc/cuda/route.h"

#include <limits>
#include <string>

#include "csrc/cuda/check.h"

namespace uccl::cuda {

Status CheckParams(const RouteParams& p) {
  constexpr const char* kKernel = "route";
  if (p.tokens == 0 || p.width == 0) return Status::Ok();
  if (p.choices == nullptr || p.peers == nullptr || p.slots == nullptr) {
    return Refuse(kKernel, "choices, peers or slots without an address");
  }
  if (p.ranks == 0 || p.experts_per_rank == 0) {
    return Refuse(kKernel, std::to_string(p.ranks) + " ranks with " +
                               std::to_string(p.experts_per_rank) +
                               " experts each: at least 1 of either");
  }
  constexpr uint32_t kMost = std::numeric_limits<int32_t>::max();
  if (p.ranks > kMost || p.tokens > kMost) {
    return Refuse(kKernel, std::to_string(p.tokens) + " tokens for " + std::to_string(p.ranks) +
                               " ranks: below 2^31 of either");
  }
  return Status::Ok();
}

}  // namespace uccl::cuda
