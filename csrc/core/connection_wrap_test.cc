// Numbers that are shorter on the wire than in here, where they wrap: marks (16 bits), timestamps
// (32 bits of microseconds, 71 minutes), PSNs, message and receive numbers (32 bits). Loss around
// the wrap is in connection_recovery_test.cc, chance in connection_property_test.cc.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "csrc/core/connection.h"
#include "csrc/core/recovery/receive_window.h"
#include "csrc/core/testing/crafter.h"
#include "csrc/core/testing/messages.h"
#include "csrc/core/testing/simulation.h"
#include "csrc/core/testing/transfer.h"
#include "csrc/wire/packet.h"

namespace uccl::core {
namespace {

using testing::Crafter;
using testing::DefaultConfig;
using testing::Finish;
using testing::Link;
using testing::Simulation;
using testing::Start;
using testing::TestMessage;

constexpr Nanos kTimestampWrap = FromMicros(int64_t{1} << 32);

TEST(Wrap, MarksAreCountedBeyond16Bits) {
  ConnectionConfig config = DefaultConfig(1);
  config.max_datagram_bytes = 540;
  config.window_bytes = 256 * 1024;
  Simulation sim(config, 1);
  // Every packet is marked, and ACKs are lost and overtake each other: the sums repair both.
  sim.network.link(0, 0).mark = 1;
  sim.network.link(1, 0).drop = 0.2;
  sim.network.link(1, 0).jitter = FromMicros(100);
  TestMessage m(1, 40 << 20);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  const ConnectionStats received = sim.end(1).stats();
  const uint64_t counted = received.packets_received - received.acks_received - received.duplicates;
  ASSERT_GT(counted, uint64_t{1} << 16);
  EXPECT_EQ(sim.end(0).stats().paths[0].packets_marked, counted);
}

TEST(Wrap, AnOlderSumOfMarksIsNotALargeNewOne) {
  ConnectionConfig config = DefaultConfig(1);
  Connection& c = *std::move(Connection::Make(config).value()).release();
  const std::unique_ptr<Connection> owner(&c);
  Crafter peer(config.recv_key, config.initial_recv_psn);
  wire::Ack ack;
  ack.next = config.initial_send_psn;
  ack.num_echoes = 1;
  const Nanos now = FromMillis(10);
  uint64_t expected = 0;
  uint16_t last = 0;
  for (const uint16_t marked : {10, 30'000, 60'000, 60'000, 59'990, 65'535, 5, 65'530, 20'000}) {
    const auto newer = static_cast<int16_t>(marked - last);
    if (newer > 0) {
      expected += static_cast<uint64_t>(newer);
      last = marked;
    }
    ack.echoes[0] = {0, 1, marked, static_cast<uint32_t>(ToMicros(now)) - 50};
    c.OnDatagram(now, PathId{0}, peer.Ack(ack));
    EXPECT_EQ(c.stats().paths[0].packets_marked, expected) << marked;
  }
  EXPECT_EQ(expected, 65'536u + 20'000u);
}

TEST(Wrap, RoundTripsAcrossTheWrapOfTheClock) {
  ConnectionConfig config = DefaultConfig(2);
  config.window_bytes = 64 * 1024;
  Simulation sim(config, 2, kTimestampWrap - FromMillis(5));
  // Packets of one ACK lie on both sides of the wrap, and the newest of them is not the last.
  sim.network.ForEachLink([](Link& link) { link.jitter = FromMicros(300); });
  TestMessage m(1, 4 << 20);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  ASSERT_GT(sim.now(), kTimestampWrap + FromMillis(5));
  const ConnectionStats stats = sim.end(0).stats();
  EXPECT_GE(stats.srtt_ns, FromMicros(100).count());
  EXPECT_LE(stats.srtt_ns, FromMicros(700).count());
  EXPECT_LE(stats.rttvar_ns, FromMicros(600).count());
  EXPECT_EQ(stats.timeouts, 0u);
}

TEST(Wrap, IdleForMoreThanTheClockHolds) {
  for (const Nanos idle : {kTimestampWrap / 2 - FromMicros(10), kTimestampWrap / 2 + FromMillis(1),
                           kTimestampWrap - FromMicros(30), kTimestampWrap * 3 + FromMillis(7)}) {
    SCOPED_TRACE(::testing::Message() << ToMillis(idle) << " ms");
    Simulation sim(DefaultConfig(2), 3);
    TestMessage first(1, 100'000), second(2, 100'000);
    Start(&sim, &first);
    ASSERT_TRUE(Finish(&sim, &first));
    const int64_t srtt = sim.end(0).stats().srtt_ns;
    sim.RunFor(idle);
    Start(&sim, &second);
    ASSERT_TRUE(Finish(&sim, &second));
    EXPECT_EQ(sim.end(0).stats().srtt_ns, srtt) << "every round trip takes 100 us";
    EXPECT_EQ(sim.end(0).stats().paths[0].min_rtt_ns, FromMicros(100).count());
    EXPECT_EQ(sim.end(0).stats().timeouts, 0u);
  }
}

// Message numbers wrap among messages that wait for their receives, receive numbers among grants
// that are answered in another order.
TEST(Wrap, MessageAndReceiveNumbersWhileManyAreOpen) {
  ConnectionConfig config = DefaultConfig(4);
  config.first_number = 0xffff'fffc;
  config.eager_max_bytes = 5000;
  for (const bool receive_first : {false, true}) {
    SCOPED_TRACE(receive_first);
    Simulation sim(config, 4);
    sim.network.ForEachLink([](Link& link) { link.jitter = FromMicros(500); });
    std::vector<std::unique_ptr<TestMessage>> messages;
    for (uint64_t i = 1; i <= 24; ++i)
      messages.push_back(std::make_unique<TestMessage>(i, i % 2 == 0 ? 4000 : 30'000));
    const auto send = [&] {
      for (const auto& m : messages) sim.end(0).Send(sim.now(), m->info, m->contents, m->token);
    };
    const auto receive = [&] {
      for (auto m = messages.rbegin(); m != messages.rend(); ++m)
        sim.end(1).PostRecv(sim.now(), (*m)->info, (*m)->target.body(), (*m)->token);
    };
    receive_first ? receive() : send();
    sim.RunFor(FromMillis(5));
    if (!receive_first) {
      EXPECT_EQ(sim.end(1).Unexpected().size(), messages.size());
    }
    receive_first ? send() : receive();
    ASSERT_TRUE(sim.RunUntil([&] { return sim.events(1).size() == messages.size(); },
                             sim.now() + FromMillis(1000)));
    for (const auto& m : messages) EXPECT_TRUE(m->Arrived()) << m->token;
  }
}

// The receive window lies across the wrap when all of it is in flight, and its first packet is the
// one that is lost.
TEST(Wrap, AWholeWindowOfPsns) {
  ConnectionConfig config = DefaultConfig(1);
  config.max_datagram_bytes = 540;
  config.window_bytes = 64 << 20;  // the window of PSNs is what limits
  config.initial_send_psn = 0xffff'f000;
  Simulation sim(config, 5);
  sim.network.link(0, 0).delay = FromMillis(2);
  bool lost = false;
  sim.network.set_filter([&](int from, PathId, Bytes header, Bytes) {
    if (from != 0 || lost || header[1] != static_cast<std::byte>(wire::PacketType::kData))
      return true;
    lost = true;
    return false;
  });
  TestMessage m(1, 8 << 20);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_TRUE(lost);
  EXPECT_GT(sim.end(0).stats().packets_sent, kReceiveWindowPackets);
  EXPECT_EQ(sim.end(1).stats().out_of_window, 0u);
}

}  // namespace
}  // namespace uccl::core
