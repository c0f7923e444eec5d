// What controllers are told and what of their answers is kept: pace, window, ECN marks, one
// controller for all paths or one each.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "csrc/core/cc/registry.h"
#include "csrc/core/congestion.h"
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

ConnectionConfig Config(const std::string& controller, const std::string& scope = "connection",
                        uint16_t num_paths = 4) {
  ConnectionConfig config = DefaultConfig(num_paths);
  config.congestion_control = controller;
  config.cc_scope = scope;
  config.window_bytes = 4 << 20;
  return config;
}
void SetDelay(Simulation* sim, Nanos delay) {
  sim->network.ForEachLink([delay](Link& link) { link.delay = delay; });
}

TEST(Congestion, UnknownNamesAreRefused) {
  for (const auto& [controller, scope] :
       {std::pair("warp", "connection"), std::pair("cubic", "universe")}) {
    const auto made = Connection::Make(Config(controller, scope));
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code, StatusCode::kInvalidArgument);
  }
}

// A window smaller than a message, for every controller in both scopes.
TEST(Congestion, EveryControllerMovesALargeMessage) {
  for (const CongestionControllerRow& row : CongestionControllers()) {
    for (const char* scope : {"connection", "path"}) {
      SCOPED_TRACE(std::string(row.name) + " " + scope);
      Simulation sim(Config(row.name, scope), 1);
      sim.network.ForEachLink([](Link& link) { link.drop = 0.01; });
      TestMessage m(1, 2 << 20);
      Start(&sim, &m);
      EXPECT_TRUE(Finish(&sim, &m));
    }
  }
}

// The initial window makes bursts that ACKs would only double; the pace spreads them.
TEST(Congestion, PacketsLeaveAtThePace) {
  for (const char* scope : {"connection", "path"}) {
    SCOPED_TRACE(scope);
    Simulation sim(Config("cubic", scope), 1);
    SetDelay(&sim, FromMillis(10));
    std::map<Nanos, int> bursts;
    sim.network.set_filter([&](int from, PathId, Bytes header, Bytes) {
      if (from == 0 && header[1] == static_cast<std::byte>(wire::PacketType::kData))
        ++bursts[sim.now()];
      return true;
    });
    TestMessage m(1, 1 << 20);
    Start(&sim, &m);
    sim.RunFor(FromMillis(65));
    int largest = 0, packets = 0;
    for (const auto& [time, count] : bursts) {
      if (time < FromMillis(41)) continue;  // no round trip of data is known before
      largest = std::max(largest, count);
      packets += count;
    }
    EXPECT_GT(packets, 20);
    // Four paths may be due at one moment; the slack lets one more go with each.
    EXPECT_LE(largest, std::string(scope) == "path" ? 8 : 2);
    EXPECT_TRUE(Finish(&sim, &m));
  }
}

TEST(Congestion, NextTimeoutWakesForThePace) {
  Simulation sim(Config("timely", "connection", 1), 1);
  SetDelay(&sim, FromMillis(10));
  TestMessage warm(1, 8), m(2, 1 << 20);
  Start(&sim, &warm);
  ASSERT_TRUE(Finish(&sim, &warm));
  Start(&sim, &m);
  sim.RunFor(FromMillis(30));
  const Nanos next = sim.end(0).NextTimeout();
  ASSERT_NE(next, kNever);
  // Ten packets per 20 ms at first.
  EXPECT_LE(next - sim.now(), FromMillis(3));
  sim.end(0).CancelSend(sim.now(), 2);
}

