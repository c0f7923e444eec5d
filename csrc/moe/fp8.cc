// Loops over blocks without branches, which compilers turn into vector instructions.
#include "csrc/moe/fp8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "csrc/base/bfloat16.h"

namespace uccl::moe {
namespace {

constexpr float kLargest = 448.0f;
constexpr float kSmallestAmax = 1e-4f;

size_t Blocks(size_t hidden) { return (hidden + kFp8Block - 1) / kFp8Block; }

// Subnormal results are multiples of 2^-9: so is what a float near 2^14 can hold.
constexpr float kSubnormalMagic = 16384.0f;
constexpr uint32_t kSmallestNormal = 0x3c800000;  // 2^-6
constexpr uint32_t kInfinity = 0x7f800000;

inline uint8_t Encode(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  // Rounded to 3 bits of mantissa, to even, and the exponent's bias from 127 to 7.
  const uint32_t normal = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - (120u << 3);
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + kSubnormalMagic) -
      std::bit_cast<uint32_t>(kSubnormalMagic);
  uint32_t code = magnitude < kSmallestNormal ? subnormal : normal;
  code = magnitude > kInfinity ? 0x7fu : code;
  return static_cast<uint8_t>(code | sign);
}

float Decode(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((bits & 0x7f) == 0x7f) value = std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | static_cast<uint32_t>(bits >> 7)
                                                                   << 31);
}

const std::array<float, 256>& Table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> made{};
    for (size_t bits = 0; bits < made.size(); ++bits)
      made[bits] = Decode(static_cast<uint8_t>(bits));
    return made;
  }();
  return table;
}

void Load(RowType type, const std::byte* from, size_t count, float* to) {
  if (type == RowType::kF32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
    to[i] = FromBFloat16(bits);
  }
}

float ScaleOf(const float* values, size_t count, bool power_of_two) {
  // As unsigned numbers magnitudes keep their order, and NaN is the largest.
  uint32_t largest = std::bit_cast<uint32_t>(kSmallestAmax);
  for (size_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffff);
  if (!power_of_two) return std::bit_cast<float>(largest) * (1.0f / kLargest);
  // 448 is 1.75 * 2^8, so the bits tell whether a power of two is enough.
  const uint32_t more = (largest & 0x7fffff) > 0x600000 ? 1 : 0;
  return std::bit_cast<float>(((largest >> 23) - 8 + more) << 23);
}

}  // namespace

size_t Fp8WireBytes(size_t hidden) { return hidden + Blocks(hidden) * sizeof(float); }

uint8_t ToFp8(float value) { return Encode(value); }

float FromFp8(uint8_t bits) { return Table()[bits]; }

void EncodeFp8(RowType type, const std::byte* from, size_t rows, size_t hidden, bool power_of_two,
               std::byte* to) {
  const size_t element = RowTypeBytes(type);
  float values[kFp8Block];
  uint8_t codes[kFp8Block];
  for (size_t row = 0; row < rows; ++row) {
    std::byte* const scales = to + hidden;
    for (size_t block = 0; block < Blocks(hidden); ++block) {
      const size_t first = block * kFp8Block, count = std::min(kFp8Block, hidden - first);
      Load(type, from + first * element, count, values);
      const float scale = ScaleOf(values, count, power_of_two);
      for (size_t i = 0; i < count; ++i) {
        float scaled = values[i] / scale;
        scaled = scaled > kLargest ? kLargest : scaled;  // NaN stays
        scaled = scaled < -kLargest ? -kLargest : scaled;
        codes[i] = Encode(scaled);
      }
      std::memcpy(to + first, codes, count);
      std::memcpy(scales + block * sizeof(float), &scale, sizeof(float));
    }
    from += hidden * element;
    to += Fp8WireBytes(hidden);
  }
}

void DecodeFp8(const std::byte* from, size_t rows, size_t hidden, RowType type, std::byte* to) {
  const std::array<float, 256>& table = Table();
  const size_t element = RowTypeBytes(type);
  float values[kFp8Block];
  uint16_t narrow[kFp8Block];
  for (size_t row = 0; row < rows; ++row) {
    for (size_t block = 0; block < Blocks(hidden); ++block) {
      const size_t first = block * kFp8Block, count = std::min(kFp8Block, hidden - first);
      float scale;
      std::memcpy(&scale, from + hidden + block * sizeof(float), sizeof(float));
      for (size_t i = 0; i < count; ++i)
        values[i] = table[static_cast<uint8_t>(from[first + i])] * scale;
      if (type == RowType::kF32) {
        std::memcpy(to + first * element, values, count * sizeof(float));
        continue;
      }
      for (size_t i = 0; i < count; ++i) narrow[i] = ToBFloat16(values[i]);
      std::memcpy(to + first * element, narrow, count * sizeof(uint16_t));
    }
    from += Fp8WireBytes(hidden);
    to += hidden * element;
  }
}

}  // namespace uccl::moe
