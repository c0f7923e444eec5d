// The kernels of sum_kernels.h for x86 processors with AVX2.
#include "csrc/moe/sum_kernels.h"

#ifdef UCCL_HAVE_X86_LEVELS

#include <cstdint>

UCCL_BEGIN_TARGET(UCCL_TARGET_AVX2)
namespace uccl::moe {
namespace {

constexpr size_t kVectorBytes = 32;

#include "csrc/moe/sum_vectors.inc"

}  // namespace

SumKernel Avx2Sum(RowType from, RowType to) { return Find(from, to); }

}  // namespace uccl::moe
UCCL_END_TARGET

#endif  // UCCL_HAVE_X86_LEVELS
