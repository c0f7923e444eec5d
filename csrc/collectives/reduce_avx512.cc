// The kernels of reduce_kernels.h for x86 processors with AVX-512.
#include "csrc/collectives/reduce_kernels.h"

#ifdef UCCL_HAVE_X86_LEVELS

#include <immintrin.h>

#include <cstdint>

UCCL_BEGIN_TARGET(UCCL_TARGET_AVX512)
namespace uccl::coll {
namespace {

constexpr size_t kVectorBytes = 64;

#include "csrc/collectives/reduce_vectors.inc"

// With masks, because gcc warns about its own unmasked ones (bug 105593); full masks vanish.
struct HalfConversions {
  using Halves = __m256i;
  static constexpr __mmask16 kAll = 0xffff;
  static UCCL_INLINE Vector<float> Widen(Halves halves) {
    return Bits<Vector<float>>(_mm512_maskz_cvtph_ps(kAll, halves));
  }
  static UCCL_INLINE Halves Narrow(Vector<float> v) {
    return _mm512_maskz_cvtps_ph(kAll, Bits<__m512>(v), _MM_FROUND_TO_NEAREST_INT);
  }
};
using HalfCodec = HalvesCodec<HalfConversions>;

#include "csrc/collectives/reduce_tree.inc"

}  // namespace

const KernelSet kAvx512Kernels = {VectorLevel::kAvx512, kVectorBytes, &FindReal};

}  // namespace uccl::coll
UCCL_END_TARGET

#endif  // UCCL_HAVE_X86_LEVELS
