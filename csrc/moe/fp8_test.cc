// 8-bit floats against their definition: every code, every rounding border, blocks that are not
// full.
#include "csrc/moe/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "csrc/base/bfloat16.h"

namespace uccl::moe {
namespace {

TEST(Fp8, EveryCodeComesBack) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = FromFp8(static_cast<uint8_t>(bits));
    EXPECT_EQ(std::isnan(value), (bits & 0x7f) == 0x7f) << bits;
    EXPECT_EQ(std::signbit(value), bits >= 128) << bits;
    EXPECT_EQ(ToFp8(value), bits);
  }
  EXPECT_EQ(FromFp8(0x7e), 448.0f);
  EXPECT_EQ(FromFp8(0x08), std::ldexp(1.0f, -6));
  EXPECT_EQ(FromFp8(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(FromFp8(0x38), 1.0f);
}

TEST(Fp8, RoundsToTheNearestAndTiesToEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = FromFp8(static_cast<uint8_t>(code));
    const float high = FromFp8(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;  // exact
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(ToFp8(middle), even) << code;
    EXPECT_EQ(ToFp8(-middle), even | 0x80) << code;
    EXPECT_EQ(ToFp8(std::nextafter(middle, low)), code) << code;
    EXPECT_EQ(ToFp8(std::nextafter(middle, high)), code + 1) << code;
  }
}

TEST(Fp8, RowsHaveValuesThenScales) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (size_t hidden : {size_t{1}, size_t{127}, size_t{128}, size_t{300}}) {
    for (bool power_of_two : {false, true}) {
      constexpr size_t kRows = 3;
      const size_t blocks = (hidden + 127) / 128;
      ASSERT_EQ(Fp8WireBytes(hidden), hidden + 4 * blocks);
      std::vector<float> x(kRows * hidden), back(kRows * hidden);
      for (size_t i = 0; i < x.size(); ++i) x[i] = normal(rng) * (i < hidden ? 1e-6f : 300.0f);
      std::vector<std::byte> wire(kRows * Fp8WireBytes(hidden));
      const auto* bytes = reinterpret_cast<const std::byte*>(x.data());
      EncodeFp8(RowType::kF32, bytes, kRows, hidden, power_of_two, wire.data());
      DecodeFp8(wire.data(), kRows, hidden, RowType::kF32,
                reinterpret_cast<std::byte*>(back.data()));
      for (size_t row = 0; row < kRows; ++row) {
        for (size_t block = 0; block < blocks; ++block) {
          float amax = 1e-4f, scale = 0;
          const size_t end = std::min(hidden, (block + 1) * 128);
          for (size_t i = block * 128; i < end; ++i)
            amax = std::max(amax, std::fabs(x[row * hidden + i]));
          std::memcpy(&scale, wire.data() + row * Fp8WireBytes(hidden) + hidden + 4 * block, 4);
          const float want = power_of_two ? std::exp2(std::ceil(std::log2(amax / 448.0f)))
                                          : amax * (1.0f / 448.0f);
          EXPECT_EQ(scale, want);
          for (size_t i = block * 128; i < end; ++i) {
            const float value = x[row * hidden + i], got = back[row * hidden + i];
            EXPECT_LE(std::fabs(got - value), std::max(std::fabs(value) / 16, scale / 1024));
          }
        }
      }
      // bfloat16 rows are those numbers.
      std::vector<uint16_t> narrow(x.size()), narrow_back(x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        narrow[i] = ToBFloat16(x[i]);
        x[i] = FromBFloat16(narrow[i]);
      }
      std::vector<std::byte> of_narrow(wire.size());
      EncodeFp8(RowType::kF32, bytes, kRows, hidden, power_of_two, wire.data());
      EncodeFp8(RowType::kBF16, reinterpret_cast<const std::byte*>(narrow.data()), kRows, hidden,
                power_of_two, of_narrow.data());
      EXPECT_EQ(wire, of_narrow);
      DecodeFp8(wire.data(), kRows, hidden, RowType::kF32,
                reinterpret_cast<std::byte*>(back.data()));
      DecodeFp8(wire.data(), kRows, hidden, RowType::kBF16,
                reinterpret_cast<std::byte*>(narrow_back.data()));
      for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(narrow_back[i], ToBFloat16(back[i]));
    }
  }
}

TEST(Fp8, NanReachesItsWholeBlockAndNoOther) {
  std::vector<float> x(256, 1.0f), back(256);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::byte> wire(Fp8WireBytes(256));
  EncodeFp8(RowType::kF32, reinterpret_cast<const std::byte*>(x.data()), 1, 256, false,
            wire.data());
  DecodeFp8(wire.data(), 1, 256, RowType::kF32, reinterpret_cast<std::byte*>(back.data()));
  for (size_t i = 0; i < 256; ++i) EXPECT_EQ(std::isnan(back[i]), i < 128) << i;
}

}  // namespace
}  // namespace uccl::moe
