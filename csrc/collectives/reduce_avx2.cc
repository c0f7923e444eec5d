// The kernels of reduce_kernels.h for x86 processors with AVX2 and F16C.
#include "csrc/collectives/reduce_kernels.h"

#ifdef UCCL_HAVE_X86_LEVELS

#include <immintrin.h>

#include <cstdint>

UCCL_BEGIN_TARGET(UCCL_TARGET_AVX2)
namespace uccl::coll {
namespace {

constexpr size_t kVectorBytes = 32;

#include "csrc/collectives/reduce_vectors.inc"

struct HalfConversions {
  using Halves = __m128i;
  static UCCL_INLINE Vector<float> Widen(Halves halves) {
    return Bits<Vector<float>>(_mm256_cvtph_ps(halves));
  }
  static UCCL_INLINE Halves Narrow(Vector<float> v) {
    return _mm256_cvtps_ph(Bits<__m256>(v), _MM_FROUND_TO_NEAREST_INT);
  }
};
using HalfCodec = HalvesCodec<HalfConversions>;

#include "csrc/collectives/reduce_tree.inc"

}  // namespace

const KernelSet kAvx2Kernels = {VectorLevel::kAvx2, kVectorBytes, &FindReal};

}  // namespace uccl::coll
UCCL_END_TARGET

#endif  // UCCL_HAVE_X86_LEVELS
