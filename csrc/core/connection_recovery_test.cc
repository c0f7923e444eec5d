// What loss, reordering and outages cost: how much is sent again, and how soon it is over.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "csrc/core/connection.h"
#include "csrc/core/testing/messages.h"
#include "csrc/core/testing/simulation.h"
#include "csrc/core/testing/transfer.h"
#include "csrc/wire/packet.h"

namespace uccl::core {
namespace {

using testing::DefaultConfig;
using testing::Finish;
using testing::Link;
using testing::Simulation;
using testing::Start;
using testing::TestMessage;

ConnectionConfig Config(int64_t window_bytes, uint16_t num_paths = 4) {
  ConnectionConfig config = DefaultConfig(num_paths);
  config.window_bytes = window_bytes;
  return config;
}
uint64_t Retransmits(const ConnectionStats& stats) {
  return stats.retransmits_fast + stats.retransmits_timeout;
}

TEST(Recovery, NothingIsSentAgainWithoutLoss) {
  Simulation sim(Config(1 << 20), 1);
  TestMessage m(1, 32 << 20);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_EQ(Retransmits(sim.end(0).stats()), 0u);
  EXPECT_EQ(sim.end(1).stats().duplicates, 0u);
}

TEST(Recovery, OnePercentLossCostsOnePercent) {
  Simulation sim(Config(1 << 20), 2);
  sim.network.ForEachLink([](Link& link) { link.drop = 0.01; });
  TestMessage m(1, 16 << 20);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  const ConnectionStats stats = sim.end(0).stats();
  const uint64_t packets = (16 << 20) / 1160;
  EXPECT_GT(Retransmits(stats), packets / 200);
  EXPECT_LT(Retransmits(stats), packets / 100 * 3 / 2) << "little more than what was lost";
  EXPECT_LE(stats.timeouts, 3u) << "the last packets at most";
  EXPECT_LT(sim.end(1).stats().duplicates, packets / 500);
}

TEST(Recovery, PathsOfDifferentLengthCauseNoRetransmits) {
  Simulation sim(Config(1 << 20), 3);
  const int64_t delays_us[] = {50, 500, 2000, 8000};
  for (int from : {0, 1}) {
    for (size_t path = 0; path < 4; ++path)
      sim.network.link(from, path).delay = FromMicros(delays_us[path]);
  }
  TestMessage m(1, 32 << 20);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_LE(Retransmits(sim.end(0).stats()), 8u) << "of " << sim.end(0).stats().packets_sent;
}

TEST(Recovery, ReorderingWithinAPathIsLearned) {
  Simulation sim(Config(256 * 1024, 1), 4);
  sim.network.ForEachLink([](Link& link) { link.jitter = FromMicros(200); });
  TestMessage first(1, 8 << 20), second(2, 8 << 20);
  Start(&sim, &first);
  ASSERT_TRUE(Finish(&sim, &first));
  const uint64_t learning = Retransmits(sim.end(0).stats());
  Start(&sim, &second);
  ASSERT_TRUE(Finish(&sim, &second));
  const uint64_t later = Retransmits(sim.end(0).stats()) - learning;
  const uint64_t packets = (8 << 20) / 1160;
  EXPECT_LT(learning, packets / 10);
  EXPECT_LT(later, packets / 100);
  EXPECT_EQ(sim.end(0).stats().timeouts, 0u);
}

TEST(Recovery, TimeoutsBackOffInABlackoutAndTheWindowRecoversAtOnce) {
  ConnectionConfig config = Config(2 << 20);
  Simulation sim(config, 5);
  TestMessage m(1, 16 << 20);
  Start(&sim, &m);
  sim.RunFor(FromMicros(350));
  ASSERT_GT(sim.end(0).stats().inflight_bytes, 1'900'000) << "a full window is under way";
  sim.network.ForEachLink([](Link& link) { link.down = true; });
  sim.RunFor(FromMillis(1));
  const uint64_t before = sim.network.stats().sent;
  sim.RunFor(FromMillis(5000));
  // 10, 20, 40 ... 640, 1000, 1000 ms: eleven timeouts of two packets and a probe per path, and the
  // receiver's probes.
  const ConnectionStats dark = sim.end(0).stats();
  EXPECT_GE(dark.timeouts, 9u);
  EXPECT_LE(dark.timeouts, 12u);
  EXPECT_LE(sim.network.stats().sent - before, 6 * dark.timeouts + 30);
  sim.network.Heal();
  const Nanos healed = sim.now();
  ASSERT_TRUE(Finish(&sim, &m));
  // One timeout away at most; what it sends reveals the rest of the window in one round trip.
  EXPECT_LE(sim.now() - healed, config.max_rto + FromMillis(20));
  EXPECT_LE(sim.end(0).stats().timeouts - dark.timeouts, 2u);
}

// Without new data behind the lost window: the tail-loss probe reveals it.
TEST(Recovery, LostTailOfManyPacketsTakesNoTimeout) {
  Simulation sim(Config(4 << 20), 6);
  TestMessage warm(1, 1 << 20), m(2, 3 << 20);
  Start(&sim, &warm);
  ASSERT_TRUE(Finish(&sim, &warm));
  // All that leaves in the first half millisecond: the whole message.
  const Nanos begin = sim.now();
  uint64_t swallowed = 0;
  sim.network.set_filter([&](int from, PathId, Bytes header, Bytes) {
    const bool data = from == 0 && header[1] == static_cast<std::byte>(wire::PacketType::kData);
    const bool drop = data && sim.now() - begin < FromMicros(500);
    swallowed += drop;
    return !drop;
  });
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_GT(swallowed, 2600u);
  EXPECT_EQ(sim.end(0).stats().timeouts, 0u);
  EXPECT_EQ(sim.end(0).stats().tail_probes, 1u);
  EXPECT_LE(sim.now() - begin, FromMillis(3));
}

TEST(Recovery, LastPacketLost) {
  Simulation sim(Config(1 << 20), 7);
  TestMessage warm(1, 100'000), m(2, 8);
  Start(&sim, &warm);
  ASSERT_TRUE(Finish(&sim, &warm));
  bool dropped = false;
  sim.network.set_filter([&](int from, PathId, Bytes header, Bytes) {
    const bool first =
        !dropped && from == 0 && header[1] == static_cast<std::byte>(wire::PacketType::kEager);
    dropped |= first;
    return !first;
  });
  const Nanos begin = sim.now();
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_TRUE(dropped);
  EXPECT_LE(sim.now() - begin, FromMillis(2)) << "the probe's delay and a round trip";
  EXPECT_EQ(sim.end(0).stats().tail_probes, 1u);
  EXPECT_EQ(sim.end(0).stats().timeouts, 0u);
}

// The probe is sent once; if it is lost too, the timeout is next.
TEST(Recovery, LastPacketAndItsProbeLost) {
  ConnectionConfig config = Config(1 << 20);
  Simulation sim(config, 7);
  TestMessage warm(1, 100'000), m(2, 8);
  Start(&sim, &warm);
  ASSERT_TRUE(Finish(&sim, &warm));
  int dropped = 0;
  sim.network.set_filter([&](int from, PathId, Bytes header, Bytes) {
    const bool eager = from == 0 && header[1] == static_cast<std::byte>(wire::PacketType::kEager);
    return !eager || ++dropped > 2;
  });
  const Nanos begin = sim.now();
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_EQ(dropped, 3);
  EXPECT_EQ(sim.end(0).stats().tail_probes, 1u);
  EXPECT_EQ(sim.end(0).stats().timeouts, 1u);
  EXPECT_GE(sim.now() - begin, config.min_rto);
  EXPECT_LE(sim.now() - begin, config.min_rto + FromMillis(2));
}

// ---- the end of patience ----

ConnectionConfig Impatient(int64_t max_retries) {
  ConnectionConfig config = Config(1 << 20);
  config.max_retries = max_retries;
  config.peer_silence = FromMillis(3'600'000);  // not what is tested here
  return config;
}

TEST(MaxRetries, SilentPeerFailsTheConnection) {
  Simulation sim(Impatient(5), 1);
  TestMessage m(1, 100'000);
  Start(&sim, &m);
  sim.set_off(1, true);
  const Nanos begin = sim.now();
  ASSERT_TRUE(sim.RunUntil([&] { return sim.end(0).failed(); }, begin + FromMillis(60'000)));
  sim.RunFor(Nanos(0));
  // Five repetitions after 20, 40, 80 ms ... and one timeout more.
  EXPECT_GE(sim.now() - begin, FromMillis(1000));
  EXPECT_LE(sim.now() - begin, FromMillis(3000));
  ASSERT_EQ(sim.events(0).size(), 2u);
  EXPECT_EQ(sim.events(0)[0].kind, EventKind::kSendDone);
  EXPECT_EQ(sim.events(0)[1].kind, EventKind::kFailed);
  for (const Event& event : sim.events(0)) {
    EXPECT_EQ(event.status.code, StatusCode::kAllPathsFailed);
    EXPECT_NE(event.status.detail.find("sent 6 times"), std::string::npos) << event.status.detail;
    EXPECT_NE(event.status.detail.find("max_retries"), std::string::npos);
  }
}

// A route that carries small packets only: the peer answers every probe, yet nothing gets on.
TEST(MaxRetries, AlivePeerBehindAHoleFailsTheConnection) {
  Simulation sim(Impatient(8), 1);
  sim.network.set_filter([](int, PathId, Bytes header, Bytes payload) {
    return header.size() + payload.size() < 800;
  });
  TestMessage m(1, 100'000);
  Start(&sim, &m);
  ASSERT_TRUE(sim.RunUntil([&] { return sim.end(0).failed(); }, sim.now() + FromMillis(60'000)));
  sim.RunFor(Nanos(0));
  const Event* failed = sim.Find(0, EventKind::kFailed, 0);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->status.code, StatusCode::kAllPathsFailed);
}

TEST(MaxRetries, HeavyLossIsNoReason) {
  Simulation sim(Impatient(30), 5);
  sim.network.ForEachLink([](Link& link) { link.drop = 0.3; });
  TestMessage m(1, 4 << 20);
  Start(&sim, &m);
  EXPECT_TRUE(Finish(&sim, &m));
}

TEST(Recovery, OnePathDarkForEver) {
  Simulation sim(Config(1 << 20), 8);
  sim.network.link(0, 2).down = sim.network.link(1, 2).down = true;
  TestMessage m(1, 16 << 20);
  const Nanos begin = sim.now();
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_LT(sim.now() - begin, FromMillis(500));
  EXPECT_LE(sim.end(0).stats().timeouts, 10u) << "most losses are seen by the other paths' ACKs";
}

TEST(Recovery, LossOfAcksAloneCostsLittle) {
  Simulation sim(Config(1 << 20), 9);
  for (size_t path = 0; path < 4; ++path) sim.network.link(1, path).drop = 0.3;
  TestMessage m(1, 16 << 20);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_LE(Retransmits(sim.end(0).stats()), 100u) << "later ACKs say the same again";
}

// At the smallest datagram an ACK cannot name every packet behind the first hole.
TEST(Recovery, SmallestDatagramsFullWindow) {
  ConnectionConfig config = Config(8 << 20);
  config.max_datagram_bytes = 540;
  Simulation sim(config, 10);
  bool dropped = false;
  sim.network.set_filter([&](int from, PathId, Bytes header, Bytes) {
    const bool first =
        !dropped && from == 0 && header[1] == static_cast<std::byte>(wire::PacketType::kData);
    dropped |= first;
    return !first;
  });
  TestMessage m(1, 8 << 20);
  const Nanos begin = sim.now();
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_LT(sim.now() - begin, FromMillis(100));
  EXPECT_LE(Retransmits(sim.end(0).stats()), 20u);
}

TEST(Recovery, ManySmallMessagesUnderLoss) {
  Simulation sim(Config(1 << 20), 11);
  sim.network.ForEachLink([](Link& link) { link.drop = 0.02; });
  std::vector<std::unique_ptr<TestMessage>> messages;
  for (uint64_t i = 1; i <= 2000; ++i) {
    messages.push_back(std::make_unique<TestMessage>(i, 64));
    Start(&sim, messages.back().get());
  }
  const auto done = [&] { return sim.events(1).size() == messages.size(); };
  ASSERT_TRUE(sim.RunUntil(done, sim.now() + FromMillis(200)));
  for (const auto& m : messages) ASSERT_TRUE(m->Arrived()) << m->token;
}

// Packet numbers, message and receive numbers, and the clock of the timestamps.
TEST(Recovery, NumbersWrapInMidTransfer) {
  ConnectionConfig config = Config(1 << 20);
  config.initial_send_psn = 0xffff'ff00;
  config.initial_recv_psn = 0xffff'ffff;
  config.first_number = 0xffff'ffff;
  const Nanos wrap = FromMicros(int64_t{1} << 32);
  Simulation sim(config, 12, wrap - FromMicros(200));
  sim.network.ForEachLink([](Link& link) { link.drop = 0.05; });
  TestMessage m(1, 4 << 20), second(2, 100'000), small(3, 100);
  for (TestMessage* message : {&m, &second, &small}) Start(&sim, message);
  for (TestMessage* message : {&m, &second, &small}) ASSERT_TRUE(Finish(&sim, message));
  EXPECT_GT(sim.now(), wrap);
  EXPECT_EQ(sim.end(1).stats().out_of_window, 0u);
  EXPECT_LT(sim.end(0).stats().srtt_ns, 1'000'000);
  EXPECT_EQ(sim.end(0).stats().timeouts, 0u);
}

// The second timeout probes every silent path at once. The packet that timed out goes first: behind
// a burst of probes a short queue would drop it, and again each time.
TEST(Recovery, WhatTimedOutLeavesBeforeTheProbesOfSilentPaths) {
  Simulation sim(DefaultConfig(16), 1);
  std::vector<wire::PacketType> sent;
  sim.network.set_filter([&](int from, PathId, Bytes header, Bytes) {
    if (from == 0) sent.push_back(static_cast<wire::PacketType>(header[1]));
    return from != 0;
  });
  TestMessage m(1, 100);
  sim.end(1).PostRecv(sim.now(), m.info, m.target.body(), m.token);
  sim.end(0).Send(sim.now(), m.info, m.contents, m.token);
  ASSERT_TRUE(sim.RunUntil([&] { return sim.end(0).stats().path_probes == 16; },
                           sim.now() + FromMillis(60'000)));
  ASSERT_EQ(sim.end(0).stats().timeouts, 2u);
  const auto first_probe = std::ranges::find(sent, wire::PacketType::kProbe);
  // The first transmission, and one for each timeout and tail-loss probe.
  EXPECT_EQ(static_cast<uint64_t>(first_probe - sent.begin()), 3 + sim.end(0).stats().tail_probes);
}

}  // namespace
}  // namespace uccl::core
