// The choice of a core, and that a thread really goes there.
#include "csrc/base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>
#include <vector>

namespace uccl {
namespace {

const std::vector<int> kFour = {0, 1, 2, 3};

TEST(BetterCoreTest, OneThatNobodyPollsOn) {
  EXPECT_EQ(BetterCore(0, std::vector{0, 1, 2}, kFour), 3);
  EXPECT_EQ(BetterCore(2, std::vector{2}, kFour), 0);
}

TEST(BetterCoreTest, WithoutOthersOnItsOwnItStays) {
  EXPECT_EQ(BetterCore(0, std::vector{1, 2}, kFour), std::nullopt);
  EXPECT_EQ(BetterCore(0, {}, kFour), std::nullopt);
}

TEST(BetterCoreTest, AsManyThereAsHereIsNotBetter) {
  EXPECT_EQ(BetterCore(0, std::vector{0, 1}, std::vector{0, 1}), std::nullopt);
  EXPECT_EQ(BetterCore(0, std::vector{0, 0, 1}, std::vector{0, 1}), 1);
}

TEST(BetterCoreTest, OnlyWhereTheThreadMayRun) {
  EXPECT_EQ(BetterCore(0, std::vector{0}, std::vector{0}), std::nullopt);
  EXPECT_EQ(BetterCore(7, std::vector{7}, std::vector{5, 7}), 5);
  EXPECT_EQ(BetterCore(7, std::vector{7}, {}), std::nullopt);
}

TEST(MoveToCoreTest, GoesThereAndMayStillRunWhereItMight) {
  std::thread([] {
    const std::vector<int> allowed = AllowedCores();
    ASSERT_FALSE(allowed.empty());
    for (const int core : allowed) {
      ASSERT_TRUE(MoveToCore(core));
      EXPECT_EQ(AllowedCores(), allowed);
    }
  }).join();
}

TEST(MoveToCoreTest, NotToOneThatItMayNotRunOn) {
  std::thread([] {
    const std::vector<int> allowed = AllowedCores();
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(allowed[0], &only);
    ASSERT_EQ(sched_setaffinity(0, sizeof(only), &only), 0);
    EXPECT_EQ(AllowedCores(), std::vector{allowed[0]});
    for (const int core : {-1, CPU_SETSIZE, allowed.back() + 1}) EXPECT_FALSE(MoveToCore(core));
    if (allowed.size() > 1) {
      EXPECT_FALSE(MoveToCore(allowed[1]));
    }
    EXPECT_EQ(CurrentCore(), allowed[0]);
    EXPECT_EQ(AllowedCores(), std::vector{allowed[0]});
  }).join();
}

}  // namespace
}  // namespace uccl
