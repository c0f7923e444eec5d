// The equations of DCQCN by hand. Line rate 40 Gbit/s = 5 GB/s, so R_AI = 5 MB/s; round trip 20 us,
// so the paper's time constants hold unstretched.
#include "csrc/core/cc/dcqcn.h"

#include <gtest/gtest.h>

#include <cmath>

#include "csrc/core/cc/testing/driver.h"

namespace uccl::core {
namespace {

constexpr Nanos kRtt = FromMicros(20), kTimer = FromMicros(55), kCnp = FromMicros(50);
constexpr CongestionParams kParams{
    .window_bytes = 10'000'000, .mtu_bytes = 1000, .line_rate_bytes_per_s = 5'000'000'000};

testing::CongestionDriver Started(Nanos rtt = kRtt) {
  testing::CongestionDriver d("dcqcn", kParams);
  d.Ack(Nanos(0), 1, rtt);
  EXPECT_EQ(d.rate(), 5'000'000'000);
  return d;
}
// Rc = 1.25, Rt = 2.5 GB/s.
testing::CongestionDriver CutTwice() {
  auto d = Started();
  d.Mark(kCnp);
  d.Mark(kCnp);
  EXPECT_EQ(d.rate(), 1'250'000'000);
  return d;
}
double Target(const testing::CongestionDriver& d) { return d.Value("target_bytes_per_s"); }

TEST(Dcqcn, Starts_AtLineRateWithinTheInitialWindow) {
  testing::CongestionDriver d("dcqcn", kParams);
  EXPECT_EQ(d.rate(), 5'000'000'000);
  EXPECT_EQ(d.window(), 10'000);
  d.Ack(Nanos(0), 1, kRtt);
  EXPECT_EQ(d.window(), 101'000);  // 5 GB/s * 20 us, and a packet
}

TEST(Dcqcn, Mark_CutsByHalfOfAlpha) {
  auto d = Started();
  d.Mark(kCnp);  // alpha = 1
  EXPECT_EQ(d.rate(), 2'500'000'000);
  EXPECT_EQ(Target(d), 5e9);
  EXPECT_DOUBLE_EQ(d.Value("alpha"), 1);  // (1 - g) 1 + g
}

TEST(Dcqcn, Marks_CountOncePer50Microseconds) {
  auto d = Started();
  d.Mark(kCnp);
  d.Mark(kCnp - Nanos(1));
  EXPECT_EQ(d.rate(), 2'500'000'000);
  d.Mark(Nanos(1));
  EXPECT_EQ(d.rate(), 1'250'000'000);
  EXPECT_EQ(Target(d), 2.5e9);
}

TEST(Dcqcn, Alpha_DecaysByTimerAndGrowsByMarks) {
  auto d = Started();
  d.Mark(kCnp);
  // Two periods: alpha = (255/256)^2 = 0.992203; Rc = 5 - 2.5 / 4 = 4.375 GB/s, by fast recovery.
  d.Ack(2 * kTimer, 1, kRtt);
  EXPECT_NEAR(d.Value("alpha"), 0.992203, 1e-6);
  EXPECT_EQ(d.rate(), 4'375'000'000);
  // Cut to 4.375 (1 - 0.992203 / 2) = 2.204556; alpha = 0.992203 * 255/256 + 1/256 = 0.992233.
  d.Mark(Nanos(0));
  EXPECT_NEAR(d.rate(), 2'204'556'000, 1'000);
  EXPECT_NEAR(d.Value("alpha"), 0.992233, 1e-6);
  // After a long calm a mark still counts for something.
  d.Ack(FromMillis(60'000), 1, kRtt);
  EXPECT_NEAR(d.Value("alpha"), 1.0 / 256, 1e-6);
}

TEST(Dcqcn, Timer_FastRecoveryThenAdditiveIncrease) {
  auto d = CutTwice();
  // T = 1 to 4, halfway to Rt = 2.5 each time: 1.875, 2.1875, 2.34375, 2.421875.
  for (const double expected : {1.875e9, 2.1875e9, 2.34375e9, 2.421875e9}) {
    d.Ack(kTimer, 1, kRtt);
    EXPECT_EQ(static_cast<double>(d.rate()), expected);
  }
  // T = 5 = F: Rt = 2.505; Rc = (2.505 + 2.421875) / 2 = 2.4634375.
  d.Ack(kTimer, 1, kRtt);
  EXPECT_EQ(Target(d), 2.505e9);
  EXPECT_EQ(d.rate(), 2'463'437'500);
}

TEST(Dcqcn, Timer_MakesUpForPeriodsWithoutEvents) {
  auto slow = CutTwice(), fast = CutTwice();
  for (int i = 0; i < 50; ++i) fast.Ack(kTimer / 5, 1, kRtt);
  slow.Ack(10 * kTimer, 1, kRtt);
  EXPECT_EQ(slow.rate(), fast.rate());
  EXPECT_EQ(slow.Value("timer_steps"), 10);
}

TEST(Dcqcn, ByteCounter_StepsAtTenMegabytes) {
  auto d = CutTwice();
  d.Sent(Nanos(0), 9'999'999);
  EXPECT_EQ(d.rate(), 1'250'000'000);
  d.Sent(Nanos(0), 1);
  EXPECT_EQ(d.rate(), 1'875'000'000);
}

TEST(Dcqcn, BothCounters_StartHyperIncrease) {
  auto d = CutTwice();
  d.Sent(Nanos(0), 60'000'000);  // BC = 5 and 6 add R_AI: Rt = 2.51
  EXPECT_EQ(Target(d), 2.51e9);
  d.Ack(5 * kTimer, 1, kRtt);  // T = 1 to 5, min(T, BC) <= F: additive, Rt = 2.535
  EXPECT_EQ(Target(d), 2.535e9);
  d.Ack(kTimer, 1, kRtt);  // T = 6, min = 6 > F: Rt += 1 * R_HAI = 50 MB/s
  EXPECT_EQ(Target(d), 2.585e9);
  d.Mark(Nanos(0));  // both start again
  EXPECT_EQ(d.Value("timer_steps"), 0);
  EXPECT_EQ(d.Value("byte_steps"), 0);
}

TEST(Dcqcn, LongRoundTrip_StretchesTheConstants) {
  auto d = Started(2 * kCnp);
  d.Mark(kCnp);
  d.Mark(2 * kCnp - Nanos(1));
  EXPECT_EQ(d.rate(), 2'500'000'000);
  d.Mark(Nanos(1));
  EXPECT_EQ(d.rate(), 1'250'000'000);
  d.Ack(2 * kTimer - Nanos(1), 1, 2 * kCnp);
  EXPECT_EQ(d.rate(), 1'250'000'000);
  d.Ack(Nanos(1), 1, 2 * kCnp);
  EXPECT_EQ(d.rate(), 1'875'000'000);
}

TEST(Dcqcn, Loss_HalvesOncePerRoundTrip) {
  auto d = Started();
  d.Lose(kRtt);
  d.Lose(kRtt - Nanos(1));
  EXPECT_EQ(d.rate(), 2'500'000'000);
  d.Lose(Nanos(1));
  EXPECT_EQ(d.rate(), 1'250'000'000);
}

TEST(Dcqcn, Timeout_StopsTheTimersUntilASignOfLife) {
  auto d = Started();
  d.Timeout(kRtt);
  d.Sent(FromMillis(100), 1000);
  EXPECT_EQ(d.rate(), 2'500'000'000);
  d.Timeout(FromMillis(100));
  EXPECT_EQ(d.rate(), 1'250'000'000);
  d.Ack(FromMillis(100), 1, kRtt);
  EXPECT_EQ(d.rate(), 1'250'000'000);
  // Nowhere to recover to, T = 1 to 4; from T = 5 on additively: Rt = 1.255, Rc = 1.2525.
  d.Ack(5 * kTimer, 1, kRtt);
  EXPECT_EQ(d.rate(), 1'252'500'000);
}

TEST(Dcqcn, Delay_IsNoSignal) {
  auto d = Started();
  d.Ack(kRtt, 1, FromMillis(10));
  EXPECT_EQ(d.rate(), 5'000'000'000);
}

TEST(Dcqcn, UnknownLineRate_TakesThePapersStep) {
  CongestionParams params = kParams;
  params.line_rate_bytes_per_s = 0;
  testing::CongestionDriver d("dcqcn", params);
  d.Ack(Nanos(0), 1, kRtt);
  EXPECT_EQ(d.rate(), 12'500'000'000);  // assumed 100 Gbit/s
  d.Mark(kCnp);
  d.Mark(kCnp);
  d.Ack(5 * kTimer, 1, kRtt);
  EXPECT_EQ(Target(d), 6.255e9);
}

}  // namespace
}  // namespace uccl::core
