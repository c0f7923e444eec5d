// Each invariant fires on a planted fault, and on nothing else.
#include "csrc/sim/invariants.h"

#include <gtest/gtest.h>

#include <string>

#include "csrc/sim/contents.h"

namespace uccl::sim {
namespace {

class InvariantsTest : public ::testing::Test {
 protected:
  std::string Last() { return checker.kept().empty() ? "" : checker.kept().back(); }
  Contents contents{1, 1};
  Checker checker{&contents};
  const ConnectionLimits limits{
      .window_bytes = 1 << 20, .eager_buffer_bytes = 5000, .datagram_bytes = 1500};
};

TEST_F(InvariantsTest, AConnectionWithinItsLimits) {
  core::ConnectionStats stats;
  CheckBounds(Nanos(1), stats, limits, &checker);
  stats.inflight_bytes = 1 << 20;
  stats.eager_bytes_buffered = 5000;
  CheckBounds(Nanos(1), stats, limits, &checker);
  EXPECT_EQ(checker.violations(), 0u) << Last();
}

TEST_F(InvariantsTest, FiresOnAConnectionThatKeepsTooMuch) {
  core::ConnectionStats stats;
  stats.eager_bytes_buffered = 5001;
  CheckBounds(Nanos(1), stats, limits, &checker);
  EXPECT_EQ(checker.violations(), 1u);
  EXPECT_NE(Last().find("early bytes"), std::string::npos);
  stats.eager_bytes_buffered = 0;
  stats.inflight_bytes = 3 << 20;
  CheckBounds(Nanos(1), stats, limits, &checker);
  EXPECT_EQ(checker.violations(), 2u);
  stats.inflight_bytes = -1;
  CheckBounds(Nanos(1), stats, limits, &checker);
  EXPECT_EQ(checker.violations(), 3u);
  EXPECT_NE(Last().find("negative"), std::string::npos);
}

TEST_F(InvariantsTest, FiresOnCreditFromNowhereAndOnCreditSpentTwice) {
  const CreditLimits credit{.initial_bytes = 100, .datagram_bytes = 10};
  core::ConnectionStats sender, receiver;
  sender.credit_wanted_bytes = 1000;
  receiver.credit_granted_bytes = 1100;
  sender.credit_received_bytes = 900;
  sender.credit_used_bytes = 920;
  sender.tail_probes = 2;
  CheckCredit(Nanos(1), sender, receiver, credit, &checker);
  EXPECT_EQ(checker.violations(), 0u) << Last();
  sender.credit_used_bytes = 921;
  CheckCredit(Nanos(1), sender, receiver, credit, &checker);
  EXPECT_EQ(checker.violations(), 1u);
  EXPECT_NE(Last().find("used"), std::string::npos);
  receiver.credit_granted_bytes = 1101;
  sender.credit_used_bytes = 0;
  CheckCredit(Nanos(1), sender, receiver, credit, &checker);
  EXPECT_EQ(checker.violations(), 2u);
  EXPECT_NE(Last().find("granted"), std::string::npos);
  receiver.credit_granted_bytes = 899;
  CheckCredit(Nanos(1), sender, receiver, credit, &checker);
  EXPECT_EQ(checker.violations(), 3u);
  EXPECT_NE(Last().find("received"), std::string::npos);
}

TEST_F(InvariantsTest, FiresOnDamageThatWentUnnoticedAndOnDamageThatWasNone) {
  CheckIntegrity(Nanos(1), {.corrupted = 3, .refused = 3}, &checker);
  EXPECT_EQ(checker.violations(), 0u);
  CheckIntegrity(Nanos(1), {.corrupted = 3, .refused = 2}, &checker);
  EXPECT_EQ(checker.violations(), 1u);
  CheckIntegrity(Nanos(1), {.corrupted = 0, .refused = 1}, &checker);
  EXPECT_EQ(checker.violations(), 2u);
  CheckIntegrity(Nanos(1), {.wrong_key = 1}, &checker);
  EXPECT_EQ(checker.violations(), 3u);
}

// Two hosts on one switch.
class NetworkInvariantsTest : public InvariantsTest {
 protected:
  static Fabric Pair() {
    Result<Fabric> fabric = Fabric::Make({.kind = "leaf_spine", .hosts = 2});
    if (!fabric.ok()) throw std::runtime_error(fabric.status().ToString());
    return std::move(fabric.value());
  }
  uint32_t Send() {
    const uint32_t packet = network.packets().Allocate();
    Packet& p = network.packets().at(packet);
    p.src = 0;
    p.dst = 1;
    p.wire_bytes = 1000;
    network.Send(Nanos(0), packet);
    return packet;
  }
  void Check(int64_t queue_bytes = 1 << 20) {
    CheckNetwork(Nanos(1), network, queue_bytes, 1500, &checker);
  }
  const Fabric fabric = Pair();
  EventQueue events;
  Network network{&fabric, LinkSpec{}, LinkSpec{}, 1, &events};
};

TEST_F(NetworkInvariantsTest, SilentOnPacketsUnderWayDeliveredAndDropped) {
  Send();
  network.Delivered(Send());
  network.DropAtHost(Send());
  Check();
  EXPECT_EQ(checker.violations(), 0u) << Last();
}

TEST_F(NetworkInvariantsTest, FiresOnAPacketThatVanishes) {
  network.packets().Release(Send());
  Check();
  EXPECT_EQ(checker.violations(), 1u);
}

TEST_F(NetworkInvariantsTest, FiresOnAPacketFromNowhere) {
  network.Delivered(network.packets().Allocate());
  Check();
  EXPECT_EQ(checker.violations(), 1u);
}

TEST_F(NetworkInvariantsTest, FiresOnAQueueBeyondItsLength) {
  for (int i = 0; i < 10; ++i) Send();
  Check(10'000);
  EXPECT_EQ(checker.violations(), 0u) << Last();
  Check(9'000);
  EXPECT_EQ(checker.violations(), 1u);
  EXPECT_NE(Last().find("a queue is"), std::string::npos);
}

}  // namespace
}  // namespace uccl::sim
