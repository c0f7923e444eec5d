// Paths in whole connections: cut, healed, slow, all dark; what each policy makes of them; small
// messages that keep to one.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "csrc/core/connection.h"
#include "csrc/core/path/path_health.h"
#include "csrc/core/path/path_selector.h"
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

bool IsData(Bytes header) {
  return header[1] == static_cast<std::byte>(wire::PacketType::kData) ||
         header[1] == static_cast<std::byte>(wire::PacketType::kEager);
}
void Cut(Simulation* sim, size_t path, bool down) {
  for (int from : {0, 1}) sim->network.link(from, path).down = down;
}
// 2 ms there and back, 32 MB/s.
ConnectionConfig Steady(const std::string& policy, uint16_t num_paths = 4) {
  ConnectionConfig config = DefaultConfig(num_paths);
  config.path_policy = policy;
  config.window_bytes = 64 * 1024;
  return config;
}
void SetDelay(Simulation* sim, Nanos delay) {
  sim->network.ForEachLink([delay](Link& link) { link.delay = delay; });
}

struct Uses {
  explicit Uses(Simulation* sim) : data(sim->network.num_paths()) {
    sim->network.set_filter([this](int from, PathId path, Bytes header, Bytes) {
      if (from == 0 && IsData(header)) ++data[ToInt(path)];
      return true;
    });
  }
  std::vector<uint64_t> data;  // packets of end 0 by path
};

