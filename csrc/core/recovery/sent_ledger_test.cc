// Growth, trimming and lookup across the wrap of the wire's numbers.
#include "csrc/core/recovery/sent_ledger.h"

#include <gtest/gtest.h>

#include <map>

#include "csrc/core/testing/random.h"

namespace uccl::core {
namespace {

TEST(SentLedger, KeepsRecordsWhileItGrows) {
  SentLedger ledger(0xffff'fff0);  // the wire's numbers wrap on the way
  const uint64_t first = ledger.next();
  EXPECT_EQ(static_cast<uint32_t>(first), 0xffff'fff0u);
  EXPECT_TRUE(ledger.empty());
  while (!ledger.full()) {
    const uint64_t psn = ledger.Append();
    ledger.at(psn).offset = psn;
  }
  EXPECT_EQ(ledger.next() - ledger.base(), kReceiveWindowPackets);
  for (uint64_t psn = first; psn < ledger.next(); ++psn) ASSERT_EQ(ledger.at(psn).offset, psn);
}

TEST(SentLedger, TrimStopsAtTheFirstUnacknowledged) {
  SentLedger ledger(5);
  for (int i = 0; i < 4; ++i) ledger.Append();
  const uint64_t base = ledger.base();
  ledger.at(base + 1).state = SentState::kAcked;
  ledger.Trim();
  EXPECT_EQ(ledger.base(), base);
  ledger.at(base).state = SentState::kAcked;
  ledger.at(base + 2).state = SentState::kLost;
  ledger.Trim();
  EXPECT_EQ(ledger.base(), base + 2);
  ledger.at(base + 2).state = ledger.at(base + 3).state = SentState::kAcked;
  ledger.Trim();
  EXPECT_TRUE(ledger.empty());
}

TEST(SentLedger, RecordsStartEmpty) {
  SentLedger ledger(0);
  for (int i = 0; i < 64; ++i)
    ledger.at(ledger.Append()) = {.offset = 9, .state = SentState::kAcked};
  ledger.Trim();
  for (int i = 0; i < 64; ++i) {  // the same slots again
    const SentPacket& packet = ledger.at(ledger.Append());
    ASSERT_EQ(packet.offset, 0u);
    ASSERT_EQ(packet.state, SentState::kInFlight);
    ASSERT_EQ(packet.transmissions, 0);
  }
}

TEST(SentLedger, EqualsNaiveModel) {
  testing::Random random(1);
  SentLedger ledger(0xffff'ffff);
  std::map<uint64_t, uint64_t> naive;
  for (int i = 0; i < 100'000; ++i) {
    if (random.Chance(i < 50'000 ? 0.6 : 0.4) && !ledger.full()) {
      const uint64_t psn = ledger.Append();
      naive[psn] = ledger.at(psn).offset = random.Next();
    } else if (!naive.empty()) {
      const auto it = random.Chance(0.8) ? naive.begin() : std::prev(naive.end());
      ASSERT_EQ(ledger.at(it->first).offset, it->second);
      ledger.at(it->first).state = SentState::kAcked;
      naive.erase(it);
      ledger.Trim();
      ASSERT_EQ(ledger.base(), naive.empty() ? ledger.next() : naive.begin()->first);
    }
  }
}

}  // namespace
}  // namespace uccl::core
