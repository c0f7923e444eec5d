// When a path counts as dead, when it does not, and how it is asked and comes back.
#include "csrc/core/path/path_health.h"

#include <gtest/gtest.h>

#include <vector>

namespace uccl::core {
namespace {

class PathMonitorTest : public ::testing::Test {
 protected:
  PathMonitorTest() : paths_(3), monitor_(paths_) {}
  void Lose(size_t path, Nanos sent, int times = 1) {
    for (int i = 0; i < times; ++i) monitor_.OnLoss(&paths_[path], sent + FromMicros(i));
  }
  void Deliver(size_t path, Nanos sent) { monitor_.OnAlive(&paths_[path], sent); }
  std::vector<size_t> Failed(Nanos now) {
    std::vector<size_t> failed;
    monitor_.Judge(now, [&](size_t path) { failed.push_back(path); });
    return failed;
  }
  std::vector<PathId> Probes() {
    std::vector<PathId> probes;
    while (const auto path = monitor_.TakeProbe()) probes.push_back(*path);
    return probes;
  }

  std::vector<PathState> paths_;
  PathMonitor monitor_;
};
using Paths = std::vector<size_t>;

TEST_F(PathMonitorTest, LossesInARowWhileOthersProgress) {
  Deliver(0, FromMillis(1));
  Deliver(1, FromMillis(1));
  Lose(1, FromMillis(2), kLossesToFail - 1);
  Deliver(0, FromMillis(3));
  EXPECT_EQ(Failed(FromMillis(4)), Paths{});
  Lose(1, FromMillis(2));
  EXPECT_EQ(Failed(FromMillis(4)), Paths{1});
  EXPECT_TRUE(paths_[1].failed());
  EXPECT_EQ(Failed(FromMillis(4)), Paths{}) << "told once";
  EXPECT_EQ(paths_[1].failures, 1u);
}

TEST_F(PathMonitorTest, SilenceOfAllIsNobodysFault) {
  for (size_t i : {0, 1, 2}) Deliver(i, FromMillis(1));
  for (size_t i : {0, 1, 2}) Lose(i, FromMillis(2), 10);
  EXPECT_EQ(Failed(FromMillis(50)), Paths{});
  // One answers: now it is the others'.
  Deliver(2, FromMillis(60));
  EXPECT_EQ(Failed(FromMillis(61)), (Paths{0, 1}));
  EXPECT_FALSE(paths_[2].failed());
}

TEST_F(PathMonitorTest, LossesThatALaterPacketOvertookDoNotCount) {
  Deliver(0, FromMillis(10));
  Deliver(1, FromMillis(10));
  Lose(1, FromMillis(5), 100);
  Deliver(0, FromMillis(12));
  EXPECT_EQ(Failed(FromMillis(13)), Paths{});
}

TEST_F(PathMonitorTest, ADeliveryEndsTheRow) {
  Lose(1, FromMillis(2), kLossesToFail - 1);
  Deliver(1, FromMillis(3));
  Lose(1, FromMillis(4), kLossesToFail - 1);
  Deliver(0, FromMillis(5));
  EXPECT_EQ(Failed(FromMillis(6)), Paths{});
}

TEST_F(PathMonitorTest, ProbesAtOnceThenMoreRarely) {
  Deliver(0, FromMillis(10));
  Lose(1, FromMillis(5), kLossesToFail);
  EXPECT_EQ(monitor_.NextProbe(), kNever);
  Nanos now = FromMillis(11);
  ASSERT_EQ(Failed(now), Paths{1});
  std::vector<Nanos> gaps;
  for (int i = 0; i < 12; ++i) {
    ASSERT_NE(monitor_.NextProbe(), kNever);
    gaps.push_back(monitor_.NextProbe() - now);
    now = monitor_.NextProbe();
    monitor_.QueueDueProbes(now);
    EXPECT_EQ(Probes(), std::vector<PathId>{PathId{1}});
    monitor_.QueueDueProbes(now);
    EXPECT_EQ(Probes(), std::vector<PathId>{}) << "once";
  }
  EXPECT_EQ(gaps[0], Nanos(0));
  EXPECT_EQ(gaps[1], kMinPathProbeInterval);
  EXPECT_EQ(gaps[2], 2 * kMinPathProbeInterval);
  EXPECT_EQ(gaps.back(), kMaxPathProbeInterval);
  EXPECT_EQ(paths_[1].probes, 12u);
}

TEST_F(PathMonitorTest, AnAnswerBringsItBack) {
  Deliver(0, FromMillis(10));
  Deliver(1, FromMillis(4));
  Lose(1, FromMillis(5), kLossesToFail);
  ASSERT_EQ(Failed(FromMillis(11)), Paths{1});
  Deliver(1, FromMillis(4));
  EXPECT_TRUE(paths_[1].failed()) << "older than the losses";
  EXPECT_TRUE(monitor_.any_failed());
  Deliver(1, FromMillis(11));
  EXPECT_FALSE(paths_[1].failed());
  EXPECT_FALSE(monitor_.any_failed());
  EXPECT_EQ(monitor_.NextProbe(), kNever);
  Lose(1, FromMillis(12), kLossesToFail);
  Deliver(0, FromMillis(14));
  EXPECT_EQ(Failed(FromMillis(15)), Paths{1}) << "it may fail again";
}

TEST_F(PathMonitorTest, SilentPathsAreProbedTogether) {
  Deliver(1, FromMillis(10));
  monitor_.QueueProbesOfSilentPaths(FromMillis(8));
  monitor_.QueueProbesOfSilentPaths(FromMillis(8));
  EXPECT_EQ(Probes(), (std::vector<PathId>{PathId{0}, PathId{2}}));
}

// Without news a threshold falls back by halves; as long as reordering goes on it stays.
TEST(ReorderThreshold, DecaysWhenThePathHasCalmedDown) {
  PathState path;
  uint64_t seq = 0;
  const auto in_order = [&](uint64_t packets) {
    for (uint64_t i = 0; i < packets; ++i) path.LearnOrder(++seq);
  };
  in_order(100);
  path.LearnReordering(40);
  EXPECT_EQ(path.reorder_threshold, 41u);
  in_order(300);
  EXPECT_EQ(path.reorder_threshold, 41u) << "remembered for sixteen times itself";
  in_order(41 * kReorderMemoryFactor);
  EXPECT_EQ(path.reorder_threshold, 41u) << "seen within this time";
  in_order(41 * kReorderMemoryFactor);
  EXPECT_EQ(path.reorder_threshold, 10u) << "halved, and again after a shorter time";
  in_order(5000);
  EXPECT_EQ(path.reorder_threshold, kInitialReorderThreshold);
}

TEST(ReorderThreshold, StaysWhileItIsNeeded) {
  PathState path;
  for (uint64_t block = 0; block < 10'000; ++block) {
    const uint64_t first = 1 + block * 10;
    for (uint64_t i = 1; i < 10; ++i) path.LearnOrder(first + i);
    path.LearnOrder(first);  // nine later ones came before it
    ASSERT_EQ(path.reorder_threshold, 10u) << block;
  }
}

TEST(ReorderThreshold, IsBounded) {
  PathState path;
  path.LearnReordering(1'000'000);
  EXPECT_EQ(path.reorder_threshold, kMaxReorderThreshold);
  for (uint64_t i = 1; i < 40'000; ++i) path.LearnOrder(i);
  EXPECT_LE(path.reorder_threshold, kMaxReorderThreshold);
}

}  // namespace
}  // namespace uccl::core
