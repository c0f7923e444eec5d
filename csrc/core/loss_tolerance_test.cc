// Losses by chance stay below the budget, those of a full queue do not.
#include "csrc/core/loss_tolerance.h"

#include <gtest/gtest.h>

#include "csrc/core/testing/random.h"

namespace uccl::core {
namespace {

constexpr int64_t kPacket = 1500;

TEST(LossTolerance, ZeroTellsEveryLoss) {
  LossTolerance none(0, kPacket);
  for (int i = 0; i < 1000; ++i) none.OnAcked(kPacket);
  EXPECT_FALSE(none.Excuses(kPacket));
  EXPECT_FALSE(none.Excuses(0)) << "nothing is excused, however small";
}

TEST(LossTolerance, ABurstIsToldPastTheDepth) {
  LossTolerance two_percent(20, kPacket);
  for (int i = 0; i < LossTolerance::kDepthPackets; ++i) EXPECT_TRUE(two_percent.Excuses(kPacket));
  EXPECT_FALSE(two_percent.Excuses(kPacket));
  EXPECT_FALSE(two_percent.Excuses(kPacket));
}

TEST(LossTolerance, FiftyAcknowledgedPacketsPayForOneLost) {
  LossTolerance two_percent(20, kPacket);
  while (two_percent.Excuses(kPacket)) {
  }
  for (int i = 0; i < 49; ++i) two_percent.OnAcked(kPacket);
  EXPECT_FALSE(two_percent.Excuses(kPacket));
  two_percent.OnAcked(kPacket);
  EXPECT_TRUE(two_percent.Excuses(kPacket));
  EXPECT_FALSE(two_percent.Excuses(kPacket));
}

TEST(LossTolerance, SavesNoMoreThanItsDepth) {
  LossTolerance two_percent(20, kPacket);
  for (int i = 0; i < 1'000'000; ++i) two_percent.OnAcked(kPacket);
  int excused = 0;
  while (two_percent.Excuses(kPacket)) ++excused;
  EXPECT_EQ(excused, LossTolerance::kDepthPackets);
}

// How many of the losses in a million packets are told.
double ToldShare(double loss) {
  testing::Random random(7);
  LossTolerance two_percent(20, kPacket);
  int lost = 0, told = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    if (!random.Chance(loss)) {
      two_percent.OnAcked(kPacket);
      continue;
    }
    ++lost;
    if (!two_percent.Excuses(kPacket)) ++told;
  }
  return static_cast<double>(told) / lost;
}

TEST(LossTolerance, ChanceBelowTheShareIsHardlyEverTold) {
  EXPECT_LT(ToldShare(1.0 / 4096), 1e-4);
  EXPECT_LT(ToldShare(1.0 / 256), 1e-4);
  EXPECT_LT(ToldShare(0.01), 1e-3);
}

TEST(LossTolerance, LossAboveTheShareIsTold) {
  // Of 5 % lost, 2 of 95 are excused for each 5: three fifths are told.
  EXPECT_NEAR(ToldShare(0.05), 0.62, 0.03);
  EXPECT_GT(ToldShare(0.3), 0.9);
}

}  // namespace
}  // namespace uccl::core
