// Element-wise reduction of vectors in the fixed order of csrc/collectives/reduce.h: the same
// binary tree, float16 and bfloat16 in float32 with one rounding, one NaN; the same bits. The
// kernel is reduce_kernel.h; this header needs no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/cuda/element.h"
#include "csrc/cuda/stream.h"

namespace uccl::cuda {

enum class Reduction : uint8_t { kSum, kProd, kMax, kMin, kAnd, kOr };

// and, or: integers only.
constexpr bool CanReduce(Element element, Reduction op) {
  const bool integer = element <= Element::kS64;
  return integer || (op != Reduction::kAnd && op != Reduction::kOr);
}

// One partial result for each of its bits waits in a thread.
inline constexpr uint32_t kMaxReduceInputs = 1u << 16;

// to[i] = tree over inputs[0..input_count) of element i, i in [0, count). Sums of complex numbers
// are sums of their parts; bool is kU8 with max, min, and, or.
struct ReduceParams {
  const std::byte* const* inputs = nullptr;  // the table too is memory that the device reaches
  uint32_t input_count = 0;                  // 1 to kMaxReduceInputs
  std::byte* to = nullptr;                   // may be one of the inputs
  uint64_t count = 0;
  Element element = Element::kF32;
  Reduction op = Reduction::kSum;
};

// kInvalidArgument where a kernel could not run with these; no memory is read.
Status CheckParams(const ReduceParams& params);
Status LaunchReduce(const ReduceParams& params, Stream stream);

}  // namespace uccl::cuda