// Marks that both directions of the wire carry, from the IP header to the controller.
TEST(Congestion, MarksReachTheController) {
  for (const char* scope : {"connection", "path"}) {
    std::map<double, int64_t> window;
    for (const double mark : {0.0, 1.0}) {
      Simulation sim(Config("cubic", scope), 1);
      SetDelay(&sim, FromMillis(1));
      sim.network.ForEachLink([mark](Link& link) { link.mark = mark; });
      TestMessage m(1, 1 << 20);
      Start(&sim, &m);
      sim.RunFor(FromMillis(30));
      window[mark] = sim.end(0).stats().window_bytes;
      ASSERT_TRUE(Finish(&sim, &m));
      const ConnectionStats stats = sim.end(0).stats();
      uint64_t marked = 0;
      for (const PathStats& path : stats.paths) marked += path.packets_marked;
      EXPECT_EQ(marked, mark == 0 ? 0 : stats.packets_sent - stats.acks_sent) << scope;
      EXPECT_EQ(stats.retransmits_fast, 0u);
    }
    EXPECT_LT(4 * window[1.0], window[0.0]) << scope;
  }
}

TEST(Congestion, LostAcksLoseNoMarks) {
  Simulation sim(Config("none"), 3);
  for (size_t path = 0; path < 4; ++path) {
    sim.network.link(0, path).mark = 1;
    sim.network.link(1, path).drop = 0.5;
  }
  TestMessage m(1, 8 << 20);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  uint64_t marked = 0;
  for (const PathStats& path : sim.end(0).stats().paths) marked += path.packets_marked;
  const uint64_t packets = (8 << 20) / 1160;
  EXPECT_GT(marked, packets - packets / 20);
  EXPECT_LE(marked, sim.end(0).stats().packets_sent);
}

