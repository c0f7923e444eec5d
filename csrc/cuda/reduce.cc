// Which parameters the kernel of reduce.h takes.
#include "csrc/cuda/reduce.h"

#include <string>

#include "csrc/cuda/check.h"

namespace uccl::cuda {

Status CheckParams(const ReduceParams& p) {
  constexpr const char* kKernel = "reduce";
  if (!CanReduce(p.element, p.op)) return Refuse(kKernel, "and, or are for integers");
  if (p.input_count < 1 || p.input_count > kMaxReduceInputs) {
    return Refuse(kKernel, std::to_string(p.input_count) + " inputs: 1 to " +
                               std::to_string(kMaxReduceInputs) + " are possible");
  }
  if (p.count == 0) return Status::Ok();
  if (p.inputs == nullptr || p.to == nullptr) return Refuse(kKernel, "elements without an address");
  if (!Aligned(p.to, ElementBytes(p.element))) {
    return Refuse(kKernel, "the result must be aligned to its elements");
  }
  return Status::Ok();
}

}  // namespace uccl::cuda
