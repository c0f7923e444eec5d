// Reductions in which some vectors are float32 partial results of a 16-bit type: a partial result
// that travels keeps its precision, and the one rounding is the last one, as in reduce.h.
#pragma once

#include <cstddef>
#include <span>

#include "csrc/collectives/dtype.h"

namespace uccl::coll {

struct WideInput {
  const std::byte* data = nullptr;
  bool wide = false;  // float32; otherwise of the operation's type
};
struct WideOutput {
  std::byte* data = nullptr;
  bool wide = false;
};

// outputs[k] = tree over inputs, as ReduceElements. `dtype` is kF16 or kBF16 where anything is
// wide.
void ReduceWide(DType dtype, ReduceOp op, std::span<const WideInput> inputs,
                std::span<const WideOutput> outputs, size_t count);

}  // namespace uccl::coll
