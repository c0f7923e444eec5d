// The equations of RFC 9438 by hand; a packet has 1000 bytes.
#include "csrc/core/cc/cubic.h"

#include <gtest/gtest.h>

#include "csrc/core/cc/testing/driver.h"

namespace uccl::core {
namespace {

constexpr CongestionParams kParams{.window_bytes = 10'000'000, .mtu_bytes = 1000};
constexpr Nanos kRtt = FromMillis(100);

// Slow start to 100 packets: 10, 20, 40, 80, 100.
testing::CongestionDriver AtHundredPackets(Nanos rtt = kRtt) {
  testing::CongestionDriver d("cubic", kParams);
  for (double packets : {10, 20, 40, 20}) d.Ack(rtt, packets, rtt);
  EXPECT_EQ(d.window(), 100'000);
  return d;
}

TEST(Cubic, SlowStart_AddsWhatIsAcknowledged) {
  testing::CongestionDriver d("cubic", kParams);
  EXPECT_EQ(d.window(), 10'000);  // RFC 6928
  EXPECT_EQ(d.rate(), 0);         // nothing known: no pacing
  d.Ack(kRtt, 10, kRtt);
  EXPECT_EQ(d.window(), 20'000);
  EXPECT_EQ(d.rate(), 400'000);  // twice 20 kB in 100 ms
}

TEST(Cubic, Loss_StartsTheCubicFunction) {
  auto d = AtHundredPackets();
  d.Lose(kRtt);
  // W_max = 100, cwnd = ssthresh = 0.7 * 100.
  EXPECT_EQ(d.window(), 70'000);
  EXPECT_EQ(d.Value("w_max"), 100'000);
  EXPECT_EQ(d.rate(), 875'000);  // 1.25 * 70 kB in 100 ms
  // The epoch starts with the first ACK; K = cbrt((100 - 70) / 0.4) = cbrt(75) = 4.2172 s.
  // W_est = 70 + 3 * 0.3 / 1.7 * 70 / 70 = 70.5294, above W_cubic(0) = 70: the Reno-friendly
  // region.
  d.Ack(kRtt, 70, kRtt);
  EXPECT_NEAR(d.Value("k_s"), 4.2172, 1e-4);
  EXPECT_EQ(d.window(), 70'529);
  // t = 1 s: W_cubic = 0.4 (1 - 4.2172)^3 + 100 = 86.7, above W_est. Target W_cubic(1.1) =
  // 0.4 * (-3.1172)^3 + 100 = 87.884; one packet adds (87.884 - 70.529) / 70.529 = 0.2461.
  d.Ack(FromMillis(1000), 1, kRtt);
  EXPECT_NEAR(d.window(), 70'529 + 246, 2);
  // t = K, a whole window acknowledged: cwnd = W_cubic(K + 0.1) = 100 + 0.4 * 0.001.
  d.Ack(Nanos(3'217'163'000), 71, kRtt);
  EXPECT_NEAR(d.window(), 100'000, 20);
  // Convex: t = K + 2, W_cubic(K + 2.1) = 100 + 0.4 * 9.261 = 103.704.
  d.Ack(FromMillis(2000), 101, kRtt);
  EXPECT_NEAR(d.window(), 103'704, 5);
}

TEST(Cubic, Target_AtMostHalfMoreInARoundTrip) {
  auto d = AtHundredPackets();
  d.Lose(kRtt);
  d.Ack(kRtt, 70, kRtt);  // 70.529, epoch
  // t = 20 s: W_cubic is 100 + 0.4 * 15.8^3 = 1672; the target is clamped to 1.5 * 70.529.
  d.Ack(FromMillis(20'000), 71, kRtt);
  EXPECT_NEAR(d.window(), 105'794, 2);
}

TEST(Cubic, FastConvergence_LowersTheMaximum) {
  auto d = AtHundredPackets();
  d.Lose(kRtt);
  d.Lose(2 * kRtt);
  // At 70 below W_max 100: W_max = 70 * (1 + 0.7) / 2 = 59.5; cwnd = 49.
  EXPECT_EQ(d.Value("w_max"), 59'500);
  EXPECT_EQ(d.window(), 49'000);
}

TEST(Cubic, Loss_ReducesOncePerRoundTrip) {
  auto d = AtHundredPackets();
  d.Lose(kRtt);
  const Nanos reduced = d.now;
  d.Lose(kRtt - Nanos(1));
  d.Mark(Nanos(0));
  EXPECT_EQ(d.window(), 70'000);
  // Known send times decide, whatever the clock says.
  d.Lose(5 * kRtt, reduced - Nanos(1));
  EXPECT_EQ(d.window(), 70'000);
  d.Lose(Nanos(0), reduced + Nanos(1));
  EXPECT_EQ(d.window(), 49'000);
}

TEST(Cubic, Mark_IsAnsweredLikeALoss) {
  auto d = AtHundredPackets();
  d.Mark(kRtt);
  EXPECT_EQ(d.window(), 70'000);
}

TEST(Cubic, RenoFriendly_OnShortRoundTrips) {
  constexpr Nanos kShort = FromMillis(1);
  testing::CongestionDriver d("cubic", kParams);
  d.Ack(kShort, 10, kShort);
  d.Lose(kShort);
  EXPECT_EQ(d.window(), 14'000);
  // Each round trip W_est grows by 0.52941 up to the 20 before the loss: 12 round trips, 20.353;
  // then by 1 each. After 100: 20.353 + 88 = 108.353, while W_cubic(0.1) is below 20.
  for (int i = 0; i < 100; ++i) d.Ack(kShort, static_cast<double>(d.window()) / 1000, kShort);
  EXPECT_NEAR(d.window(), 108'353, 100);
}

TEST(Cubic, Timeout_StartsOverAndThenGrowsFromTheWindowReached) {
  auto d = AtHundredPackets();
  d.Timeout(kRtt);
  EXPECT_EQ(d.window(), 1000);
  EXPECT_EQ(d.Value("ssthresh"), 70'000);
  d.Timeout(kRtt);  // of the same data: ssthresh stays
  EXPECT_EQ(d.Value("ssthresh"), 70'000);
  d.Lose(Nanos(0));  // what the timeout declares lost
  EXPECT_EQ(d.window(), 1000);
  d.Ack(kRtt, 40, kRtt);
  EXPECT_EQ(d.window(), 41'000);
  d.Ack(kRtt, 41, kRtt);
  EXPECT_EQ(d.window(), 70'000);  // not past ssthresh
  // Section 4.8: K = 0 and W_max = 70; t = 0 in the Reno-friendly region: 70.529.
  d.Ack(kRtt, 70, kRtt);
  EXPECT_EQ(d.Value("k_s"), 0);
  EXPECT_EQ(d.window(), 70'529);
  // t = 3: target W_cubic(3.1) = 70 + 0.4 * 29.791 = 81.916.
  d.Ack(FromMillis(3000), 71, kRtt);
  EXPECT_NEAR(d.window(), 81'916, 5);
}

TEST(Cubic, UnusedWindow_DoesNotGrow) {
  auto d = AtHundredPackets();
  d.AckWith(kRtt, 10, kRtt, 39'000);  // 49 of 100 packets were in flight
  EXPECT_EQ(d.window(), 100'000);
  d.AckWith(kRtt, 10, kRtt, 40'000);
  EXPECT_EQ(d.window(), 110'000);
}

TEST(Cubic, IdleTime_IsNotGrowth) {
  auto busy = AtHundredPackets(), idle = AtHundredPackets();
  for (auto* d : {&busy, &idle}) {
    d->Lose(kRtt);
    d->Ack(kRtt, 70, kRtt);
    d->AckWith(kRtt, 71, kRtt, 0);
  }
  EXPECT_EQ(busy.window(), idle.window());
  busy.Sent(Nanos(0), 1000);
  idle.Sent(FromMillis(10'000), 1000);
  for (auto* d : {&busy, &idle}) d->Ack(kRtt, 71, kRtt);
  EXPECT_EQ(busy.window(), idle.window());
  EXPECT_LT(idle.window(), 80'000);
}

}  // namespace
}  // namespace uccl::core
