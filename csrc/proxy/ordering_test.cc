// Tests of csrc/proxy/ordering.h: seeded reordering, duplication and delay against a naive model.
#include "csrc/proxy/ordering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace uccl::proxy {
namespace {

using Arrival = Ordering::Arrival;

Ordering::Put Write() { return {}; }
Ordering::Put WriteCount(uint32_t counter, uint32_t amount) { return {false, {counter, amount}}; }
Ordering::Put Count(uint32_t counter, uint32_t amount) { return {true, {counter, amount}}; }

TEST(Ordering, Count_WaitsForEveryEarlierPut_WriteCountForItsOwnDataAlone) {
  Ordering order(8);
  std::vector<CounterUpdate> out;
  ASSERT_EQ(order.OnArrival(3, Count(5, 10)), Arrival::kFresh);
  EXPECT_TRUE(order.OnLanded(3, &out));
  ASSERT_EQ(order.OnArrival(1, WriteCount(6, 1)), Arrival::kFresh);
  ASSERT_EQ(order.OnArrival(0, Write()), Arrival::kFresh);
  EXPECT_TRUE(out.empty());
  EXPECT_TRUE(order.OnLanded(1, &out));
  EXPECT_EQ(out, (std::vector<CounterUpdate>{{6, 1}}));
  EXPECT_TRUE(order.OnLanded(0, &out));
  EXPECT_EQ(order.next(), 2u);
  EXPECT_EQ(out.size(), 1u) << "number 2 has not even arrived";
  ASSERT_EQ(order.OnArrival(2, Write()), Arrival::kFresh);
  EXPECT_EQ(out.size(), 1u) << "it arrived, but has not landed";
  EXPECT_TRUE(order.OnLanded(2, &out));
  EXPECT_EQ(out.back(), (CounterUpdate{5, 10}));
  EXPECT_EQ(order.next(), 4u);
}

TEST(Ordering, Arrival_DuplicatesAndWhatLiesBeyondTheWindow) {
  Ordering order(3);
  std::vector<CounterUpdate> out;
  EXPECT_EQ(order.OnArrival(3, Write()), Arrival::kBeyondWindow);
  EXPECT_EQ(order.OnArrival(2, Write()), Arrival::kFresh);
  EXPECT_EQ(order.OnArrival(2, Write()), Arrival::kDuplicate);
  EXPECT_TRUE(order.OnLanded(2, &out));
  EXPECT_EQ(order.OnArrival(2, Write()), Arrival::kDuplicate) << "landed, not yet in order";
  EXPECT_FALSE(order.OnLanded(2, &out));
  EXPECT_FALSE(order.OnLanded(0, &out)) << "never arrived";
  EXPECT_FALSE(order.OnLanded(77, &out));
  for (const uint32_t n : {0u, 1u}) {
    EXPECT_EQ(order.OnArrival(n, Write()), Arrival::kFresh);
    EXPECT_TRUE(order.OnLanded(n, &out));
  }
  EXPECT_EQ(order.next(), 3u);
  EXPECT_EQ(order.OnArrival(0, Write()), Arrival::kDuplicate);
  EXPECT_EQ(order.OnArrival(5, Write()), Arrival::kFresh);
  EXPECT_EQ(order.OnArrival(6, Write()), Arrival::kBeyondWindow);
}

TEST(Ordering, Ack_EveryQuarterAndWhenAsked) {
  Ordering order(8);
  std::vector<CounterUpdate> out;
  const auto land = [&](uint32_t n) {
    ASSERT_EQ(order.OnArrival(n, Write()), Arrival::kFresh);
    ASSERT_TRUE(order.OnLanded(n, &out));
  };
  land(0);
  EXPECT_EQ(order.TakeAck(), std::nullopt);
  land(1);
  EXPECT_EQ(order.TakeAck(), 2u);
  EXPECT_EQ(order.TakeAck(), std::nullopt);
  // Asked for before the put landed.
  EXPECT_TRUE(order.OnAckRequest(3));
  EXPECT_EQ(order.TakeAck(), std::nullopt);
  land(2);
  EXPECT_EQ(order.TakeAck(), 3u);
  // Asked for again, late: it was answered.
  EXPECT_TRUE(order.OnAckRequest(3));
  EXPECT_TRUE(order.OnAckRequest(1));
  EXPECT_EQ(order.TakeAck(), std::nullopt);
  // No sender has so much under way.
  EXPECT_FALSE(order.OnAckRequest(3 + 9));
  EXPECT_TRUE(order.OnAckRequest(3 + 8));
}

// A sender within its window, a network that reorders, repeats and delays descriptions and data.
// The model knows what has landed; the ordering must count each put once, and never before its
// data.
TEST(Ordering, Property_ExactlyOnceAndNeverBeforeTheData) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const uint32_t window = 1 + random() % 24;
    // Some begin where the numbers wrap around.
    const uint32_t first = seed % 3 == 0 ? 0xffffffffu - random() % 50 : random();
    constexpr uint32_t kPuts = 300;
    Ordering order(window, first);
    std::vector<Ordering::Put> puts;
    for (uint32_t i = 0; i < kPuts; ++i) {
      const uint32_t amount = 1 + random() % 5;
      const uint32_t kind = random() % 3;
      // The counter names the put, so that each count is seen.
      puts.push_back(kind == 0 ? Write() : kind == 1 ? WriteCount(i, amount) : Count(i, amount));
    }
    std::vector<bool> landed(kPuts), counted(kPuts);
    std::vector<uint32_t> descriptions, data;  // under way, by index
    uint32_t sent = 0, acked = 0, landed_below = 0, asked = 0, last_fence = 0;
    uint64_t steps = 0;
    while (acked < kPuts) {
      ASSERT_LT(++steps, 100'000u) << "it does not come to an end";
      const uint32_t what = random() % 8;
      if (what < 2 && sent < kPuts && sent - acked < window) {
        descriptions.push_back(sent++);
      } else if (what < 5 && !descriptions.empty()) {
        const size_t pick = random() % descriptions.size();
        const uint32_t i = descriptions[pick];
        const bool again = random() % 4 == 0;  // it comes once more, later
        if (!again) descriptions.erase(descriptions.begin() + static_cast<ptrdiff_t>(pick));
        const Arrival arrival = order.OnArrival(first + i, puts[i]);
        ASSERT_NE(arrival, Arrival::kBeyondWindow);
        if (arrival == Arrival::kFresh) data.push_back(i);
      } else if (what < 7 && !data.empty()) {
        const size_t pick = random() % data.size();
        const uint32_t i = data[pick];
        data.erase(data.begin() + static_cast<ptrdiff_t>(pick));
        landed[i] = true;
        std::vector<CounterUpdate> updates;
        ASSERT_TRUE(order.OnLanded(first + i, &updates));
        ASSERT_FALSE(order.OnLanded(first + i, &updates));
        while (landed_below < kPuts && landed[landed_below]) ++landed_below;
        ASSERT_EQ(order.next() - first, landed_below);
        for (const CounterUpdate& update : updates) {
          const uint32_t n = update.counter;
          ASSERT_FALSE(counted[n]) << n;
          counted[n] = true;
          ASSERT_EQ(update, puts[n].update);
          ASSERT_TRUE(landed[n]);
          if (!puts[n].fence) continue;
          ASSERT_LE(n, landed_below) << "a count before data that it covers";
          ASSERT_GE(n, last_fence) << "counts out of order";
          last_fence = n;
        }
        // Nothing due is held back.
        for (uint32_t n = 0; n < kPuts; ++n) {
          const bool due = puts[n].update.amount > 0 &&
                           (puts[n].fence ? n < landed_below : static_cast<bool>(landed[n]));
          ASSERT_EQ(counted[n], due) << n;
        }
      } else if (sent > acked && asked < sent) {
        asked = sent;
        ASSERT_TRUE(order.OnAckRequest(first + sent));
      }
      if (const auto ack = order.TakeAck()) {
        ASSERT_LE(*ack - first, landed_below);
        ASSERT_GT(*ack - first, acked);
        acked = *ack - first;
      }
    }
  }
}

}  // namespace
}  // namespace uccl::proxy
