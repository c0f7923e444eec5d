// The kernel of reduce.h, for any group of threads. No barrier: threads share nothing.
#pragma once

#include <type_traits>

#include "csrc/cuda/float_formats.h"
#include "csrc/cuda/memory.h"
#include "csrc/cuda/reduce.h"
#include "csrc/fifo/thread_group.h"

namespace uccl::cuda {

// How an element lies in memory and what is accumulated. Sums and products of integers wrap: they
// are computed unsigned.
template <class T>
struct IntegerElement {
  using Stored = T;
  using Sum = T;
  UCCL_HOST_DEVICE static T Load(T stored) { return stored; }
  UCCL_HOST_DEVICE static T Store(T sum) { return sum; }
};
template <class T>
struct RealElement {
  using Stored = T;
  using Sum = T;
  UCCL_HOST_DEVICE static T Load(T stored) { return stored; }
  UCCL_HOST_DEVICE static T Store(T sum) { return OneNan(sum); }
};
struct HalfElement {
  using Stored = uint16_t;
  using Sum = float;
  UCCL_HOST_DEVICE static float Load(uint16_t stored) { return HalfToFloat(stored); }
  UCCL_HOST_DEVICE static uint16_t Store(float sum) { return FloatToHalf(sum); }
};
struct BFloat16Element {
  using Stored = uint16_t;
  using Sum = float;
  UCCL_HOST_DEVICE static float Load(uint16_t stored) { return BFloat16ToFloat(stored); }
  UCCL_HOST_DEVICE static uint16_t Store(float sum) { return FloatToBFloat16(sum); }
};

// Small unsigned types would be promoted to int, whose product may overflow.
struct SumOp {
  template <class T>
  UCCL_HOST_DEVICE static T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(uint64_t{a} + uint64_t{b});
    return static_cast<T>(a + b);
  }
};
struct ProdOp {
  template <class T>
  UCCL_HOST_DEVICE static T Apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(uint64_t{a} * uint64_t{b});
    return static_cast<T>(a * b);
  }
};
// A NaN on either side is the result.
struct MaxOp {
  template <class T>
  UCCL_HOST_DEVICE static T Apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};
