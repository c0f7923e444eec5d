// bfloat16 to float32 and back, one element at a time. Integer operations, so that they do not
// depend on the floating-point environment, which on XLA's threads flushes subnormals.
#pragma once

#include <bit>
#include <cstdint>

namespace uccl {

inline float FromBFloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// To nearest, ties to even; NaN stays a (quiet) NaN. Without branches, so that compilers vectorise
// it.
inline uint16_t ToBFloat16(float f) {
  const auto u = std::bit_cast<uint32_t>(f);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t quiet = (u >> 16) | 0x40u;
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(nan ? quiet : rounded);
}

}  // namespace uccl
