// Packets take the time that the rate gives them; late timers are made up for, idle time is not.
#include "csrc/core/pacer.h"

#include <gtest/gtest.h>

namespace uccl::core {
namespace {

TEST(Pacer, NoRateNoLimit) {
  EXPECT_EQ(NextSend(FromMillis(7), FromMillis(5), 1'000'000, 0), Nanos(0));
}

TEST(Pacer, TheRateHoldsOverAnyTime) {
  constexpr int64_t kBytes = 1250, kRate = 125'000'000;  // 10 us each
  Nanos now = FromMillis(1), next{0};
  for (int i = 0; i < 1000; ++i) {
    next = NextSend(next, now, kBytes, kRate);
    now = std::max(now, next);
  }
  EXPECT_EQ(now, FromMillis(1) + 1000 * FromMicros(10) - kPacingSlack);
}

TEST(Pacer, LateTimersAreMadeUpForWithinTheSlack) {
  constexpr int64_t kBytes = 1250, kRate = 125'000'000;
  Nanos next = NextSend(FromMillis(1), FromMillis(1), kBytes, kRate);
  EXPECT_EQ(next, FromMillis(1) + FromMicros(10));
  next = NextSend(next, FromMillis(1) + FromMicros(60), kBytes, kRate);  // 50 us late
  EXPECT_EQ(next, FromMillis(1) + FromMicros(20)) << "the next may go at once";
  next = NextSend(next, FromMillis(500), kBytes, kRate);
  EXPECT_EQ(next, FromMillis(500) - kPacingSlack + FromMicros(10)) << "idle time is lost";
}

TEST(Pacer, SlowestRateAndLargestPacketDoNotOverflow) {
  EXPECT_EQ(NextSend(Nanos(0), FromMillis(1000), 65507, 1),
            FromMillis(1000) - kPacingSlack + std::chrono::seconds(65507));
}

}  // namespace
}  // namespace uccl::core
