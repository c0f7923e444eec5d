// float32 from and to float16, bfloat16 and float8_e4m3fn, and what elements are to reductions: the
// same bits on the host and on a GPU.
//
// Integer operations where hardware instructions differ between processors (NaN) or depend on the
// floating-point environment (subnormals). Rounding is to nearest, ties to even; every NaN that is
// rounded becomes the positive quiet one. Products and sums must not be contracted: the builds say
// -ffp-contract=off and -fmad=false.
#pragma once

#include <cstdint>
#include <cstring>

#include "csrc/fifo/host_device.h"

namespace uccl::cuda {

template <class To, class From>
UCCL_HOST_DEVICE inline To BitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

inline constexpr uint32_t kInfinityBits = 0x7f800000u;
inline constexpr uint32_t kNanBits = 0x7fc00000u;

UCCL_HOST_DEVICE inline uint32_t MagnitudeBits(float f) {
  return BitsAs<uint32_t>(f) & 0x7fffffffu;
}

// Which NaN comes out of an addition is the processor's choice; this makes them one.
UCCL_HOST_DEVICE inline float OneNan(float f) {
  return MagnitudeBits(f) > kInfinityBits ? BitsAs<float>(kNanBits) : f;
}
UCCL_HOST_DEVICE inline double OneNan(double f) {
  const uint64_t magnitude = BitsAs<uint64_t>(f) & 0x7fffffffffffffffull;
  return magnitude > 0x7ff0000000000000ull ? BitsAs<double>(0x7ff8000000000000ull) : f;
}

UCCL_HOST_DEVICE inline float BFloat16ToFloat(uint16_t bits) {
  return BitsAs<float>(static_cast<uint32_t>(bits) << 16);
}

UCCL_HOST_DEVICE inline uint16_t FloatToBFloat16(float f) {
  const uint32_t bits = BitsAs<uint32_t>(OneNan(f));
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

UCCL_HOST_DEVICE inline float HalfToFloat(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t shifted = (bits & 0x7fffu) << 13;  // exponent and mantissa in their places
  constexpr uint32_t kBias = 112u << 23, kOneExponent = 1u << 23;
  uint32_t magnitude;
  if (shifted < kOneExponent) {
    // Zero and subnormals: as the mantissa of 2^-14, which is then taken away. Exact.
    magnitude = BitsAs<uint32_t>(BitsAs<float>(shifted + kBias + kOneExponent) -
                                 BitsAs<float>(kBias + kOneExponent));
  } else {
    magnitude = shifted + (shifted >= 31 * kOneExponent ? 2 * kBias : kBias);
  }
  return BitsAs<float>(magnitude | sign);
}

UCCL_HOST_DEVICE inline uint16_t FloatToHalf(float f) {
  const uint32_t bits = BitsAs<uint32_t>(OneNan(f));
  const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > kInfinityBits) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // rounds to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 puts the rounded mantissa into the low bits of the sum.
    half = BitsAs<uint32_t>(BitsAs<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  }
  return static_cast<uint16_t>(half | sign);
}

// float8_e4m3fn: bias 7, no infinity, 0x7f and 0xff are NaN, the largest finite value is 448.
inline constexpr float kLargestE4M3 = 448.0f;
inline constexpr uint8_t kNanE4M3 = 0x7f;

UCCL_HOST_DEVICE inline float E4M3ToFloat(uint8_t bits) {
  const uint32_t sign = (bits & 0x80u) << 24, low = bits & 0x7fu;
  if (low == kNanE4M3) return BitsAs<float>(kNanBits);
  // Subnormals count units of 2^-9; both products and sums here are exact.
  const float magnitude = low < 8 ? static_cast<float>(low) * BitsAs<float>(118u << 23)
                                  : BitsAs<float>((low << 20) + (120u << 23));
  return BitsAs<float>(BitsAs<uint32_t>(magnitude) | sign);
}

// Larger magnitudes than 448, infinity too, become 448.
UCCL_HOST_DEVICE inline uint8_t FloatToE4M3(float f) {
  const uint32_t bits = BitsAs<uint32_t>(f), sign = (bits >> 24) & 0x80u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > kInfinityBits) return kNanE4M3;
  constexpr uint32_t kLargestBits = 0x43e00000u;
  if (magnitude > kLargestBits) magnitude = kLargestBits;
  uint32_t low;
  if (magnitude < 0x3c800000u) {
    // Below 2^-6: the last place of 2^14 is 2^-9, so that the sum rounds to subnormal units.
    low = BitsAs<uint32_t>(BitsAs<float>(magnitude) + 16384.0f) - 0x46800000u;
  } else {
    low = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - 0x3c000000u) >> 20;
  }
  return static_cast<uint8_t>(low | sign);
}

}  // namespace uccl::cuda
