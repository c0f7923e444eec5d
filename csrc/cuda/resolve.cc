// Which parameters the kernel of resolve.h takes.
#include "csrc/cuda/resolve.h"

#include "csrc/cuda/check.h"

namespace uccl::cuda {

Status CheckParams(const ResolveParams& p) {
  constexpr const char* kKernel = "resolve";
  if (p.count > 0 && (p.places == nullptr || p.to == nullptr))
    return Refuse(kKernel, "places or addresses without an address");
  if (!Aligned(p.mark, sizeof(uint64_t)) || !Aligned(p.uses, sizeof(uint64_t)))
    return Refuse(kKernel, "mark and uses must be aligned to 8");
  return Status::Ok();
}

}  // namespace uccl::cuda
