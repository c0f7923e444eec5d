// Element types as kernels see them. This room lies below those that know more of them
// (collectives/dtype.h, XLA's), so it has its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace uccl::cuda {

enum class Element : uint8_t {
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kBF16,
  kF32,
  kF64,
};

constexpr size_t ElementBytes(Element element) {
  switch (element) {
    case Element::kU8:
    case Element::kS8:
      return 1;
    case Element::kU16:
    case Element::kS16:
    case Element::kF16:
    case Element::kBF16:
      return 2;
    case Element::kU32:
    case Element::kS32:
    case Element::kF32:
      return 4;
    case Element::kU64:
    case Element::kS64:
    case Element::kF64:
      return 8;
  }
  return 0;
}

constexpr bool IsNarrowFloat(Element e) { return e == Element::kF16 || e == Element::kBF16; }

}  // namespace uccl::cuda
