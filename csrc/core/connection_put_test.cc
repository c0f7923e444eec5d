// One-sided puts: a message that no receive was posted for is announced, once, and then received.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "csrc/core/connection.h"
#include "csrc/core/testing/messages.h"
#include "csrc/core/testing/simulation.h"

namespace uccl::core {
namespace {

using testing::DefaultConfig;
using testing::Same;
using testing::Simulation;
using testing::TestMessage;

ConnectionConfig Config() {
  ConnectionConfig config = DefaultConfig();
  config.eager_max_bytes = 4000;  // some of several packets
  return config;
}

TestMessage MakePut(uint64_t id, size_t size) {
  TestMessage m(id, size);
  m.info.tag = {kPutTagHi, id};
  return m;
}

std::vector<MessageInfo> Arrivals(Simulation& sim, int end) {
  std::vector<MessageInfo> infos;
  for (const Event& event : sim.events(end)) {
    if (event.kind == EventKind::kArrived) infos.push_back(event.remote);
  }
  return infos;
}

TEST(Put, IsAnnouncedOnceAndReceived) {
  for (const size_t size : {0u, 1u, 900u, 3999u, 4000u, 4001u, 200'000u}) {
    Simulation sim(Config(), size + 1);
    TestMessage m = MakePut(7, size);
    sim.end(0).Send(sim.now(), m.info, m.contents, m.token);
    sim.RunFor(FromMillis(100));
    ASSERT_EQ(Arrivals(sim, 1).size(), 1u) << size;
    EXPECT_TRUE(Same(Arrivals(sim, 1)[0], m.info)) << size;
    sim.end(1).PostRecv(sim.now(), m.info, m.target.body(), m.token);
    ASSERT_TRUE(sim.RunUntilEvent(1, EventKind::kRecvDone, m.token, sim.now() + FromMillis(5000)));
    EXPECT_TRUE(m.Arrived()) << size;
    EXPECT_EQ(Arrivals(sim, 1).size(), 1u) << size;
  }
}

TEST(Put, IsNotAnnouncedWhereAReceiveWaits_NorAreOtherMessages) {
  Simulation sim(Config(), 1);
  TestMessage small = MakePut(1, 100), large = MakePut(2, 50'000), other(3, 100), bulk(4, 50'000);
  for (TestMessage* m : {&small, &large}) {
    sim.end(1).PostRecv(sim.now(), m->info, m->target.body(), m->token);
  }
  for (TestMessage* m : {&small, &large, &other, &bulk}) {
    sim.end(0).Send(sim.now(), m->info, m->contents, m->token);
  }
  sim.RunFor(FromMillis(200));
  EXPECT_TRUE(Arrivals(sim, 1).empty());
  EXPECT_TRUE(small.Arrived() && large.Arrived());
  EXPECT_EQ(sim.end(1).Unexpected().size(), 2u);
}

TEST(Put, OfWhichReceiverWantsNothingIsDiscarded) {
  Simulation sim(Config(), 1);
  TestMessage small = MakePut(1, 100), large = MakePut(2, 50'000);
  for (TestMessage* m : {&small, &large}) {
    sim.end(0).Send(sim.now(), m->info, m->contents, m->token);
  }
  sim.RunFor(FromMillis(100));
  ASSERT_EQ(Arrivals(sim, 1).size(), 2u);
  for (TestMessage* m : {&small, &large}) sim.end(1).Discard(/*is_send=*/false, m->info.tag);
  EXPECT_TRUE(sim.end(1).Unexpected().empty());
  EXPECT_EQ(sim.end(1).stats().eager_bytes_buffered, 0u);
}

// The receiver answers each announcement at once, over a network that loses, doubles and reorders.
TEST(Put, ManyOverABadNetworkArriveOnce) {
  Simulation sim(Config(), 5);
  sim.network.ForEachLink([](testing::Link& link) {
    link.drop = link.duplicate = 0.05;
    link.jitter = FromMicros(300);
  });
  std::map<uint64_t, std::unique_ptr<TestMessage>> messages;
  std::map<uint64_t, int> announced;
  size_t done = 0;
  sim.set_on_event([&](int end, Event event) {
    if (end != 1) return;
    if (event.kind == EventKind::kArrived) {
      TestMessage& m = *messages.at(event.remote.tag.lo);
      ++announced[event.remote.tag.lo];
      sim.end(1).PostRecv(sim.now(), event.remote, m.target.body(), m.token);
    }
    done += event.kind == EventKind::kRecvDone;
  });
  constexpr uint64_t kCount = 150;
  for (uint64_t id = 1; id <= kCount; ++id) {
    messages[id] = std::make_unique<TestMessage>(MakePut(id, id * 97 % 9000));
    TestMessage& m = *messages[id];
    sim.end(0).Send(sim.now(), m.info, m.contents, m.token);
  }
  ASSERT_TRUE(sim.RunUntil([&] { return done == kCount; }, sim.now() + FromMillis(60'000)));
  for (auto& [id, m] : messages) {
    EXPECT_TRUE(m->Arrived()) << id;
    EXPECT_EQ(announced[id], 1) << id;
  }
}

}  // namespace
}  // namespace uccl::core
