// Expansion of 32-bit numbers at the places where they wrap.
#include "csrc/core/sequence.h"

#include <gtest/gtest.h>

#include "csrc/core/testing/random.h"

namespace uccl::core {
namespace {

constexpr uint64_t kTurn = uint64_t{1} << 32;

TEST(ExpandSequence, NearTheReference) {
  EXPECT_EQ(ExpandSequence(7, kTurn + 5), kTurn + 7);
  EXPECT_EQ(ExpandSequence(5, kTurn + 7), kTurn + 5);
  EXPECT_EQ(ExpandSequence(5, kTurn + 5), kTurn + 5);
}

TEST(ExpandSequence, AcrossTheWrap) {
  EXPECT_EQ(ExpandSequence(3, 2 * kTurn - 2), 2 * kTurn + 3);
  EXPECT_EQ(ExpandSequence(0xffff'fffe, 2 * kTurn + 3), 2 * kTurn - 2);
  EXPECT_EQ(ExpandSequence(0, 2 * kTurn - 1), 2 * kTurn);
  EXPECT_EQ(ExpandSequence(0xffff'ffff, 2 * kTurn), 2 * kTurn - 1);
}

TEST(ExpandSequence, HalfATurnEitherWay) {
  EXPECT_EQ(ExpandSequence(0x7fff'ffff, kTurn), kTurn + 0x7fff'ffff);
  EXPECT_EQ(ExpandSequence(0x8000'0000, kTurn), kTurn - 0x8000'0000ull)
      << "the far half lies behind";
}

TEST(ExpandSequence, UndoesTruncation) {
  testing::Random random(1);
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t reference = kTurn + random.Below(1000 * kTurn);
    const uint64_t number = reference + random.Below(kTurn) - kTurn / 2;
    ASSERT_EQ(ExpandSequence(static_cast<uint32_t>(number), reference), number) << reference;
  }
}

}  // namespace
}  // namespace uccl::core
