// The inner loops of reduce.h, one set for each level of vector instructions. Whole vectors of one
// block only: reduce.cc cuts vectors into blocks, pads what is left at the end and copies results.
#pragma once

#include <cstddef>

#include "csrc/base/vector_level.h"
#include "csrc/collectives/dtype.h"

namespace uccl::coll {

// Bytes of one input that a kernel takes at once: small enough that the accumulators of all tree
// levels stay in the first-level cache.
inline constexpr size_t kReduceBlockBytes = 4096;
// Of one tree level: 16-bit floats accumulate in twice their size.
inline constexpr size_t kReduceScratchBytes = 2 * kReduceBlockBytes;
// Inputs up to which a kernel needs no scratch.
inline constexpr size_t kReduceDirectInputs = 4;

// to[i] = tree over inputs[0..n) of element i, n >= 2, for `bytes` bytes (a multiple of the level's
// vector_bytes, at most kReduceBlockBytes). `scratch` is aligned to 64 bytes and has
// kReduceScratchBytes for each of bit_width(n) levels; it may be null up to kReduceDirectInputs.
using BlockKernel = void (*)(const std::byte* const* inputs, size_t n, std::byte* to, size_t bytes,
                             std::byte* scratch);

struct KernelSet {
  VectorLevel level;
  size_t vector_bytes;
  // Null where there is none. Signed integers have rows of their own only for max and min, complex
  // numbers only for prod, and `and` and `or` only exist for kU64, whose bits are anybody's.
  BlockKernel (*find)(DType dtype, ReduceOp op);
};
extern const KernelSet kBaselineKernels;
#ifdef UCCL_HAVE_X86_LEVELS
extern const KernelSet kAvx2Kernels, kAvx512Kernels;
#endif

}  // namespace uccl::coll