struct MinOp {
  template <class T>
  UCCL_HOST_DEVICE static T Apply(T a, T b) {
    return a < b || a != a ? a : b;
  }
};
struct AndOp {
  template <class T>
  UCCL_HOST_DEVICE static T Apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct OrOp {
  template <class T>
  UCCL_HOST_DEVICE static T Apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};

namespace internal {

// Subtrees of up to so many inputs are computed in registers.
inline constexpr uint32_t kLeafInputs = 4;
constexpr uint32_t BitWidth(uint32_t v) { return v == 0 ? 0 : 1 + BitWidth(v / 2); }
inline constexpr uint32_t kPartials = BitWidth(kMaxReduceInputs / kLeafInputs);

// What one thread holds of one partial result: 16 bytes of elements, or one.
template <class T, uint32_t kCount>
struct Partial {
  T values[kCount];
};

template <class Op, class T, uint32_t kCount>
UCCL_HOST_DEVICE inline void ApplyTo(Partial<T, kCount>* a, const Partial<T, kCount>& b) {
  for (uint32_t k = 0; k < kCount; ++k) a->values[k] = Op::Apply(a->values[k], b.values[k]);
}

// Elements [first, first + kCount); kCount 1, or as many as 16 aligned bytes hold.
template <class Kind, uint32_t kCount>
UCCL_HOST_DEVICE inline Partial<typename Kind::Sum, kCount> LoadPartial(const std::byte* from,
                                                                        uint64_t first) {
  using Stored = typename Kind::Stored;
  Stored stored[kCount];
  const auto* source = reinterpret_cast<const Stored*>(from) + first;
  if constexpr (kCount == 1) {
    stored[0] = *source;
  } else {
    static_assert(sizeof(stored) == sizeof(Vector16));
    const Vector16 vector = *reinterpret_cast<const Vector16*>(source);
    memcpy(stored, &vector, sizeof(vector));
  }
  Partial<typename Kind::Sum, kCount> partial;
  for (uint32_t k = 0; k < kCount; ++k) partial.values[k] = Kind::Load(stored[k]);
  return partial;
}

template <class Kind, uint32_t kCount>
UCCL_HOST_DEVICE inline void StorePartial(const Partial<typename Kind::Sum, kCount>& partial,
                                          std::byte* to, uint64_t first) {
  using Stored = typename Kind::Stored;
  Stored stored[kCount];
  for (uint32_t k = 0; k < kCount; ++k) stored[k] = Kind::Store(partial.values[k]);
  auto* target = reinterpret_cast<Stored*>(to) + first;
  if constexpr (kCount == 1) {
    *target = stored[0];
  } else {
    Vector16 vector;
    memcpy(&vector, stored, sizeof(vector));
    *reinterpret_cast<Vector16*>(target) = vector;
  }
}

template <class Kind, class Op, uint32_t kCount, uint32_t kInputs>
UCCL_HOST_DEVICE inline Partial<typename Kind::Sum, kCount> Leaf(const std::byte* const* inputs,
                                                                 uint64_t first) {
  if constexpr (kInputs == 1) {
    return LoadPartial<Kind, kCount>(inputs[0], first);
  } else {
    constexpr uint32_t kLeft = kInputs > 2 ? 2 : 1;
    auto left = Leaf<Kind, Op, kCount, kLeft>(inputs, first);
    ApplyTo<Op>(&left, Leaf<Kind, Op, kCount, kInputs - kLeft>(inputs + kLeft, first));
    return left;
  }
}

template <class Kind, class Op, uint32_t kCount>
UCCL_HOST_DEVICE inline Partial<typename Kind::Sum, kCount> SmallTree(
    const std::byte* const* inputs, uint32_t n, uint64_t first) {
  static_assert(kLeafInputs == 4);
  switch (n) {
    case 1:
      return Leaf<Kind, Op, kCount, 1>(inputs, first);
    case 2:
      return Leaf<Kind, Op, kCount, 2>(inputs, first);
    case 3:
      return Leaf<Kind, Op, kCount, 3>(inputs, first);
    default:
      return Leaf<Kind, Op, kCount, 4>(inputs, first);
  }
}

// The tree over any number, left to right as a binary counter carries: whenever the number of
// leaves so far ends in ones, two subtrees of equal size are complete and become one. What is left
// at the end joins from the right, which is the tree's own rule for numbers that are no power of
// two.
template <class Kind, class Op, uint32_t kCount>
UCCL_HOST_DEVICE inline void ReduceAt(const ReduceParams& p, uint64_t first) {
  if (p.input_count <= kLeafInputs) {
    StorePartial<Kind, kCount>(SmallTree<Kind, Op, kCount>(p.inputs, p.input_count, first), p.to,
                               first);
    return;
  }
  Partial<typename Kind::Sum, kCount> partials[kPartials];
  uint32_t held = 0, leaves = 0;
  for (uint32_t input = 0; input < p.input_count; input += kLeafInputs, ++leaves) {
    const uint32_t rest = p.input_count - input;
    auto leaf = SmallTree<Kind, Op, kCount>(p.inputs + input,
                                            rest < kLeafInputs ? rest : kLeafInputs, first);
    // An incomplete last leaf carries as well: the subtree to its left ends where it begins.
    for (uint32_t carry = leaves; carry % 2 == 1; carry /= 2) {
      --held;
      ApplyTo<Op>(&partials[held], leaf);
      leaf = partials[held];
    }
    partials[held++] = leaf;
  }
  for (; held > 1; --held) ApplyTo<Op>(&partials[held - 2], partials[held - 1]);
  StorePartial<Kind, kCount>(partials[0], p.to, first);
}

}  // namespace internal

template <class Kind, class Op, class Group>
UCCL_HOST_DEVICE void Reduce(Group& group, const ReduceParams& p) {
  using Stored = typename Kind::Stored;
  constexpr uint32_t kVector = sizeof(Vector16) / sizeof(Stored);
  bool aligned = IsAligned(p.to, 16);
  for (uint32_t i = 0; i < p.input_count; ++i) aligned = aligned && IsAligned(p.inputs[i], 16);

  const uint64_t thread = uint64_t{group.index()} * group.size() + group.rank();
  const uint64_t threads = uint64_t{group.count()} * group.size();
  if (p.input_count == 1) {  // as it is, NaN too
    const auto* from = reinterpret_cast<const Stored*>(p.inputs[0]);
    auto* to = reinterpret_cast<Stored*>(p.to);
    const uint64_t vectors = aligned ? p.count / kVector : 0;
    for (uint64_t i = thread; i < vectors; i += threads) {
      reinterpret_cast<Vector16*>(to)[i] = reinterpret_cast<const Vector16*>(from)[i];
    }
    for (uint64_t i = vectors * kVector + thread; i < p.count; i += threads) to[i] = from[i];
    return;
  }
  const uint64_t vectors = aligned ? p.count / kVector : 0;
  for (uint64_t i = thread; i < vectors; i += threads) {
    internal::ReduceAt<Kind, Op, kVector>(p, i * kVector);
  }
  for (uint64_t i = vectors * kVector + thread; i < p.count; i += threads) {
    internal::ReduceAt<Kind, Op, 1>(p, i);
  }
}

namespace internal {

template <class Kind, class Visit>
bool WithArithmetic(Reduction op, const Visit& visit) {
  if (op == Reduction::kSum) return visit.template operator()<Kind, SumOp>(), true;
  if (op == Reduction::kProd) return visit.template operator()<Kind, ProdOp>(), true;
  return false;
}
template <class Kind, class Visit>
bool WithOrder(Reduction op, const Visit& visit) {
  if (op == Reduction::kMax) return visit.template operator()<Kind, MaxOp>(), true;
  if (op == Reduction::kMin) return visit.template operator()<Kind, MinOp>(), true;
  return false;
}
// Signed and unsigned integers differ only in their order.
template <class Signed, class Unsigned, class Visit>
bool WithInteger(bool is_signed, Reduction op, const Visit& visit) {
  using Kind = IntegerElement<Unsigned>;
  if (op == Reduction::kAnd) return visit.template operator()<Kind, AndOp>(), true;
  if (op == Reduction::kOr) return visit.template operator()<Kind, OrOp>(), true;
  return WithArithmetic<Kind>(op, visit) ||
         (is_signed ? WithOrder<IntegerElement<Signed>>(op, visit) : WithOrder<Kind>(op, visit));
}
template <class Kind, class Visit>
bool WithFloat(Reduction op, const Visit& visit) {
  return WithArithmetic<Kind>(op, visit) || WithOrder<Kind>(op, visit);
}

}  // namespace internal

// Calls visit.template operator()<Kind, Op>() with the pair's types; false if there is none.
template <class Visit>
bool WithReduction(Element element, Reduction op, const Visit& visit) {
  switch (element) {
    case Element::kU8:
    case Element::kS8:
      return internal::WithInteger<int8_t, uint8_t>(element == Element::kS8, op, visit);
    case Element::kU16:
    case Element::kS16:
      return internal::WithInteger<int16_t, uint16_t>(element == Element::kS16, op, visit);
    case Element::kU32:
    case Element::kS32:
      return internal::WithInteger<int32_t, uint32_t>(element == Element::kS32, op, visit);
    case Element::kU64:
    case Element::kS64:
      return internal::WithInteger<int64_t, uint64_t>(element == Element::kS64, op, visit);
    case Element::kF16:
      return internal::WithFloat<HalfElement>(op, visit);
    case Element::kBF16:
      return internal::WithFloat<BFloat16Element>(op, visit);
    case Element::kF32:
      return internal::WithFloat<RealElement<float>>(op, visit);
    case Element::kF64:
      return internal::WithFloat<RealElement<double>>(op, visit);
  }
  return false;
}

}  // namespace uccl::cuda
