// Order of the event queue against a stable sort.
#include "csrc/sim/event_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "csrc/sim/random.h"

namespace uccl::sim {
namespace {

TEST(EventQueue, PopsInOrderOfTimeThenOfScheduling) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    EventQueue queue;
    std::vector<std::pair<int64_t, uint32_t>> expected;
    for (uint32_t i = 0; i < 500; ++i) {
      const auto time = static_cast<int64_t>(random.Below(50));
      queue.Push(Nanos(time), EventType::kTimer, i);
      expected.emplace_back(time, i);
    }
    std::ranges::stable_sort(expected, {}, &std::pair<int64_t, uint32_t>::first);
    for (const auto& [time, id] : expected) {
      const ScheduledEvent event = queue.Pop();
      ASSERT_EQ(event.time.count(), time) << "seed " << seed;
      ASSERT_EQ(event.id, id) << "seed " << seed;
    }
    EXPECT_TRUE(queue.empty());
    EXPECT_EQ(queue.peak_size(), 500u);
  }
}

TEST(EventQueue, PushesBetweenPopsKeepTheOrder) {
  Random random(7);
  EventQueue queue;
  Nanos now{0};
  for (uint32_t i = 0; i < 64; ++i) queue.Push(Nanos(random.Below(100)), EventType::kArrive, i);
  for (int i = 0; i < 5000; ++i) {
    const ScheduledEvent event = queue.Pop();
    ASSERT_GE(event.time, now);
    now = event.time;
    queue.Push(now + Nanos(random.Below(100)), EventType::kArrive, event.id);
  }
  EXPECT_EQ(queue.size(), 64u);
}

}  // namespace
}  // namespace uccl::sim
