// Algorithm 1 of TIMELY and its patch by hand. Line rate 10 Gbit/s, so delta = 1.25 MB/s; base RTT
// 20 us, so T_low = 50 us and T_high = 500 us as in the paper; a packet has 1000 bytes.
#include "csrc/core/cc/timely.h"

#include <gtest/gtest.h>

#include "csrc/core/cc/testing/driver.h"

namespace uccl::core {
namespace {

constexpr Nanos kBase = FromMicros(20);
constexpr CongestionParams kParams{.window_bytes = 10'000'000,
                                   .mtu_bytes = 1000,
                                   .line_rate_bytes_per_s = 1'250'000'000,
                                   .base_rtt = kBase};

// 10 packets in the first round trip.
testing::CongestionDriver After(int64_t first_rtt_us) {
  testing::CongestionDriver d("timely", kParams);
  EXPECT_EQ(d.window(), 10'000);
  EXPECT_EQ(d.rate(), 0);
  d.Ack(kBase, 1, FromMicros(first_rtt_us));
  EXPECT_NEAR(d.rate(), 1e10 / static_cast<double>(first_rtt_us), 1);
  return d;
}

// Past the start, at 250 MB/s.
testing::CongestionDriver Steady() {
  auto d = After(20);
  d.Lose(kBase);
  EXPECT_NEAR(d.rate(), 250'000'000, 1);
  return d;
}

TEST(Timely, Start_DoublesUntilTlow) {
  auto d = After(100);
  d.Ack(kBase, 1, kBase);  // above T_low at once: the start is over
  EXPECT_NEAR(d.rate(), 101'250'000, 1);

  testing::CongestionDriver wide("timely", {.window_bytes = 10'000'000,
                                            .mtu_bytes = 1000,
                                            .line_rate_bytes_per_s = 5'000'000'000,
                                            .base_rtt = kBase});
  wide.Ack(kBase, 1, kBase);
  wide.Ack(kBase, 1, kBase);
  EXPECT_NEAR(wide.rate(), 1'000'000'000, 1);
  wide.Ack(kBase, 1, FromMicros(40));  // half a round trip of this length has passed
  EXPECT_NEAR(wide.rate(), 1'500'000'000, 1);
  wide.Ack(kBase, 1, FromMicros(60));
  const int64_t reached = wide.rate();
  EXPECT_LT(reached, 1'500'000'000);
  wide.Ack(kBase, 1, kBase);
  EXPECT_NEAR(wide.rate(), reached + 5'000'000, 1);
}

TEST(Timely, BelowTlow_AddsDelta) {
  auto d = Steady();
  d.Ack(kBase, 1, FromMicros(49));  // whatever the gradient
  EXPECT_NEAR(d.rate(), 251'250'000, 1);
  d.Ack(kBase, 1, FromMicros(20));
  EXPECT_NEAR(d.rate(), 252'500'000, 1);
}

TEST(Timely, Tlow_LiesAboveTheBudgetThatIsGiven) {
  CongestionParams given = kParams;
  given.queue_budget = FromMicros(1000);  // T_low = 1020 us, T_high = 16020 us
  testing::CongestionDriver d("timely", given);
  d.Ack(kBase, 1, kBase);
  d.Lose(kBase);
  const int64_t before = d.rate();
  d.Ack(kBase, 1, FromMicros(1000));
  EXPECT_EQ(d.rate(), before + 1'250'000);
  // Above T_high: less 0.8 * (1 - 16.02 / 32.04).
  d.Ack(FromMillis(40), 1, FromMicros(32'040));
  EXPECT_NEAR(static_cast<double>(d.rate()), 0.6 * static_cast<double>(before + 1'250'000), 10);
}

TEST(Timely, WhatAnAckWaitedIsNoDelay) {
  CongestionParams params = kParams;
  auto made = MakeCongestionController("timely", params);
  CongestionController& controller = *made.value();
  AckSample sample{
      .now = FromMillis(1), .rtt = kBase, .acked_bytes = 1000, .inflight_bytes = 10'000};
  controller.OnAck(sample);
  controller.OnLoss({.now = FromMillis(2), .lost_bytes = 1000, .inflight_bytes = 10'000});
  const int64_t rate = controller.pacing_rate_bytes_per_s();
  sample.now = FromMillis(3);
  sample.rtt = FromMicros(900);
  sample.waited = FromMicros(880);
  controller.OnAck(sample);
  EXPECT_EQ(controller.pacing_rate_bytes_per_s(), rate + 1'250'000) << "below T_low";
  // The window is for the whole round trip, or the rate could not be held: srtt 20 + 880 / 8.
  EXPECT_NEAR(static_cast<double>(controller.window_bytes()),
              static_cast<double>(rate + 1'250'000) * 130e-6 + 1000, 2);
}

TEST(Timely, CalmEvents_StartHyperactiveIncrease) {
  auto d = Steady();
  for (int i = 0; i < 4; ++i) d.Ack(kBase, 1, kBase);
  EXPECT_NEAR(d.rate(), 255'000'000, 1);
  d.Ack(kBase, 1, kBase);  // the fifth: N = 5
  EXPECT_NEAR(d.rate(), 261'250'000, 1);
  d.Ack(kBase, 1, FromMicros(100));  // ends it
  d.Ack(kBase, 1, kBase);
  EXPECT_EQ(d.Value("calm_events"), 1);
}

TEST(Timely, AboveThigh_DecreasesByTheExcess) {
  auto d = After(20);
  d.Ack(kBase, 1, FromMillis(1));  // 1 - 0.8 (1 - 500 / 1000) = 0.6
  EXPECT_NEAR(d.rate(), 300'000'000, 1);
  d.Ack(kBase, 1, FromMillis(1));  // the same queue
  EXPECT_NEAR(d.rate(), 300'000'000, 1);
  d.Ack(FromMillis(1), 1, FromMillis(1));
  EXPECT_NEAR(d.rate(), 180'000'000, 1);
}

TEST(Timely, FlatGradient_WeighsTheDistanceFromTlow) {
  auto d = After(100);
  // g = 0, w = 1/2, e = (100 - 50) / 50 = 1: 0.625 MB/s + 100 MB/s (1 - 0.008 / 2).
  d.Ack(kBase, 1, FromMicros(100));
  EXPECT_NEAR(d.rate(), 100'225'000, 1);
}

TEST(Timely, RisingGradient_OnlyDecreases) {
  auto d = After(100);
  // g = 0.875 * 10 / 20 = 0.4375, w = 1, e = 1.2: 100 MB/s (1 - 0.0096).
  d.Ack(kBase, 1, FromMicros(110));
  EXPECT_NEAR(d.Value("gradient"), 0.4375, 1e-6);
  EXPECT_NEAR(d.rate(), 99'040'000, 1);
  // g = 0.125 * 0.4375 = 0.0546875, w = 2 g + 1/2 = 0.609375:
  // 1.25 * 0.390625 + 99.04 (1 - 0.008 * 0.609375 * 1.2) = 0.48828 + 98.46062 = 98.94890.
  d.Ack(kBase, 1, FromMicros(110));
  EXPECT_NEAR(d.rate(), 98'948'900, 100);
}

TEST(Timely, FallingGradient_OnlyIncreases) {
  auto d = After(125);               // 80 MB/s
  d.Ack(kBase, 1, FromMicros(110));  // g = -0.65625, w = 0
  EXPECT_NEAR(d.rate(), 81'250'000, 1);
}

TEST(Timely, Updates_OncePerBaseRoundTrip) {
  auto d = Steady();
  d.Ack(kBase, 1, kBase);
  EXPECT_NEAR(d.rate(), 251'250'000, 1);
  d.Ack(kBase - Nanos(1), 1, kBase);
  EXPECT_NEAR(d.rate(), 251'250'000, 1);
  d.Ack(Nanos(1), 1, kBase);
  EXPECT_NEAR(d.rate(), 252'500'000, 1);
}

TEST(Timely, Window_IsRateTimesRoundTrip) {
  auto d = After(100);  // 100 MB/s * 100 us, and a packet
  EXPECT_EQ(d.window(), 11'000);
}

TEST(Timely, LossHalvesOncePerRoundTrip_TimeoutAlways) {
  auto d = After(20);
  d.Lose(kBase);
  d.Lose(kBase - Nanos(1));
  EXPECT_NEAR(d.rate(), 250'000'000, 1);
  d.Timeout(Nanos(0));
  EXPECT_NEAR(d.rate(), 125'000'000, 1);
  d.Lose(Nanos(0));  // what the timeout declares lost
  EXPECT_NEAR(d.rate(), 125'000'000, 1);
  d.Lose(kBase);
  EXPECT_NEAR(d.rate(), 62'500'000, 1);
}

TEST(Timely, Mark_IsNoSignal) {
  auto d = After(20);
  d.Mark(kBase);
  EXPECT_NEAR(d.rate(), 500'000'000, 1);
}

TEST(Timely, UnknownLineRate_TakesThePapersStep) {
  CongestionParams params = kParams;
  params.line_rate_bytes_per_s = 0;
  testing::CongestionDriver d("timely", params);
  d.Ack(kBase, 1, kBase);
  d.Lose(kBase);
  d.Ack(kBase, 1, kBase);
  EXPECT_NEAR(d.rate(), 251'250'000, 1);  // 10 Mbit/s
}

}  // namespace
}  // namespace uccl::core
