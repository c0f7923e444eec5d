// Against std::deque.
#include "csrc/core/ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

#include "csrc/core/testing/random.h"

namespace uccl::core {
namespace {

TEST(Ring, EqualsDeque) {
  testing::Random random(1);
  Ring<uint64_t> ring;
  std::deque<uint64_t> deque;
  for (int i = 0; i < 100'000; ++i) {
    switch (random.Below(20)) {
      case 0: {
        const uint64_t divisor = random.Between(2, 5);
        const auto divisible = [divisor](uint64_t v) { return v % divisor == 0; };
        ring.EraseIf(divisible);
        std::erase_if(deque, divisible);
        break;
      }
      case 1:
      case 2:
      case 3:
      case 4:
      case 5:
      case 6:
      case 7:
      case 8:
        if (!deque.empty()) {
          ring.pop_front();
          deque.pop_front();
        }
        break;
      default: {
        const uint64_t value = random.Next();
        ring.push_back(value);
        deque.push_back(value);
      }
    }
    if (i % 30'000 == 0) {
      ring.clear();
      deque.clear();
    }
    ASSERT_EQ(ring.size(), deque.size());
    ASSERT_EQ(ring.empty(), deque.empty());
    if (deque.empty()) continue;
    ASSERT_EQ(ring.front(), deque.front());
    ASSERT_EQ(ring[deque.size() - 1], deque.back());
  }
}

TEST(Ring, LetsGoOfWhatLeaves) {
  const auto shared = std::make_shared<int>(1);
  Ring<std::shared_ptr<int>> ring;
  for (int i = 0; i < 10; ++i) ring.push_back(shared);
  ring.pop_front();
  EXPECT_EQ(shared.use_count(), 10);
  ring.EraseIf([](const auto&) { return true; });
  EXPECT_EQ(shared.use_count(), 1);
}

}  // namespace
}  // namespace uccl::core