TEST(Paths, ACutPathIsAvoidedAndUsedAgain) {
  for (const PathSelectorRow& row : PathSelectors()) {
    if (row.single_path) continue;
    SCOPED_TRACE(row.name);
    Simulation sim(Steady(row.name), 1);
    SetDelay(&sim, FromMillis(1));
    Uses uses(&sim);
    TestMessage m(1, 40 << 20);
    Start(&sim, &m);
    sim.RunFor(FromMillis(50));
    EXPECT_GT(uses.data[2], 50u);
    Cut(&sim, 2, true);
    sim.RunFor(FromMillis(20));
    ASSERT_EQ(sim.end(0).stats().paths[2].state, PathHealth::kFailed);
    const uint64_t lost = uses.data[2];
    const uint64_t received = sim.end(1).stats().payload_bytes_received;
    sim.RunFor(FromMillis(300));
    EXPECT_EQ(uses.data[2], lost) << "nothing but probes";
    // The three others carry the whole window: it is the round trip that limits.
    EXPECT_GT(sim.end(1).stats().payload_bytes_received - received, 300 * 30'000u);
    EXPECT_GE(sim.end(0).stats().paths[2].probes, 3u);
    EXPECT_LE(sim.end(0).stats().paths[2].probes, 12u);
    Cut(&sim, 2, false);
    const Nanos healed = sim.now();
    ASSERT_TRUE(sim.RunUntil([&] { return uses.data[2] > lost + 20; }, healed + FromMillis(1000)));
    EXPECT_LE(sim.now() - healed, kMaxPathProbeInterval + FromMillis(30));
    EXPECT_EQ(sim.end(0).stats().paths[2].state, PathHealth::kUp);
    EXPECT_EQ(sim.end(0).stats().paths[2].failures, 1u);
    for (size_t other : {0, 1, 3}) EXPECT_EQ(sim.end(0).stats().paths[other].failures, 0u);
    ASSERT_TRUE(Finish(&sim, &m));
    EXPECT_EQ(sim.end(0).stats().timeouts, 0u);
  }
}

// With a window for each path, what is lost in the dark holds up nobody else: the other paths go on
// at their rates from the first moment, and the healed one adds its own again.
TEST(Paths, ACutPathCostsItsOwnShareOnly) {
  for (const PathSelectorRow& row : PathSelectors()) {
    if (row.single_path) continue;
    SCOPED_TRACE(row.name);
    ConnectionConfig config = Steady(row.name);
    config.cc_scope = "path";
    config.path_window_bytes = 16 * 1024;
    config.window_bytes = 256 * 1024;
    Simulation sim(config, 1);
    SetDelay(&sim, FromMillis(1));
    TestMessage m(1, 20 << 20);
    Start(&sim, &m);
    sim.RunFor(FromMillis(40));
    const auto received_in = [&](Nanos time) {
      const uint64_t before = sim.end(1).stats().payload_bytes_received;
      sim.RunFor(time);
      return static_cast<double>(sim.end(1).stats().payload_bytes_received - before);
    };
    const double usual = received_in(FromMillis(10));
    EXPECT_GT(usual, 4 * 4 * 16'000);
    Cut(&sim, 2, true);
    for (int i = 0; i < 20; ++i) EXPECT_GT(received_in(FromMillis(10)), 0.72 * usual) << i;
    EXPECT_EQ(sim.end(0).stats().paths[2].state, PathHealth::kFailed);
    Cut(&sim, 2, false);
    sim.RunFor(kMaxPathProbeInterval + FromMillis(10));
    EXPECT_GT(received_in(FromMillis(10)), 0.97 * usual);
    ASSERT_TRUE(Finish(&sim, &m));
    EXPECT_EQ(sim.end(0).stats().timeouts, 0u);
  }
}

TEST(Paths, AnIdleConnectionDoesNotProbe) {
  Simulation sim(Steady("round_robin"), 1);
  Cut(&sim, 1, true);
  TestMessage m(1, 1 << 20), later(2, 1 << 20);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  ASSERT_EQ(sim.end(0).stats().paths[1].state, PathHealth::kFailed);
  sim.RunFor(FromMillis(10));
  EXPECT_EQ(sim.end(0).NextTimeout(), kNever);
  const uint64_t sent = sim.network.stats().sent;
  sim.RunFor(FromMillis(10'000));
  EXPECT_EQ(sim.network.stats().sent, sent);
  // The next message asks at once.
  Cut(&sim, 1, false);
  Start(&sim, &later);
  ASSERT_TRUE(Finish(&sim, &later));
  EXPECT_EQ(sim.end(0).stats().paths[1].state, PathHealth::kUp);
}

TEST(Paths, AllDarkAndOneComesBack) {
  for (const PathSelectorRow& row : PathSelectors()) {
    if (row.single_path) continue;
    SCOPED_TRACE(row.name);
    ConnectionConfig config = Steady(row.name, 32);
    Simulation sim(config, 1);
    TestMessage m(1, 4 << 20);
    Start(&sim, &m);
    sim.RunFor(FromMillis(2));
    for (size_t path = 0; path < 32; ++path) Cut(&sim, path, true);
    sim.RunFor(FromMillis(2000));
    Cut(&sim, 17, false);
    const Nanos healed = sim.now();
    ASSERT_TRUE(Finish(&sim, &m));
    // One timeout away at most, then the probe that answers and the window over one path.
    EXPECT_LE(sim.now() - healed, config.max_rto + FromMillis(200));
  }
}

TEST(Paths, SingleStaysWhereItIs) {
  Simulation sim(Steady("single"), 1);
  Uses uses(&sim);
  TestMessage m(1, 1 << 20);
  Start(&sim, &m);
  sim.RunFor(FromMillis(1));
  Cut(&sim, 0, true);
  sim.At(sim.now() + FromMillis(500), [&] { Cut(&sim, 0, false); });
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_EQ(uses.data[1] + uses.data[2] + uses.data[3], 0u);
  EXPECT_EQ(sim.end(0).stats().paths[0].failures, 0u);
}

// What a path's packets suffer must not be taken for the path's death for long.
TEST(Paths, APathThatBecomesSlowIsNotDead) {
  Simulation sim(Steady("round_robin"), 1);
  SetDelay(&sim, FromMillis(1));
  TestMessage m(1, 20 << 20);
  Start(&sim, &m);
  sim.RunFor(FromMillis(50));
  sim.network.link(0, 3).delay = FromMillis(30);
  sim.RunFor(FromMillis(200));
  EXPECT_EQ(sim.end(0).stats().paths[3].state, PathHealth::kUp);
  ASSERT_TRUE(Finish(&sim, &m));
  EXPECT_LE(sim.end(0).stats().paths[3].failures, 1u);
}

TEST(Paths, LossAloneRarelyFailsAPath) {
  Simulation sim(Steady("round_robin"), 3);
  SetDelay(&sim, FromMillis(1));
  sim.network.ForEachLink([](Link& link) { link.drop = 0.05; });
  TestMessage m(1, 10 << 20);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  uint64_t failures = 0;
  for (const PathStats& path : sim.end(0).stats().paths) failures += path.failures;
  EXPECT_LE(failures, 10u) << "in " << sim.end(0).stats().packets_sent << " packets";
}

TEST(Paths, SlowPathsCostTheLoadAwarePoliciesLess) {
  std::map<std::string, Nanos> took;
  for (const PathSelectorRow& row : PathSelectors()) {
    if (row.single_path) continue;
    Simulation sim(Steady(row.name), 1);
    SetDelay(&sim, FromMillis(1));
    sim.network.link(0, 2).delay = FromMillis(20);
    TestMessage m(1, 10 << 20);
    const Nanos begin = sim.now();
    Start(&sim, &m);
    ASSERT_TRUE(Finish(&sim, &m));
    took[row.name] = sim.now() - begin;
  }
  EXPECT_LT(took["least_loaded"], took["round_robin"] * 3 / 4);
  EXPECT_LT(took["power_of_two"], took["round_robin"] * 3 / 4);
}

TEST(Paths, StatisticsAddUp) {
  Simulation sim(Steady("round_robin", 256), 1);
  sim.network.ForEachLink([](Link& link) { link.drop = 0.02; });
  TestMessage m(1, 4 << 20);
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  const ConnectionStats stats = sim.end(0).stats();
  ASSERT_EQ(stats.paths.size(), 256u);
  uint64_t sent = 0, lost = 0;
  for (const PathStats& path : stats.paths) {
    EXPECT_GT(path.packets_sent, 0u);
    EXPECT_GE(path.srtt_ns, 100'000);
    EXPECT_GE(path.min_rtt_ns, 99'000);
    EXPECT_EQ(path.inflight_bytes, 0);
    EXPECT_EQ(path.window_bytes, 0);
    sent += path.packets_sent;
    lost += path.packets_lost;
  }
  EXPECT_EQ(sent, stats.packets_sent - stats.acks_sent - stats.probes);
  EXPECT_EQ(lost, stats.retransmits_fast + stats.retransmits_timeout);
}

// ---- small messages ----

// The paths that each of `count` messages of `size` bytes took.
std::vector<std::set<int>> PathsOfMessages(const ConnectionConfig& config, size_t size,
                                           size_t count) {
  Simulation sim(config, 1);
  std::vector<std::set<int>> used(count);
  size_t current = 0;
  sim.network.set_filter([&](int from, PathId path, Bytes header, Bytes) {
    if (from == 0 && IsData(header)) used[current].insert(ToInt(path));
    return true;
  });
  for (; current < count; ++current) {
    TestMessage m(current + 1, size);
    Start(&sim, &m);
    EXPECT_TRUE(Finish(&sim, &m));
  }
  return used;
}

TEST(StickyMessages, FewPacketsKeepOnePath) {
  ConnectionConfig config = DefaultConfig();
  config.sticky_packets = 4;
  std::set<int> all;
  for (const std::set<int>& used : PathsOfMessages(config, 4 * 1000, 20)) {
    EXPECT_EQ(used.size(), 1u);
    all.insert(used.begin(), used.end());
  }
  EXPECT_EQ(all.size(), 4u) << "the next message takes another one";
  for (const std::set<int>& used : PathsOfMessages(config, 5 * 1100, 20))
    EXPECT_EQ(used.size(), 4u);
  config.sticky_packets = 0;
  for (const std::set<int>& used : PathsOfMessages(config, 4 * 1000, 20))
    EXPECT_EQ(used.size(), 4u);
}

TEST(StickyMessages, LargeProtocolToo) {
  ConnectionConfig config = DefaultConfig();
  config.eager_max_bytes = 0;
  for (const std::set<int>& used : PathsOfMessages(config, 4 * 1000, 20))
    EXPECT_EQ(used.size(), 1u);
}

TEST(StickyMessages, RetransmissionsLeaveThePath) {
  Simulation sim(DefaultConfig(), 1);
  TestMessage warm(1, 100'000), m(2, 3000);
  Start(&sim, &warm);
  ASSERT_TRUE(Finish(&sim, &warm));
  std::vector<int> paths;
  sim.network.set_filter([&](int from, PathId path, Bytes header, Bytes) {
    if (from != 0 || !IsData(header)) return true;
    paths.push_back(ToInt(path));
    return paths.size() > 3;
  });
  Start(&sim, &m);
  ASSERT_TRUE(Finish(&sim, &m));
  ASSERT_GE(paths.size(), 6u);
  EXPECT_EQ(paths[1], paths[0]);
  EXPECT_EQ(paths[2], paths[0]);
  for (size_t i = 3; i < paths.size(); ++i) EXPECT_NE(paths[i], paths[0]);
}

}  // namespace
}  // namespace uccl::core
