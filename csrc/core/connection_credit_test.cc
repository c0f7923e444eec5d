// Receiver-driven credit between two connections: the pace of data, requests and credits that are
// lost, what goes without, and hostile sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "csrc/core/connection.h"
#include "csrc/core/credit/registry.h"
#include "csrc/core/testing/crafter.h"
#include "csrc/core/testing/messages.h"
#include "csrc/core/testing/simulation.h"
#include "csrc/wire/packet.h"

namespace uccl::core {
namespace {

using testing::DefaultConfig;
using testing::Link;
using testing::Simulation;
using testing::TestMessage;

constexpr CreditParams kCredit{100'000'000, 4800};  // 0.1 GB/s, four datagrams

ConnectionConfig Config(int64_t initial_bytes = 4800) {
  ConnectionConfig config = DefaultConfig();
  config.credit_initial_bytes = initial_bytes;
  return config;
}
Simulation Make(const ConnectionConfig& config) {
  return Simulation(config, 1, FromMillis(1), kCredit);
}
void Start(Simulation* sim, TestMessage* m) {
  sim->end(1).PostRecv(sim->now(), m->info, m->target.body(), m->token);
  sim->end(0).Send(sim->now(), m->info, m->contents, m->token);
}
bool Finish(Simulation* sim, TestMessage* m) {
  const Nanos limit = sim->now() + FromMillis(600'000);
  return sim->RunUntilEvent(1, EventKind::kRecvDone, m->token, limit) && m->Arrived() &&
         sim->RunUntil([&] { return sim->end(0).Drained() && sim->end(1).Drained(); }, limit);
}
bool Is(Bytes header, wire::PacketType type) { return header[1] == static_cast<std::byte>(type); }

TEST(Credit, DataComesAtTheReceiversRate) {
  Simulation sim = Make(Config());
  TestMessage m(1, 10'000'000);
  const Nanos begin = sim.now();
  int64_t most = 0;
  sim.set_on_instant([&] { most = std::max(most, sim.end(0).stats().inflight_bytes); });
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  // 1160 bytes of payload cost 1266 on the wire, 98 % of the rate is granted.
  const double expected_ns = 10e6 * 1266 / 1160 / (0.98 * 0.1);
  EXPECT_NEAR(static_cast<double>((sim.now() - begin).count()), expected_ns, 0.01 * expected_ns);
  // Data of a round trip (100 us: 10 kB) and of the slack, though the window is 4 MiB.
  EXPECT_LT(most, 40'000);
  const ConnectionStats sender = sim.end(0).stats(), receiver = sim.end(1).stats();
  EXPECT_EQ(sender.requests_to_send, 1u);
  EXPECT_EQ(sender.credit_used_bytes, sender.credit_wanted_bytes);
  EXPECT_LE(receiver.credit_granted_bytes, sender.credit_wanted_bytes + 4800);
}

TEST(Credit, SmallMessagesGoUnasked) {
  Simulation sim = Make(Config(64'000));
  std::vector<std::unique_ptr<TestMessage>> messages;
  for (uint64_t i = 1; i <= 20; ++i) {
    messages.push_back(std::make_unique<TestMessage>(i, 500));
    Start(&sim, messages.back().get());
  }
  const Nanos begin = sim.now();
  for (auto& m : messages) {
    ASSERT_TRUE(sim.RunUntilEvent(1, EventKind::kRecvDone, m->token, FromMillis(100)));
  }
  EXPECT_EQ(sim.now() - begin, FromMicros(50)) << "one way";
  EXPECT_EQ(sim.end(0).stats().requests_to_send, 0u);
}

TEST(Credit, UnaskedCreditComesBack) {
  Simulation sim = Make(Config(64'000));
  for (uint64_t i = 1; i <= 50; ++i) {
    TestMessage m(i, 15'000);
    const Nanos begin = sim.now();
    Start(&sim, &m);
    ASSERT_TRUE(sim.RunUntilEvent(1, EventKind::kRecvDone, m.token, begin + FromMillis(100)));
    EXPECT_EQ(sim.now() - begin, FromMicros(50)) << i;
    sim.RunFor(FromMillis(2));
  }
}

TEST(Credit, LostRequestIsRepeated) {
  Simulation sim = Make(Config(0));
  int requests = 0;
  sim.network.set_filter([&](int, PathId, Bytes header, Bytes) {
    return !Is(header, wire::PacketType::kDemand) || ++requests > 3;
  });
  TestMessage m(1, 100'000);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_GE(requests, 4);
}

TEST(Credit, LostCreditIsRepeated) {
  Simulation sim = Make(Config(0));
  int credits = 0;
  sim.network.set_filter([&](int, PathId, Bytes header, Bytes) {
    return !Is(header, wire::PacketType::kCredit) || ++credits > 30;
  });
  TestMessage m(1, 100'000);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_GT(sim.end(0).stats().requests_to_send, 1u);
}

TEST(Credit, LostDataIsWantedAgain) {
  Simulation sim = Make(Config());
  sim.network.ForEachLink([](Link& link) { link.drop = 0.02; });
  TestMessage m(1, 4'000'000);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  const ConnectionStats sender = sim.end(0).stats();
  EXPECT_GT(sender.retransmits_fast, 20u);
  EXPECT_GT(sender.credit_wanted_bytes, 4'000'000 + 20 * 1200);
}

// Three limits at once: the smallest rules, and none starves the others.
TEST(Credit, WithWindowAndController) {
  for (const char* controller : {"cubic", "swift", "dcqcn"}) {
    ConnectionConfig config = Config();
    config.window_bytes = 2500;
    config.congestion_control = controller;
    Simulation sim = Make(config);
    TestMessage m(1, 300'000);
    int64_t most = 0;
    sim.set_on_instant([&] { most = std::max(most, sim.end(0).stats().inflight_bytes); });
    Start(&sim, &m);
    ASSERT_TRUE(Finish(&sim, &m)) << controller;
    EXPECT_LT(most, 2500 + 1200 + 200);
  }
}

TEST(Credit, WithdrawnMessageLeavesNoneStuck) {
  Simulation sim = Make(Config(0));
  TestMessage big(1, 50'000'000);
  Start(&sim, &big);
  sim.RunFor(FromMillis(20));
  EXPECT_GT(sim.end(0).stats().credit_used_bytes, 1'000'000);
  sim.end(0).CancelSend(sim.now(), big.token);
  sim.end(1).CancelRecv(sim.now(), big.token);
  TestMessage next(2, 5'000'000);
  const Nanos begin = sim.now();
  Start(&sim, &next);
  ASSERT_TRUE(Finish(&sim, &next));
  EXPECT_LT(sim.now() - begin, FromMillis(80)) << "at the receiver's rate";
}

TEST(Credit, FailureGivesTheLinkToOthers) {
  auto scheduler = MakeReceiverScheduler("eqds", kCredit);
  auto made = Connection::Make(Config(), {scheduler.value().get(), 5});
  ASSERT_TRUE(made.ok());
  testing::Crafter peer(Config().recv_key, Config().initial_recv_psn);
  made.value()->OnDatagram(FromMillis(1), PathId{0}, peer.Demand({1'000'000, 0}));
  EXPECT_NE(scheduler.value()->NextGrant(), kNever);
  made.value()->Fail(Status::Error(StatusCode::kAborted, "enough"));
  EXPECT_EQ(scheduler.value()->NextGrant(), kNever);
  made.value().reset();
  EXPECT_EQ(scheduler.value()->Grant(FromMillis(2)), nullptr);
}

TEST(Credit, ImpossibleSumsAreRefused) {
  auto scheduler = MakeReceiverScheduler("eqds", kCredit);
  auto made = Connection::Make(Config(), {scheduler.value().get(), 5});
  ASSERT_TRUE(made.ok());
  Connection& connection = *made.value();
  testing::Crafter peer(Config().recv_key, Config().initial_recv_psn);
  connection.OnDatagram(FromMillis(1), PathId{0}, peer.Demand({UINT64_MAX, 0}));
  connection.OnDatagram(FromMillis(1), PathId{0}, peer.Demand({10, 11}));
  EXPECT_EQ(connection.stats().malformed, 2u);
  EXPECT_EQ(scheduler.value()->NextGrant(), kNever);
  connection.OnDatagram(FromMillis(1), PathId{0}, peer.Credit({UINT64_MAX}));
  EXPECT_EQ(connection.stats().credit_received_bytes, int64_t{1} << 62);
}

}  // namespace
}  // namespace uccl::core
