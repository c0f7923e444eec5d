// Conversions against arithmetic in double: every 8- and 16-bit pattern, and for rounding every
// midpoint between neighbours with what lies just beside it.
#include "csrc/cuda/float_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace uccl::cuda {
namespace {

struct Format {
  int bits, mantissa_bits, min_exponent;
};
constexpr Format kHalf{16, 10, -14}, kBFloat{16, 7, -126}, kE4M3{8, 3, -6};

// Of a finite pattern without its sign.
double MagnitudeOf(Format f, uint32_t low) {
  const int exponent = static_cast<int>(low >> f.mantissa_bits);
  const int mantissa = static_cast<int>(low & ((1u << f.mantissa_bits) - 1));
  if (exponent == 0) return std::ldexp(mantissa, f.min_exponent - f.mantissa_bits);
  return std::ldexp(mantissa + (1 << f.mantissa_bits),
                    f.min_exponent + exponent - 1 - f.mantissa_bits);
}

// Patterns below `end` are finite. Between each two neighbours: the midpoint goes to the even one,
// what is nearer to one goes there.
template <class Encode, class Decode>
void CheckFormat(Format f, uint32_t end, const Encode& encode, const Decode& decode) {
  const uint32_t sign = 1u << (f.bits - 1);
  for (uint32_t low = 0; low < end; ++low) {
    const double value = MagnitudeOf(f, low);
    ASSERT_EQ(static_cast<double>(decode(low)), value) << low;
    ASSERT_EQ(static_cast<double>(decode(low | sign)), -value) << low;
    ASSERT_EQ(std::signbit(decode(low | sign)), true) << low;
    const auto exact = static_cast<float>(value);
    ASSERT_EQ(encode(exact), low);
    ASSERT_EQ(encode(-exact), low | sign);
    if (low + 1 == end) break;
    const auto middle = static_cast<float>((value + MagnitudeOf(f, low + 1)) / 2);
    const uint32_t even = low % 2 == 0 ? low : low + 1;
    if (static_cast<double>(middle) != (value + MagnitudeOf(f, low + 1)) / 2) continue;
    ASSERT_EQ(encode(middle), even) << low;
    ASSERT_EQ(encode(-middle), even | sign) << low;
    ASSERT_EQ(encode(std::nextafter(middle, 0.0f)), low) << low;
    ASSERT_EQ(encode(std::nextafter(middle, INFINITY)), low + 1) << low;
  }
}

TEST(FloatFormats, E4M3) {
  CheckFormat(kE4M3, 0x7f, FloatToE4M3,
              [](uint32_t bits) { return E4M3ToFloat(static_cast<uint8_t>(bits)); });
  for (float large : {448.0f, 449.0f, 463.9f, 464.0f, 1e30f, INFINITY}) {
    EXPECT_EQ(FloatToE4M3(large), 0x7e);
    EXPECT_EQ(FloatToE4M3(-large), 0xfe);
  }
  EXPECT_EQ(FloatToE4M3(NAN), kNanE4M3);
  EXPECT_EQ(FloatToE4M3(-NAN), kNanE4M3);
  EXPECT_TRUE(std::isnan(E4M3ToFloat(0x7f)) && std::isnan(E4M3ToFloat(0xff)));
  EXPECT_EQ(FloatToE4M3(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(FloatFormats, Half) {
  CheckFormat(kHalf, 0x7c00, FloatToHalf,
              [](uint32_t bits) { return HalfToFloat(static_cast<uint16_t>(bits)); });
  EXPECT_EQ(FloatToHalf(65519.0f), 0x7bff);
  for (float large : {65520.0f, 1e30f, INFINITY}) {
    EXPECT_EQ(FloatToHalf(large), 0x7c00);
    EXPECT_EQ(FloatToHalf(-large), 0xfc00);
  }
  EXPECT_EQ(HalfToFloat(0x7c00), INFINITY);
  EXPECT_EQ(HalfToFloat(0xfc00), -INFINITY);
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7c01)));
  EXPECT_EQ(FloatToHalf(-NAN), 0x7e00);
}

TEST(FloatFormats, BFloat16) {
  CheckFormat(kBFloat, 0x7f80, FloatToBFloat16,
              [](uint32_t bits) { return BFloat16ToFloat(static_cast<uint16_t>(bits)); });
  EXPECT_EQ(FloatToBFloat16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(FloatToBFloat16(-INFINITY), 0xff80);
  EXPECT_EQ(FloatToBFloat16(-NAN), 0x7fc0);
}

TEST(FloatFormats, OneNanIsPositiveAndQuiet) {
  EXPECT_EQ(BitsAs<uint32_t>(OneNan(BitsAs<float>(0xff800001u))), 0x7fc00000u);
  EXPECT_EQ(BitsAs<uint32_t>(OneNan(-INFINITY)), 0xff800000u);
  EXPECT_EQ(BitsAs<uint64_t>(OneNan(BitsAs<double>(0xfff0000000000001ull))), 0x7ff8000000000000ull);
  EXPECT_EQ(OneNan(-0.5), -0.5);
}

}  // namespace
}  // namespace uccl::cuda
