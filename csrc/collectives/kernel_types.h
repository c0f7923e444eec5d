// Which reductions the kernel of cuda/reduce.h does.
#pragma once

#include <cstdint>
#include <optional>

#include "csrc/collectives/dtype.h"
#include "csrc/collectives/schedule.h"
#include "csrc/cuda/reduce.h"

namespace uccl::coll {

struct KernelTypes {
  cuda::Element element{};
  cuda::Reduction reduction{};
  uint64_t parts = 1;  // elements of the kernel in one of ours
};

// Nothing where the kernel has no such pair: products of complex numbers.
std::optional<KernelTypes> KernelFor(DType dtype, ReduceOp op);

// Whether it has partial results in float32 of a 16-bit type, which the kernel does not know.
bool HasWideResults(const Schedule& schedule);

}  // namespace uccl::coll
