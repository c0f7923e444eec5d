// The tree of reduce.h, block by block so that all its levels stay in the first-level cache.
#include "csrc/collectives/reduce.h"

#include <algorithm>
#include <bit>
#include <cfenv>
#include <complex>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace uccl::coll {
namespace {

// Elements handled at once: the accumulators of all tree levels stay in the first-level cache.
constexpr size_t kBlock = 1024;

struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

float ToFloat(BFloat v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }

BFloat ToBFloat(float f) {
  const auto u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u)
    return {static_cast<uint16_t>((u >> 16) | 0x40u)};  // quiet NaN
  return {
      static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};  // to nearest, ties to even
}

float ToFloat(Half h) {
  const uint32_t sign = static_cast<uint32_t>(h.bits & 0x8000u) << 16;
  const uint32_t exponent = (h.bits >> 10) & 0x1fu;
  const uint32_t mantissa = h.bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24 is exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

Half ToHalf(float f) {
  const auto u = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};  // NaN
  if (magnitude >= 0x477ff000u)
    return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal result: adding 0.5 puts the rounded mantissa into the low bits of the sum.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded =
      magnitude + 0xfffu + ((magnitude >> 13) & 1u);  // to nearest, ties to even
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

// Storage type T, accumulator type, and the conversions between them.
template <class T>
struct Traits {
  using Acc = T;
  static Acc Load(T v) { return v; }
  static T Store(Acc v) { return v; }
};
template <>
struct Traits<Half> {
  using Acc = float;
  static float Load(Half v) { return ToFloat(v); }
  static Half Store(float v) { return ToHalf(v); }
};
template <>
struct Traits<BFloat> {
  using Acc = float;
  static float Load(BFloat v) { return ToFloat(v); }
  static BFloat Store(float v) { return ToBFloat(v); }
};

// Integers are reduced as unsigned where the sign does not matter, so that overflow wraps instead
// of being undefined. (8 and 16 bit types promote to int, whose products of two 16-bit values could
// overflow.)
template <class A>
A Add(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}
template <class A>
A Multiply(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

struct SumOp {
  template <class A>
  static A Apply(A a, A b) {
    return Add(a, b);
  }
};
struct ProdOp {
  template <class A>
  static A Apply(A a, A b) {
    return Multiply(a, b);
  }
};
// A NaN on either side is the result, as in lax.max and lax.min.
struct MaxOp {
  template <class A>
  static A Apply(A a, A b) {
    return (a > b || a != a) ? a : b;
  }
};
struct MinOp {
  template <class A>
  static A Apply(A a, A b) {
    return (a < b || a != a) ? a : b;
  }
};
struct AndOp {
  template <class A>
  static A Apply(A a, A b) {
    return static_cast<A>(a & b);
  }
};
struct OrOp {
  template <class A>
  static A Apply(A a, A b) {
    return static_cast<A>(a | b);
  }
};

template <class T, class Op>
class TreeReducer {
  using Acc = typename Traits<T>::Acc;

 public:
  explicit TreeReducer(std::span<const std::byte* const> inputs) : inputs_(inputs) {
    scratch_.resize(kBlock * (static_cast<size_t>(std::bit_width(inputs.size())) + 1));
  }

  void Run(std::span<std::byte* const> outputs, size_t count) {
    for (size_t begin = 0; begin < count; begin += kBlock) {
      begin_ = begin;
      len_ = std::min(kBlock, count - begin);
      Acc* acc = scratch_.data();
      Reduce(0, inputs_.size(), acc, acc + kBlock);
      T* first = Out(outputs[0]);
      for (size_t i = 0; i < len_; ++i) first[i] = Traits<T>::Store(acc[i]);
      for (size_t k = 1; k < outputs.size(); ++k) {
        std::memcpy(Out(outputs[k]), first, len_ * sizeof(T));
      }
    }
  }

 private:
  const T* In(size_t rank) const { return reinterpret_cast<const T*>(inputs_[rank]) + begin_; }
  T* Out(std::byte* base) const { return reinterpret_cast<T*>(base) + begin_; }

  void Reduce(size_t lo, size_t hi, Acc* __restrict dst, Acc* __restrict free) {
    if (hi - lo == 1) {
      const T* a = In(lo);
      for (size_t i = 0; i < len_; ++i) dst[i] = Traits<T>::Load(a[i]);
      return;
    }
    if (hi - lo == 2) {
      const T* a = In(lo);
      const T* b = In(lo + 1);
      for (size_t i = 0; i < len_; ++i) {
        dst[i] = Op::template Apply<Acc>(Traits<T>::Load(a[i]), Traits<T>::Load(b[i]));
      }
      return;
    }
    const size_t mid = lo + std::bit_floor(hi - lo - 1);
    Reduce(lo, mid, dst, free);
    if (hi - mid == 1) {
      const T* b = In(mid);
      for (size_t i = 0; i < len_; ++i) {
        dst[i] = Op::template Apply<Acc>(dst[i], Traits<T>::Load(b[i]));
      }
      return;
    }
    Reduce(mid, hi, free, free + kBlock);
    for (size_t i = 0; i < len_; ++i) dst[i] = Op::template Apply<Acc>(dst[i], free[i]);
  }

  std::span<const std::byte* const> inputs_;
  std::vector<Acc> scratch_;
  size_t begin_ = 0, len_ = 0;
};

using Fn = void (*)(std::span<const std::byte* const>, std::span<std::byte* const>, size_t);

template <class T, class Op>
void Run(std::span<const std::byte* const> in, std::span<std::byte* const> out, size_t count) {
  TreeReducer<T, Op>(in).Run(out, count);
}

template <class T>
Fn PickArithmetic(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return &Run<T, SumOp>;
    case ReduceOp::kProd:
      return &Run<T, ProdOp>;
    default:
      return nullptr;
  }
}
template <class T>
Fn PickOrdered(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
      return &Run<T, MaxOp>;
    case ReduceOp::kMin:
      return &Run<T, MinOp>;
    default:
      return PickArithmetic<T>(op);
  }
}
template <class T>
Fn PickInteger(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAnd:
      return &Run<T, AndOp>;
    case ReduceOp::kOr:
      return &Run<T, OrOp>;
    default:
      return PickOrdered<T>(op);
  }
}

