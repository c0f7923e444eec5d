// Tests of csrc/engine/timing_wheel.h. Virtual time.
#include "csrc/engine/timing_wheel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace uccl::engine {
namespace {

constexpr Nanos kTick{TimingWheel::kTickNanos};

std::vector<size_t> Expired(TimingWheel* wheel, Nanos now) {
  std::vector<size_t> ids;
  wheel->Expire(now, &ids);
  return ids;
}

TEST(TimingWheel, Empty_NeverFires) {
  TimingWheel wheel(3, FromMillis(5));
  EXPECT_EQ(wheel.Next(), kNever);
  EXPECT_TRUE(Expired(&wheel, FromMillis(500)).empty());
}

TEST(TimingWheel, Set_FiresOnceAtItsTime) {
  TimingWheel wheel(3, Nanos(0));
  wheel.Set(1, 10 * kTick);
  EXPECT_EQ(wheel.Next(), 10 * kTick);
  EXPECT_TRUE(Expired(&wheel, 10 * kTick - Nanos(1)).empty());
  EXPECT_EQ(Expired(&wheel, 10 * kTick), std::vector<size_t>{1});
  EXPECT_EQ(wheel.Next(), kNever);
  EXPECT_TRUE(Expired(&wheel, FromMillis(1000)).empty());
}

TEST(TimingWheel, Set_BetweenTicksIsNotEarly) {
  TimingWheel wheel(1, Nanos(0));
  wheel.Set(0, 7 * kTick + Nanos(1));
  EXPECT_TRUE(Expired(&wheel, 7 * kTick + Nanos(1)).empty());
  EXPECT_EQ(Expired(&wheel, 8 * kTick), std::vector<size_t>{0});
}

TEST(TimingWheel, Set_InThePastFiresAtOnce) {
  TimingWheel wheel(2, FromMillis(9));
  wheel.Set(0, FromMillis(1));
  wheel.Set(1, Nanos(-5));
  EXPECT_LE(wheel.Next(), FromMillis(9));
  std::vector<size_t> ids = Expired(&wheel, FromMillis(9));
  std::ranges::sort(ids);
  EXPECT_EQ(ids, (std::vector<size_t>{0, 1}));
}

TEST(TimingWheel, Set_AgainMovesAndCancels) {
  TimingWheel wheel(2, Nanos(0));
  wheel.Set(0, FromMillis(10));
  wheel.Set(1, FromMillis(10));
  wheel.Set(0, FromMillis(20));
  wheel.Set(1, kNever);
  EXPECT_TRUE(Expired(&wheel, FromMillis(15)).empty());
  EXPECT_EQ(Expired(&wheel, FromMillis(21)), std::vector<size_t>{0});
}

TEST(TimingWheel, Set_AsFarAsTimeGoes) {
  TimingWheel wheel(1, FromMillis(1));
  wheel.Set(0, kNever - Nanos(1));
  EXPECT_LT(wheel.Next(), kNever);
  EXPECT_TRUE(Expired(&wheel, std::chrono::hours(24 * 365 * 100)).empty());
  EXPECT_LT(wheel.Next(), kNever);
}

// Against a plain table: random deadlines near and far, moved and cancelled, time in random steps.
TEST(TimingWheel, RandomUse_MatchesATable) {
  std::mt19937_64 random(5);
  constexpr size_t kIds = 200;
  for (int round = 0; round < 30; ++round) {
    Nanos now{static_cast<int64_t>(random() % (uint64_t{1} << (random() % 50)))};
    TimingWheel wheel(kIds, now);
    std::vector<Nanos> table(kIds, kNever);
    const auto delay = [&] {
      return Nanos(static_cast<int64_t>(random() % (uint64_t{1} << (random() % 42))));
    };
    size_t fired = 0;
    for (int step = 0; step < 2000; ++step) {
      for (int i = 0; i < 5; ++i) {
        const size_t id = random() % kIds;
        table[id] = random() % 8 == 0 ? kNever : now + delay();
        wheel.Set(id, table[id]);
      }
      // As an engine does: to the next deadline, or anywhere before.
      const Nanos next = wheel.Next();
      const Nanos earliest = *std::ranges::min_element(table);
      if (earliest != kNever) {
        ASSERT_LE(next, std::max(earliest, now) + kTick);
      } else {
        ASSERT_EQ(next, kNever);
      }
      now = random() % 2 == 0 && next != kNever ? std::max(next, now) : now + delay() / 64;
      for (const size_t id : Expired(&wheel, now)) {
        ASSERT_LE(table[id], now) << "early";
        table[id] = kNever;
        ++fired;
      }
      for (size_t id = 0; id < kIds; ++id) ASSERT_GT(table[id], now - kTick) << "missed " << id;
    }
    EXPECT_GT(fired, 100u);
  }
}

// Waking up for nothing would cost an idle process its rest: a deadline is reached in few steps.
TEST(TimingWheel, Next_NeedsFewStepsToADistantDeadline) {
  TimingWheel wheel(1, FromMillis(3));
  const Nanos deadline = FromMillis(3) + std::chrono::hours(1);
  wheel.Set(0, deadline);
  int steps = 0;
  while (Expired(&wheel, wheel.Next()).empty()) ++steps;
  EXPECT_LE(steps, 6);
}

}  // namespace
}  // namespace uccl::engine
