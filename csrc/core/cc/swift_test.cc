// Algorithm 1 of Swift by hand; a packet has 1000 bytes, the base RTT is 20 us.
// Queue budget max(25, 20 / 4) = 25 us, fs_range 100 us; alpha = 100 / (1/sqrt(0.1) - 1/sqrt(100))
// = 32.656 us, beta = -3.2656 us. At 10 packets the scaling is 32.656 / sqrt(10) - 3.2656 = 7.061,
// the target 52.061 us.
#include "csrc/core/cc/swift.h"

#include <gtest/gtest.h>

#include "csrc/core/cc/testing/driver.h"

namespace uccl::core {
namespace {

constexpr Nanos kBase = FromMicros(20);
constexpr CongestionParams kParams{
    .window_bytes = 10'000'000, .mtu_bytes = 1000, .base_rtt = kBase};

double Cwnd(const testing::CongestionDriver& d) { return d.Value("cwnd_packets"); }

TEST(Swift, Target_ScalesWithFlowsAndHops) {
  testing::CongestionDriver d("swift", kParams);
  EXPECT_NEAR(d.Value("target_ns"), 52'061, 1);
  CongestionParams far = kParams;
  far.hops = 5;
  EXPECT_NEAR(testing::CongestionDriver("swift", far).Value("target_ns"), 57'061, 1);
  // At fs_max_cwnd = 100 packets and more nothing is added.
  for (int i = 0; i < 1000; ++i) d.Ack(kBase, 10, kBase);
  EXPECT_GT(Cwnd(d), 100);
  EXPECT_NEAR(d.Value("target_ns"), 45'000, 1);
  // Below fs_min_cwnd all of fs_range.
  for (int i = 0; i < 20; ++i) d.Lose(2 * kBase);
  EXPECT_LT(Cwnd(d), 0.1);
  EXPECT_NEAR(d.Value("target_ns"), 145'000, 1);
}

TEST(Swift, Target_HoldsPacketsOfASlowLink) {
  CongestionParams slow = kParams;
  slow.line_rate_bytes_per_s = 6'250'000;  // 50 Mbit/s: 160 us a packet
  // Budget 4 * 160 = 640 us, range 2560; scaling at 10 packets 7.061 / 100 * 2560 = 180.76.
  EXPECT_NEAR(testing::CongestionDriver("swift", slow).Value("target_ns"), 840'760, 20);
}

TEST(Swift, Target_HoldsTheBudgetThatIsGiven) {
  CongestionParams given = kParams;
  given.queue_budget = FromMicros(1000);
  // Base 20, budget 1000, range 4000; scaling at 10 packets 7.061 / 100 * 4000 = 282.45.
  testing::CongestionDriver d("swift", given);
  EXPECT_NEAR(d.Value("target_ns"), 1'302'450, 50);
  // A quarter of a long base is more than a short budget.
  given.queue_budget = FromMicros(1);
  EXPECT_LT(testing::CongestionDriver("swift", given).Value("target_ns"), 40'000);
  d.Ack(kBase, 10, FromMicros(1200));
  EXPECT_DOUBLE_EQ(Cwnd(d), 20) << "below the target";
  d.Ack(FromMicros(1500), 10, FromMicros(5000));
  EXPECT_DOUBLE_EQ(Cwnd(d), 10) << "above it, by more than max_mdf allows to take off";
}

TEST(Swift, Start_DoublesUntilTheFirstSignOfCongestion) {
  for (int kind = 0; kind < 3; ++kind) {
    testing::CongestionDriver d("swift", kParams);
    d.Ack(kBase, 10, kBase);
    EXPECT_DOUBLE_EQ(Cwnd(d), 20);
    if (kind == 0) d.Ack(kBase, 0, FromMicros(100));
    if (kind == 1) d.Lose(kBase);
    if (kind == 2) d.Timeout(kBase);
    const double before = Cwnd(d);
    EXPECT_LT(before, 20);
    d.Ack(kBase, before, kBase);
    EXPECT_NEAR(Cwnd(d), before + 1, 1e-3);
  }
}

TEST(Swift, BelowTarget_AddsOnePacketPerRoundTrip) {
  testing::CongestionDriver d("swift", kParams);
  d.Ack(kBase, 10, kBase);
  d.Lose(kBase);  // ends the start
  EXPECT_EQ(d.window(), 10'000);
  d.Ack(kBase, 10, FromMicros(40));  // 10 + 1/10 * 10
  EXPECT_DOUBLE_EQ(Cwnd(d), 11);
  EXPECT_EQ(d.window(), 11'000);
  EXPECT_EQ(d.rate(), 0);  // at a packet or more, ACKs are the clock
}

TEST(Swift, AboveTarget_DecreasesByTheExcess) {
  testing::CongestionDriver d("swift", kParams);
  // Twice the target: 1 - 0.8 * 1/2 = 0.6.
  d.Ack(kBase, 1, Nanos(2 * 52'061));
  EXPECT_NEAR(Cwnd(d), 6, 1e-3);
  // Not again within the round trip of 104 us, however long the delay; then by max_mdf at most.
  d.Ack(FromMicros(100), 1, Nanos(2 * 52'061));
  EXPECT_NEAR(Cwnd(d), 6, 1e-3);
  d.Ack(FromMicros(10), 1, FromMillis(10));
  EXPECT_NEAR(Cwnd(d), 6, 1e-3);  // the smoothed round trip has grown with the sample
  d.Ack(FromMillis(5), 1, FromMillis(10));
  EXPECT_NEAR(Cwnd(d), 3, 1e-3);
}

TEST(Swift, Loss_HalvesOncePerRoundTrip) {
  testing::CongestionDriver d("swift", kParams);
  d.Ack(kBase, 0, kBase);
  d.Lose(kBase);
  d.Lose(kBase - Nanos(1));
  EXPECT_DOUBLE_EQ(Cwnd(d), 5);
  d.Lose(Nanos(1));
  EXPECT_DOUBLE_EQ(Cwnd(d), 2.5);
  const Nanos reduced = d.now;
  d.Lose(5 * kBase, reduced);  // left before the answer
  EXPECT_DOUBLE_EQ(Cwnd(d), 2.5);
}

TEST(Swift, BelowOnePacket_PacesAndReturns) {
  testing::CongestionDriver d("swift", kParams);
  d.Ack(kBase, 0, kBase);
  for (int i = 0; i < 5; ++i) d.Lose(kBase);  // 10 / 32
  EXPECT_DOUBLE_EQ(Cwnd(d), 0.3125);
  EXPECT_EQ(d.window(), 1000);                                // one packet, but
  EXPECT_NEAR(static_cast<double>(d.rate()), 15'625'000, 1);  // 0.3125 packets in 20 us
  d.AckWith(kBase, 1, kBase, 0);                              // adds ai = 1 for the packet
  EXPECT_DOUBLE_EQ(Cwnd(d), 1.3125);
  EXPECT_EQ(d.rate(), 0);
}

TEST(Swift, Timeouts_FiveInARowLeaveTheMinimum) {
  testing::CongestionDriver d("swift", kParams);
  d.Ack(kBase, 0, FromMicros(100));  // above the target: 10 * max(1 - 0.8 * 0.47939, 0.5) = 6.1649
  EXPECT_NEAR(Cwnd(d), 6.1649, 1e-3);
  for (int i = 0; i < 4; ++i) d.Timeout(FromMillis(10));
  EXPECT_NEAR(Cwnd(d), 6.1649 / 16, 1e-4);
  d.Timeout(FromMillis(10));
  EXPECT_DOUBLE_EQ(Cwnd(d), 0.001);
  EXPECT_EQ(d.window(), 1000);
  EXPECT_EQ(d.rate(), 50'000);  // 10 kB/s by the formula, but never slower than a packet in 20 ms
  // A sign of life starts the count again.
  d.Ack(kBase, 1, kBase);
  for (int i = 0; i < 4; ++i) d.Timeout(FromMillis(10));
  EXPECT_NEAR(Cwnd(d), 1.001 / 16, 1e-4);
}

TEST(Swift, Mark_IsNoSignal) {
  testing::CongestionDriver d("swift", kParams);
  d.Mark(kBase);
  EXPECT_EQ(d.window(), 10'000);
}

TEST(Swift, UnknownBase_DrainsToSeeIt) {
  testing::CongestionDriver d("swift", {.window_bytes = 10'000'000, .mtu_bytes = 1000});
  d.Ack(kBase, 1, FromMicros(60));  // the queue of others, taken for the route
  EXPECT_EQ(d.Value("base_rtt_ns"), 60'000);
  const Nanos start = d.now;
  // For 50 ms never near it: a drain of two round trips (about 70 us).
  while (d.now - start < FromMillis(50)) {
    EXPECT_GE(d.window(), 8'000);
    d.Ack(FromMicros(10), 0, FromMicros(70));
  }
  EXPECT_EQ(d.window(), 4'000);
  d.Ack(FromMicros(100), 0, FromMicros(20));
  EXPECT_EQ(d.window(), 4'000);
  EXPECT_EQ(d.Value("base_rtt_ns"), 20'000);
  d.Ack(FromMicros(100), 0, FromMicros(20));
  EXPECT_GE(d.window(), 8'000);
}

TEST(Swift, LongerRoute_IsBelievedOfLonePackets) {
  testing::CongestionDriver d("swift", {.window_bytes = 10'000'000, .mtu_bytes = 1000});
  d.Ack(kBase, 1, kBase);
  d.AckWith(FromMillis(9'999), 1, FromMicros(500), 0);
  EXPECT_EQ(d.Value("base_rtt_ns"), 20'000);
  d.AckWith(FromMillis(2), 1, FromMicros(700), 3000);  // not alone: whose queue it was is open
  EXPECT_EQ(d.Value("base_rtt_ns"), 500'000);
}

}  // namespace
}  // namespace uccl::core
