// Each rule alone, and what neither may touch.
#include "csrc/core/recovery/loss_detector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace uccl::core {
namespace {

constexpr Nanos kUnknownRtt = FromMillis(20);

class LossDetectorTest : public ::testing::Test {
 protected:
  LossDetectorTest() : ledger_(0xffff'fffe), paths_(2) {}

  uint64_t Send(size_t path, Nanos at) {
    const uint64_t psn = ledger_.Append();
    SendAgain(psn, path, at);
    return psn;
  }
  void SendAgain(uint64_t psn, size_t path, Nanos at) {
    SentPacket& packet = ledger_.at(psn);
    packet.state = SentState::kInFlight;
    packet.path = static_cast<PathId>(path);
    packet.sent = at;
    packet.path_seq = paths_[path].next_seq++;
    ++packet.transmissions;
    paths_[path].flights.push_back({psn, packet.path_seq});
  }
  void Acknowledge(uint64_t psn) {
    SentPacket& packet = ledger_.at(psn);
    PathState& path = paths_[ToInt(packet.path)];
    path.highest_acked_seq = std::max(path.highest_acked_seq, packet.path_seq);
    path.newest_acked_sent = std::max(path.newest_acked_sent, packet.sent);
    packet.state = SentState::kAcked;
  }
  void SetRtt(size_t path, Nanos rtt) {
    for (int i = 0; i < 200; ++i) paths_[path].rtt.Sample(rtt);
  }
  // Marks them lost too, as the sender does.
  std::vector<uint64_t> Lost() {
    std::vector<uint64_t> lost;
    DetectLosses(ledger_, paths_, kUnknownRtt, &lost);
    for (const uint64_t psn : lost) ledger_.at(psn).state = SentState::kLost;
    return lost;
  }

  SentLedger ledger_;
  std::vector<PathState> paths_;
};

using Psns = std::vector<uint64_t>;

TEST_F(LossDetectorTest, NothingAcknowledgedNothingLost) {
  for (int i = 0; i < 100; ++i) Send(0, FromMillis(i));
  EXPECT_EQ(Lost(), Psns{});
}

TEST_F(LossDetectorTest, ThreeLaterOnesOfThePath) {
  SetRtt(0, FromMillis(1));
  const uint64_t a = Send(0, FromMicros(1)), b = Send(0, FromMicros(2));
  Send(0, FromMicros(3));
  const uint64_t d = Send(0, FromMicros(4)), e = Send(0, FromMicros(5));
  Acknowledge(b);
  EXPECT_EQ(Lost(), Psns{});
  Acknowledge(d);
  EXPECT_EQ(Lost(), Psns{a}) << "three after it";
  EXPECT_EQ(Lost(), Psns{}) << "told once";
  Acknowledge(e);
  EXPECT_EQ(Lost(), Psns{}) << "the third one has two after it";
}

TEST_F(LossDetectorTest, ThresholdOfThePathDecides) {
  SetRtt(0, FromMillis(1));
  paths_[0].reorder_threshold = 6;
  const uint64_t a = Send(0, FromMicros(1));
  Psns later;
  for (int i = 0; i < 6; ++i) later.push_back(Send(0, FromMicros(2 + i)));
  Acknowledge(later[4]);
  EXPECT_EQ(Lost(), Psns{});
  Acknowledge(later[5]);
  EXPECT_EQ(Lost().front(), a);
}

TEST_F(LossDetectorTest, OtherPathsOvertakeFreely) {
  SetRtt(0, FromMillis(10));
  SetRtt(1, FromMicros(50));
  Send(0, FromMicros(1));
  for (int i = 0; i < 100; ++i) Acknowledge(Send(1, FromMicros(2 + i)));
  EXPECT_EQ(Lost(), Psns{});
}

TEST_F(LossDetectorTest, LaterThanTheSlowestPathMayBe) {
  SetRtt(0, FromMillis(10));
  SetRtt(1, FromMicros(50));
  const Nanos window = paths_[0].rtt.Bound();
  const uint64_t slow = Send(0, FromMillis(1)), fast = Send(1, FromMillis(1));
  Acknowledge(Send(1, FromMillis(1) + window));
  EXPECT_EQ(Lost(), Psns{});
  Acknowledge(Send(1, FromMillis(1) + window + Nanos(1)));
  EXPECT_EQ(Lost(), (Psns{slow, fast}));
}

TEST_F(LossDetectorTest, PathWithoutSampleGetsTime) {
  SetRtt(1, FromMicros(50));
  const uint64_t unknown = Send(0, FromMillis(1)), known = Send(1, FromMillis(1));
  Acknowledge(Send(1, FromMillis(2)));
  EXPECT_EQ(Lost(), Psns{known});
  Acknowledge(Send(1, FromMillis(1) + kUnknownRtt));
  EXPECT_EQ(Lost(), Psns{});
  Acknowledge(Send(1, FromMillis(1) + kUnknownRtt + Nanos(1)));
  EXPECT_EQ(Lost(), Psns{unknown});
}

TEST_F(LossDetectorTest, ARepetitionIsJudgedByItsOwnTransmission) {
  SetRtt(0, FromMillis(1));
  SetRtt(1, FromMillis(1));
  const uint64_t a = Send(0, FromMicros(1));
  Psns later;
  for (int i = 0; i < 3; ++i) later.push_back(Send(0, FromMicros(2 + i)));
  Acknowledge(later[2]);
  ASSERT_EQ(Lost(), Psns{a});
  SendAgain(a, 1, FromMicros(100));
  for (int i = 0; i < 10; ++i) Acknowledge(Send(0, FromMicros(200 + i)));
  EXPECT_EQ(Lost(), (Psns{later[0], later[1]})) << "not a: it is on path 1";
  for (int i = 0; i < 3; ++i) Acknowledge(Send(1, FromMicros(300 + i)));
  EXPECT_EQ(Lost(), Psns{a});
}

// After a timeout the lowest PSNs are sent last, and their ACKs tell of the higher ones.
TEST_F(LossDetectorTest, LowPsnSentAgainRevealsHigherOnes) {
  SetRtt(0, FromMillis(1));
  Psns burst;
  for (int i = 0; i < 50; ++i) burst.push_back(Send(0, FromMicros(i)));
  SendAgain(burst[0], 1, FromMillis(100));
  SetRtt(1, FromMillis(1));
  ledger_.at(burst[0]).state = SentState::kAcked;
  paths_[1].newest_acked_sent = FromMillis(100);
  EXPECT_EQ(Lost(), Psns(burst.begin() + 1, burst.end()));
}

TEST_F(LossDetectorTest, AcknowledgedOnesLeaveTheQueue) {
  SetRtt(0, FromMillis(1));
  for (int i = 0; i < 100'000; ++i) {
    Acknowledge(Send(0, FromMicros(i)));
    ledger_.Trim();
    ASSERT_EQ(Lost(), Psns{});
    ASSERT_TRUE(paths_[0].flights.empty());
  }
}

}  // namespace
}  // namespace uccl::core
