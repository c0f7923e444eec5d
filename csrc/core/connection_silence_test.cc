// Peers that are gone, and peers that only look like it.
#include <gtest/gtest.h>

#include "csrc/core/connection.h"
#include "csrc/core/testing/messages.h"
#include "csrc/core/testing/simulation.h"

namespace uccl::core {
namespace {

using testing::DefaultConfig;
using testing::Simulation;
using testing::TestMessage;

constexpr Nanos kSilence = FromMillis(2000);

ConnectionConfig Config() {
  ConnectionConfig config = DefaultConfig();
  config.peer_silence = kSilence;
  return config;
}

// The peer goes away when `act` has run; returns how long it took end 0 to fail.
template <class Act>
Nanos TimeToFail(Simulation* sim, Act act) {
  act();
  sim->RunFor(FromMillis(5));
  sim->set_off(1, true);
  const Nanos gone = sim->now();
  sim->RunUntil([&] { return sim->end(0).failed(); }, gone + 10 * kSilence);
  sim->RunFor(Nanos(0));
  return sim->now() - gone;
}

void ExpectPeerLost(Simulation* sim, Nanos took, size_t tokens) {
  ASSERT_TRUE(sim->end(0).failed());
  EXPECT_GE(took, kSilence - FromMillis(300)) << "from the last that was heard";
  EXPECT_LE(took, kSilence + FromMillis(10));
  ASSERT_GE(sim->events(0).size(), tokens + 1);
  const size_t first = sim->events(0).size() - tokens - 1;
  for (size_t i = first; i < sim->events(0).size(); ++i) {
    EXPECT_EQ(sim->events(0)[i].status.code, StatusCode::kPeerLost);
    EXPECT_EQ(sim->events(0)[i].kind == EventKind::kFailed, i + 1 == sim->events(0).size());
  }
}

TEST(PeerSilence, WhileItOwesAcks) {
  ConnectionConfig config = Config();
  config.window_bytes = 100'000;
  Simulation sim(config, 1);
  TestMessage m(1, 16 << 20);
  const Nanos took = TimeToFail(&sim, [&] {
    sim.end(1).PostRecv(sim.now(), m.info, m.target.body(), 1);
    sim.end(0).Send(sim.now(), m.info, m.contents, 1);
  });
  ExpectPeerLost(&sim, took, 1);
}

TEST(PeerSilence, WhileWeOnlyWaitForData) {
  Simulation sim(Config(), 1);
  TestMessage a(1, 10), b(2, 100'000);
  const Nanos took = TimeToFail(&sim, [&] {
    sim.end(0).PostRecv(sim.now(), a.info, a.target.body(), 1);
    sim.end(0).PostRecv(sim.now(), b.info, b.target.body(), 2);
  });
  ExpectPeerLost(&sim, took, 2);
}

TEST(PeerSilence, WhileWeWaitForAGrant) {
  Simulation sim(Config(), 1);
  TestMessage m(1, 100'000);
  const Nanos took = TimeToFail(&sim, [&] { sim.end(0).Send(sim.now(), m.info, m.contents, 1); });
  ExpectPeerLost(&sim, took, 1);
}

TEST(PeerSilence, NobodyThereFromTheBeginning) {
  Simulation sim(Config(), 1);
  sim.set_off(1, true);
  const Nanos begin = sim.now();
  sim.end(0).SendControl(sim.now(), "anyone?");
  ASSERT_TRUE(sim.RunUntil([&] { return sim.end(0).failed(); }, begin + 10 * kSilence));
  EXPECT_EQ(sim.now() - begin, kSilence);
}

TEST(PeerSilence, LivingPeerWithNothingToSayIsNotLost) {
  Simulation sim(Config(), 1);
  // End 0 waits for data and for a grant; end 1 lives and does nothing.
  TestMessage in(1, 100), out(2, 100'000);
  sim.end(0).PostRecv(sim.now(), in.info, in.target.body(), 1);
  sim.end(0).Send(sim.now(), out.info, out.contents, 2);
  sim.RunFor(10 * kSilence);
  EXPECT_FALSE(sim.end(0).failed());
  EXPECT_FALSE(sim.end(1).failed());
  EXPECT_GT(sim.end(0).stats().probes, 70u);
  EXPECT_LT(sim.end(0).stats().probes, 90u) << "eight per silence";
  EXPECT_EQ(sim.end(1).stats().probes, 0u) << "it waits for nothing";
  // And everything still works.
  sim.end(1).Send(sim.now(), in.info, in.contents, 1);
  sim.end(1).PostRecv(sim.now(), out.info, out.target.body(), 2);
  EXPECT_TRUE(sim.RunUntilEvent(0, EventKind::kRecvDone, 1, sim.now() + kSilence));
  EXPECT_TRUE(sim.RunUntilEvent(1, EventKind::kRecvDone, 2, sim.now() + kSilence));
  EXPECT_TRUE(in.Arrived() && out.Arrived());
}

TEST(PeerSilence, ProbesSurviveLoss) {
  Simulation sim(Config(), 7);
  sim.network.ForEachLink([](testing::Link& link) { link.drop = 0.1; });
  TestMessage m(1, 100);
  sim.end(0).PostRecv(sim.now(), m.info, m.target.body(), 1);
  sim.RunFor(20 * kSilence);
  EXPECT_FALSE(sim.end(0).failed());
}

// A process that was itself stopped must hear its peer before it judges.
TEST(PeerSilence, OwnSleepIsNotThePeersSilence) {
  Simulation sim(Config(), 1);
  TestMessage m(1, 100);
  sim.end(0).PostRecv(sim.now(), m.info, m.target.body(), 1);
  sim.RunFor(FromMillis(10));
  sim.set_off(0, true);
  sim.At(sim.now() + 5 * kSilence, [&] { sim.set_off(0, false); });
  sim.RunFor(10 * kSilence);
  EXPECT_FALSE(sim.end(0).failed());
  sim.end(1).Send(sim.now(), m.info, m.contents, 1);
  EXPECT_TRUE(sim.RunUntilEvent(0, EventKind::kRecvDone, 1, sim.now() + kSilence));
}

TEST(PeerSilence, ShortStopOfThePeerIsForgiven) {
  Simulation sim(Config(), 1);
  TestMessage m(1, 4 << 20);
  sim.end(1).PostRecv(sim.now(), m.info, m.target.body(), 1);
  sim.end(0).Send(sim.now(), m.info, m.contents, 1);
  sim.RunFor(FromMicros(200));
  sim.set_off(1, true);
  sim.At(sim.now() + kSilence * 3 / 4, [&] { sim.set_off(1, false); });
  EXPECT_TRUE(sim.RunUntilEvent(1, EventKind::kRecvDone, 1, sim.now() + 3 * kSilence));
  EXPECT_TRUE(m.Arrived());
}

TEST(PeerSilence, CountsFromTheMomentWeBeganToExpect) {
  Simulation sim(Config(), 1);
  sim.RunFor(20 * kSilence);  // idle: nobody says anything
  EXPECT_FALSE(sim.end(0).failed());
  TestMessage m(1, 100);
  sim.end(0).PostRecv(sim.now(), m.info, m.target.body(), 1);
  sim.RunFor(FromMillis(1));
  EXPECT_FALSE(sim.end(0).failed());
  sim.end(0).CancelRecv(sim.now(), 1);
  EXPECT_EQ(sim.end(0).NextTimeout(), kNever) << "nothing is expected any more";
}

}  // namespace
}  // namespace uccl::core
