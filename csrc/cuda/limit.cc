// Which parameters the kernel of limit.h takes.
#include "csrc/cuda/limit.h"

#include <string>

#include "csrc/cuda/check.h"

namespace uccl::cuda {

Status CheckParams(const LimitParams& p) {
  constexpr const char* kKernel = "limit";
  if (p.count >> 32 != 0)
    return Refuse(kKernel, std::to_string(p.count) + " values: below 2^32 are possible");
  if (p.count > 0 && (p.values == nullptr || p.fault == nullptr))
    return Refuse(kKernel, "values or fault without an address");
  return Status::Ok();
}

}  // namespace uccl::cuda
