// Tests of csrc/base/bfloat16.h.
#include "csrc/base/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace uccl {
namespace {

TEST(BFloat16, EveryValueThereAndBack) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto b = static_cast<uint16_t>(bits);
    const float f = FromBFloat16(b);
    if (std::isnan(f)) {
      ASSERT_EQ(ToBFloat16(f), b | 0x40u) << bits;  // quiet, otherwise as it was
    } else {
      ASSERT_EQ(ToBFloat16(f), b) << bits;
    }
  }
}

TEST(BFloat16, RoundsToNearestTiesToEven) {
  EXPECT_EQ(ToBFloat16(1.0f), 0x3f80);
  EXPECT_EQ(ToBFloat16(1.0f + 0x1p-8f), 0x3f80);             // a tie, down to even
  EXPECT_EQ(ToBFloat16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);  // just above it
  EXPECT_EQ(ToBFloat16(1.0f + 3 * 0x1p-8f), 0x3f82);         // a tie, up to even
  EXPECT_EQ(ToBFloat16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(ToBFloat16(-std::numeric_limits<float>::infinity()), 0xff80);
}

}  // namespace
}  // namespace uccl