Fn Pick(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kPred:
      return op == ReduceOp::kSum || op == ReduceOp::kProd ? nullptr : PickInteger<uint8_t>(op);
    case DType::kS8:
      return PickInteger<int8_t>(op);
    case DType::kS16:
      return PickInteger<int16_t>(op);
    case DType::kS32:
      return PickInteger<int32_t>(op);
    case DType::kS64:
      return PickInteger<int64_t>(op);
    case DType::kU8:
      return PickInteger<uint8_t>(op);
    case DType::kU16:
      return PickInteger<uint16_t>(op);
    case DType::kU32:
      return PickInteger<uint32_t>(op);
    case DType::kU64:
      return PickInteger<uint64_t>(op);
    case DType::kF16:
      return PickOrdered<Half>(op);
    case DType::kBF16:
      return PickOrdered<BFloat>(op);
    case DType::kF32:
      return PickOrdered<float>(op);
    case DType::kF64:
      return PickOrdered<double>(op);
    case DType::kC64:
      return PickArithmetic<std::complex<float>>(op);
    case DType::kC128:
      return PickArithmetic<std::complex<double>>(op);
    default:
      return nullptr;
  }
}

// XLA's threads flush subnormals to zero, ours do not: the result must not depend on which one gets
// here.
class DefaultFloatEnvironment final {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&before_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace

bool ReduceSupported(DType dtype, ReduceOp op) { return Pick(dtype, op) != nullptr; }

void ReduceElements(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                    std::span<std::byte* const> outputs, size_t count) {
  const DefaultFloatEnvironment environment;
  Pick(dtype, op)(inputs, outputs, count);
}

}  // namespace uccl::coll
