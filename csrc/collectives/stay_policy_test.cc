// Tests of csrc/collectives/stay_policy.h.
#include "csrc/collectives/stay_policy.h"

#include <gtest/gtest.h>

namespace uccl::coll {
namespace {

TEST(StayPolicy, WithoutALimitNobodyStays) {
  StayPolicy policy;
  EXPECT_FALSE(policy.Wants());
  policy.set_limit(FromMicros(50));
  EXPECT_TRUE(policy.Wants());
  policy.set_limit(Nanos(0));
  EXPECT_FALSE(policy.Wants());
}

TEST(StayPolicy, ARowOfWaitsInVainEndsIt_AndASuccessBringsItBack) {
  StayPolicy policy;
  policy.set_limit(FromMicros(50));
  int stays = 0;
  for (int i = 0; i < 1600; ++i) {
    if (!policy.Wants()) continue;
    ++stays;
    policy.OnStay(false);
  }
  // The credit of the beginning, then one try in sixteen.
  EXPECT_GE(stays, StayPolicy::kMaxCredit + 90);
  EXPECT_LE(stays, StayPolicy::kMaxCredit + 110);
  policy.OnStay(true);
  for (int i = 0; i < StayPolicy::kEarned; ++i) {
    EXPECT_TRUE(policy.Wants()) << i;
    policy.OnStay(false);
  }
}

TEST(StayPolicy, ALateOneNowAndThenDoesNotEndIt) {
  StayPolicy policy;
  policy.set_limit(FromMicros(50));
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(policy.Wants()) << i;
    policy.OnStay(i % 4 == 0);  // three of four in vain
  }
}

}  // namespace
}  // namespace uccl::coll