// With more paths than an ACK has echoes, marks and round trips come after the acknowledgements.
TEST(Congestion, NewsOfAPathWaitsForItsNextPackets) {
  for (const char* scope : {"connection", "path"}) {
    SCOPED_TRACE(scope);
    std::vector<PathState> paths(2);
    auto made = MakeControllers(Config("cubic", scope, 2));
    ASSERT_TRUE(made.ok());
    Congestion congestion(std::move(made.value()), Config("cubic", scope, 2), paths);
    const auto ack = [&](Nanos now) {
      paths[1].acked_bytes_now = 1200;
      paths[1].acked_packets_now = 1;
      congestion.OnAck({.now = now, .acked_bytes = 1200, .inflight_bytes = 10'000});
    };
    ack(FromMillis(1));
    const int64_t before = congestion.window_bytes();
    paths[1].marks_now = 1;
    paths[1].rtt_now = FromMillis(1);
    congestion.OnAck(
        {.now = FromMillis(2), .path = PathId{1}, .rtt = FromMillis(1), .inflight_bytes = 10'000});
    EXPECT_EQ(congestion.window_bytes(), before);
    EXPECT_EQ(paths[1].rtt_now, FromMillis(1));
    ack(FromMillis(3));
    EXPECT_LT(congestion.window_bytes(), before - 1000);
    EXPECT_EQ(paths[1].marks_now, 0u);
    EXPECT_EQ(paths[1].rtt_now, Nanos(0));
  }
}

// The count of marks is 16 bits wide on the wire.
TEST(Congestion, MarkCountWraps) {
  ConnectionConfig config = Config("none", "connection", 1);
  config.window_bytes = 256 * 1024;
  config.max_datagram_bytes = 540;
  Simulation sim(config, 3);
  sim.network.link(0, 0).mark = 1;
  TestMessage m(1, 36'000'000);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  const ConnectionStats stats = sim.end(0).stats();
  EXPECT_GT(stats.packets_sent, 70'000u);
  EXPECT_EQ(stats.paths[0].packets_marked, stats.packets_sent - stats.acks_sent);
}

TEST(Congestion, EachPathHasItsOwnWindow) {
  Simulation sim(Config("cubic", "path"), 4);
  SetDelay(&sim, FromMillis(1));
  sim.network.link(0, 2).drop = 0.05;
  TestMessage m(1, 32 << 20);
  Start(&sim, &m);
  sim.RunFor(FromMillis(30));
  const ConnectionStats stats = sim.end(0).stats();
  ASSERT_GT(stats.inflight_bytes, 0);
  for (size_t path : {0, 1, 3}) {
    EXPECT_GT(stats.paths[path].window_bytes, 3 * stats.paths[2].window_bytes) << path;
  }
  EXPECT_TRUE(Finish(&sim, &m));
}

// ---- what controllers are not told ----

// Of losses below the tolerance nothing, of those above it as much as ever.
TEST(Congestion, LossesByChanceLeaveTheWindow) {
  for (const char* scope : {"connection", "path"}) {
    std::map<std::pair<int64_t, double>, int64_t> window;
    for (const int64_t tolerance : {0, 20}) {
      for (const double drop : {0.0, 0.005, 0.1}) {
        ConnectionConfig config = Config("cubic", scope);
        config.loss_tolerance_permille = tolerance;
        config.window_bytes = 400'000;
        Simulation sim(config, 4);
        SetDelay(&sim, FromMillis(1));
        for (size_t path = 0; path < 4; ++path) sim.network.link(0, path).drop = drop;
        TestMessage m(1, 64 << 20);
        Start(&sim, &m);
        sim.RunFor(FromMillis(200));
        EXPECT_FALSE(sim.end(0).Drained()) << "the window says nothing when nobody uses it";
        window[{tolerance, drop}] = sim.end(0).stats().window_bytes;
        sim.end(0).CancelSend(sim.now(), m.token);
        sim.end(1).CancelRecv(sim.now(), m.token);
      }
    }
    SCOPED_TRACE(scope);
    EXPECT_EQ((window[{20, 0.005}]), (window[{20, 0.0}]));
    EXPECT_LT(3 * window[(std::pair{int64_t{0}, 0.005})], (window[{20, 0.005}]));
    EXPECT_LT(5 * window[(std::pair{int64_t{20}, 0.1})], (window[{20, 0.005}]));
  }
}

// A queue on the way of the ACKs is not the doing of what they acknowledge; one on the way of the
// data is.
TEST(Congestion, AcksThatWaitAreNoCongestion) {
  for (const char* scope : {"connection", "path"}) {
    std::map<int, int64_t> window;
    for (const int slow : {-1, 0, 1}) {  // the direction that gets a queue, if any
      ConnectionConfig config = Config("swift", scope);
      config.window_bytes = 400'000;  // 64 MB last longer than this takes
      Simulation sim(config, 1);
      SetDelay(&sim, FromMicros(500));
      TestMessage m(1, 64 << 20);
      Start(&sim, &m);
      sim.RunFor(FromMillis(30));
      for (size_t path = 0; path < 4 && slow >= 0; ++path)
        sim.network.link(slow, path).delay = FromMicros(2000);
      sim.RunFor(FromMillis(100));
      window[slow] = sim.end(0).stats().window_bytes;
      sim.end(0).CancelSend(sim.now(), m.token);
      sim.end(1).CancelRecv(sim.now(), m.token);
    }
    SCOPED_TRACE(scope);
    EXPECT_LT(8 * window[0], window[-1]);
    EXPECT_GT(2 * window[1], window[-1]) << "fewer, longer round trips: it grows more slowly";
  }
}

TEST(Congestion, PathWindowBoundsEachPath) {
  ConnectionConfig config = Config("cubic", "path");
  config.path_window_bytes = 20'000;
  Simulation sim(config, 1);
  SetDelay(&sim, FromMillis(5));
  int64_t most = 0;
  sim.set_on_instant([&] {
    for (const PathStats& path : sim.end(0).stats().paths)
      most = std::max(most, path.inflight_bytes);
  });
  TestMessage m(1, 4 << 20);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_GE(most, 20'000);
  EXPECT_LT(most, 20'000 + 1200);
}

TEST(Congestion, TheReceiversWindowBoundsAllPathsTogether) {
  ConnectionConfig config = Config("none", "path", 8);
  config.window_bytes = 50'000;
  Simulation sim(config, 5);
  int64_t most = 0;
  sim.set_on_instant([&] { most = std::max(most, sim.end(0).stats().inflight_bytes); });
  TestMessage m(1, 2 << 20);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_GE(most, 50'000);
  EXPECT_LE(most, 51'200);
}

}  // namespace
}  // namespace uccl::core
