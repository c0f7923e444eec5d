// Tests of csrc/core/credit/sender_credit.h. Virtual time.
#include "csrc/core/credit/sender_credit.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace uccl::core {
namespace {

constexpr Nanos kRto = FromMillis(10);

TEST(SenderCredit, Disabled_AllowsAllAndAsksNothing) {
  SenderCredit credit(false, 0);
  credit.OnWanted(1 << 30);
  EXPECT_TRUE(credit.Allows(Nanos(0), 1 << 30, kRto));
  EXPECT_FALSE(credit.RequestDue());
  EXPECT_EQ(credit.NextTimeout(), kNever);
}

TEST(SenderCredit, Allows_WhatWasGranted) {
  SenderCredit credit(true, 3000);
  credit.OnWanted(10'000);
  credit.BeginPoll();
  EXPECT_TRUE(credit.Allows(Nanos(0), 3000, kRto));
  credit.OnSent(3000);
  EXPECT_FALSE(credit.Allows(Nanos(0), 1, kRto));
  credit.OnCredit({4000});
  credit.BeginPoll();
  EXPECT_FALSE(credit.Allows(Nanos(0), 1001, kRto));
  // What would fit waits as well, or the larger one might wait for ever.
  EXPECT_FALSE(credit.Allows(Nanos(0), 10, kRto));
  credit.BeginPoll();
  EXPECT_TRUE(credit.Allows(Nanos(0), 1000, kRto));
}

TEST(SenderCredit, Credit_OlderOnesChangeNothing) {
  SenderCredit credit(true, 0);
  credit.OnCredit({5000});
  credit.OnCredit({3000});
  EXPECT_EQ(credit.granted(), 5000);
  credit.OnCredit({UINT64_MAX});  // from a confused peer; does not overflow
  credit.OnSent(5000);
  EXPECT_TRUE(credit.Allows(Nanos(0), 1 << 20, kRto));
}

TEST(SenderCredit, Request_OncePerNews) {
  SenderCredit credit(true, 1000);
  EXPECT_FALSE(credit.RequestDue());
  credit.OnWanted(400);  // covered, and leaves enough
  EXPECT_FALSE(credit.RequestDue());
  credit.OnWanted(200);  // more than half of it is used: the receiver should fill it up
  ASSERT_TRUE(credit.RequestDue());
  EXPECT_EQ(credit.TakeRequest().wanted_bytes, 600u);
  EXPECT_FALSE(credit.RequestDue());
  credit.OnWanted(401);  // more than is granted
  ASSERT_TRUE(credit.RequestDue());
  EXPECT_EQ(credit.TakeRequest().wanted_bytes, 1001u);
  credit.OnSettled(300);
  credit.OnWanted(300);
  ASSERT_TRUE(credit.RequestDue());
  const wire::Demand demand = credit.TakeRequest();
  EXPECT_EQ(demand.wanted_bytes, 1301u);
  EXPECT_EQ(demand.settled_bytes, 300u);
}

TEST(SenderCredit, Request_AgainAfterTimeoutsWithBackoff) {
  SenderCredit credit(true, 0);
  credit.OnWanted(1000);
  credit.TakeRequest();
  Nanos now{0};
  for (const int64_t wait_ms : {10, 20, 40, 80}) {
    credit.BeginPoll();
    EXPECT_FALSE(credit.Allows(now, 1000, kRto));
    EXPECT_EQ(credit.NextTimeout(), now + FromMillis(wait_ms));
    credit.OnTimeout(credit.NextTimeout() - Nanos(1));
    EXPECT_FALSE(credit.RequestDue());
    now = credit.NextTimeout();
    credit.OnTimeout(now);
    ASSERT_TRUE(credit.RequestDue());
    EXPECT_EQ(credit.TakeRequest().wanted_bytes, 1000u);
  }
  credit.OnCredit({500});  // the peer is there
  credit.BeginPoll();
  EXPECT_FALSE(credit.Allows(now, 1000, kRto));
  EXPECT_EQ(credit.NextTimeout(), now + kRto);
}

TEST(SenderCredit, Withdrawn_ServesTheNextWish) {
  SenderCredit credit(true, 0);
  credit.OnWanted(1000);
  credit.OnWithdrawn(800);
  credit.OnWanted(500);
  EXPECT_EQ(credit.wanted(), 1000);
  credit.OnWanted(500);
  EXPECT_EQ(credit.wanted(), 1200);
}

TEST(SenderCredit, Void_TakesUpCredit) {
  SenderCredit credit(true, 1000);
  credit.OnVoid(600);
  EXPECT_FALSE(credit.Allows(Nanos(0), 401, kRto));
  credit.BeginPoll();
  EXPECT_TRUE(credit.Allows(Nanos(0), 400, kRto));
}

}  // namespace
}  // namespace uccl::core
