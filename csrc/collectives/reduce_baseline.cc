// The kernels of reduce_kernels.h for every machine: SSE2, NEON or whatever the compiler makes of
// 16 bytes. Also the products of complex numbers, one by one, which all levels share.
#include <complex>
#include <cstdint>
#include <limits>

#include "csrc/collectives/reduce_kernels.h"

namespace uccl::coll {
namespace {

constexpr size_t kVectorBytes = 16;

#include "csrc/collectives/reduce_vectors.inc"

// The halves of each 32-bit word apart, as in BFloatCodec.
struct HalfCodec {
  using Register = FloatPair;
  using Words = Vector<int32_t>;  // all values are below 2^31, and SSE2 compares signed ones only
  static constexpr size_t kBytes = kVectorBytes;

  static UCCL_INLINE Vector<float> Widen(Words half) {
    const Words sign = (half & 0x8000) << 16;
    const Words shifted = (half & 0x7fff) << 13;  // exponent and mantissa in their places
    constexpr int32_t kBias = 112 << 23;
    constexpr int32_t kOneExponent = 1 << 23;
    // Zero and subnormals: as the mantissa of 2^-14, which is then taken away. Exact.
    const Vector<float> small = Bits<Vector<float>>(shifted + (kBias + kOneExponent)) -
                                Bits<Vector<float>>(Words{} + (kBias + kOneExponent));
    Words magnitude = shifted + kBias;
    magnitude = shifted < kOneExponent ? Bits<Words>(small) : magnitude;
    magnitude = shifted >= 31 * kOneExponent ? shifted + 2 * kBias : magnitude;  // not finite
    return Bits<Vector<float>>(magnitude | sign);
  }
  // To nearest, ties to even.
  static UCCL_INLINE Words Narrow(Vector<float> v) {
    const Words w = Bits<Words>(OneNan(v));
    const Words sign = (w >> 16) & 0x8000;
    const Words magnitude = w & 0x7fffffff;
    Words half = (magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13;
    // Subnormal results: adding 0.5 puts the rounded mantissa into the low bits of the sum.
    const Words small = Bits<Words>(Bits<Vector<float>>(magnitude) + 0.5f) - 0x3f000000;
    half = magnitude < 0x38800000 ? small : half;
    half = magnitude >= 0x477ff000 ? Words{} + 0x7c00 : half;  // rounds to infinity
    half = magnitude > 0x7f800000 ? Words{} + 0x7e00 : half;   // NaN
    return half | sign;
  }

  static UCCL_INLINE Register Load(const std::byte* from) {
    const Words w = LoadVector<Words>(from);
    return {Widen(w & 0xffff), Widen((w >> 16) & 0xffff)};
  }
  static UCCL_INLINE void Store(std::byte* to, const Register& v) {
    StoreVector(to, Narrow(v.first) | (Narrow(v.second) << 16));
  }
};

#include "csrc/collectives/reduce_tree.inc"

// One number at a time, by the rules of the standard library for infinite factors.
template <class T>
struct ComplexCodec {
  using Register = std::complex<T>;
  static constexpr size_t kBytes = sizeof(Register);
  static Register Load(const std::byte* from) { return LoadVector<Register>(from); }
  static void Store(std::byte* to, Register v) {
    StoreVector(to, Register(OneNanOf(v.real()), OneNanOf(v.imag())));
  }
  static T OneNanOf(T v) { return v == v ? v : std::numeric_limits<T>::quiet_NaN(); }
};

BlockKernel Find(DType dtype, ReduceOp op) {
  if (dtype == DType::kC64 && op == ReduceOp::kProd) return &Tree<ComplexCodec<float>, ProdOp>::Run;
  if (dtype == DType::kC128 && op == ReduceOp::kProd)
    return &Tree<ComplexCodec<double>, ProdOp>::Run;
  return FindReal(dtype, op);
}

}  // namespace

const KernelSet kBaselineKernels = {VectorLevel::kBaseline, kVectorBytes, &Find};

}  // namespace uccl::coll
