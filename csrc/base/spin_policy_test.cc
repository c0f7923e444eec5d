// Tests of csrc/base/spin_policy.h with a clock that the test moves.
#include "csrc/base/spin_policy.h"

#include <gtest/gtest.h>

namespace uccl {
namespace {

constexpr Nanos kLimit = FromMicros(50);

// Idles for `wait` in turns of 1 us, or sleeps when told to; how long it polled.
Nanos Wait(SpinPolicy* policy, Nanos* now, Nanos wait) {
  const Nanos start = *now;
  const Nanos end = start + wait;
  Nanos polled{0};
  for (; *now < end; *now += FromMicros(1)) {
    if (!policy->OnIdle(*now)) break;
    polled = *now - start + FromMicros(1);
  }
  *now = end;
  policy->OnWork(*now);
  return polled;
}

TEST(SpinPolicy, ShortWaitsArePolledThrough) {
  SpinPolicy policy(kLimit);
  Nanos now = FromMillis(1);
  policy.OnWork(now);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(Wait(&policy, &now, FromMicros(20)), FromMicros(20));
  }
}

TEST(SpinPolicy, LongWaitsEndThePollingAtTheLimitAndLaterAltogether) {
  SpinPolicy policy(kLimit);
  Nanos now = FromMillis(1);
  policy.OnWork(now);
  for (int i = 0; i < SpinPolicy::kMaxCredit; ++i) {
    EXPECT_EQ(Wait(&policy, &now, FromMillis(1)), kLimit) << i;
  }
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Wait(&policy, &now, FromMillis(1)), Nanos(0)) << i;
}

TEST(SpinPolicy, OneShortSleepBringsItBack) {
  SpinPolicy policy(kLimit);
  Nanos now = FromMillis(1);
  policy.OnWork(now);
  for (int i = 0; i < 100; ++i) Wait(&policy, &now, FromMillis(1));
  EXPECT_EQ(Wait(&policy, &now, FromMicros(10)), Nanos(0)) << "asleep, but not for long";
  EXPECT_EQ(Wait(&policy, &now, FromMicros(10)), FromMicros(10));
  EXPECT_EQ(Wait(&policy, &now, FromMicros(10)), FromMicros(10));
}

TEST(SpinPolicy, BurstsWithPausesBetweenThemStayPolled) {
  SpinPolicy policy(kLimit);
  Nanos now = FromMillis(1);
  policy.OnWork(now);
  for (int burst = 0; burst < 200; ++burst) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Wait(&policy, &now, FromMicros(15)), FromMicros(15));
    EXPECT_EQ(Wait(&policy, &now, FromMillis(2)), kLimit);
  }
}

TEST(SpinPolicy, WorkWithoutIdleTurnsTeachesNothing) {
  SpinPolicy policy(kLimit);
  Nanos now = FromMillis(1);
  policy.OnWork(now);
  for (int i = 0; i < 100; ++i) policy.OnWork(now += FromMillis(1));  // long turns, no waits
  EXPECT_EQ(Wait(&policy, &now, FromMicros(10)), FromMicros(10));
}

TEST(SpinPolicy, NoPollingBesideOneWhoKeepsTheCore) {
  SpinPolicy policy(kLimit);
  Nanos now = FromMillis(1);
  policy.OnWork(now);
  policy.OnYield(now, FromMicros(20));  // a peer of ours, which sleeps or yields soon
  EXPECT_EQ(Wait(&policy, &now, FromMicros(10)), FromMicros(10));
  policy.OnYield(now, FromMillis(3));
  const Nanos until = now + SpinPolicy::kCrowdedTime;
  while (now + FromMicros(30) < until) EXPECT_EQ(Wait(&policy, &now, FromMicros(30)), Nanos(0));
  now = until;
  policy.OnWork(now);
  EXPECT_EQ(Wait(&policy, &now, FromMicros(10)), FromMicros(10)) << "tries again";
}

TEST(SpinPolicy, ZeroNeverPolls) {
  SpinPolicy policy{Nanos(0)};
  Nanos now = FromMillis(1);
  policy.OnWork(now);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Wait(&policy, &now, FromMicros(1)), Nanos(0));
}

}  // namespace
}  // namespace uccl
