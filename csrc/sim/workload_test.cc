// Each workload: its bytes, and that its gates open in some order so that every flow starts.
#include "csrc/sim/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <set>
#include <vector>

namespace uccl::sim {
namespace {

Workload Build(const WorkloadSpec& spec) {
  Result<Workload> workload = MakeWorkload(spec);
  if (!workload.ok()) throw std::runtime_error(workload.status().ToString());
  return std::move(workload.value());
}

uint64_t TotalBytes(const Workload& w) {
  uint64_t sum = 0;
  for (const Flow& flow : w.flows) sum += flow.bytes;
  return sum;
}

// Runs the flows at once, one after the other; returns how many started.
size_t Started(const Workload& w) {
  std::vector<uint32_t> gates = w.gates;
  std::vector<std::vector<uint32_t>> behind(gates.size());
  std::deque<uint32_t> ready;
  for (uint32_t f = 0; f < w.flows.size(); ++f) {
    if (w.flows[f].gate == kNoGate) {
      ready.push_back(f);
    } else {
      behind[w.flows[f].gate].push_back(f);
    }
  }
  size_t started = 0;
  while (!ready.empty()) {
    const Flow& flow = w.flows[ready.front()];
    ready.pop_front();
    ++started;
    if (flow.signal == kNoGate) continue;
    EXPECT_GT(gates[flow.signal], 0u) << "a gate is counted down too often";
    if (--gates[flow.signal] > 0) continue;
    for (uint32_t next : behind[flow.signal]) ready.push_back(next);
  }
  return started;
}

TEST(Workload, EveryFlowOfEveryRowStartsOnceAndGoesElsewhere) {
  for (const WorkloadRow& row : Workloads()) {
    for (uint32_t hosts : {2u, 3u, 5u, 16u, 33u}) {
      SCOPED_TRACE(std::string(row.name) + " " + std::to_string(hosts));
      WorkloadSpec spec;
      spec.kind = row.name;
      spec.hosts = hosts;
      const Workload w = Build(spec);
      ASSERT_FALSE(w.flows.empty());
      EXPECT_EQ(Started(w), w.flows.size());
      for (const Flow& flow : w.flows) {
        ASSERT_LT(flow.src, hosts);
        ASSERT_LT(flow.dst, hosts);
        ASSERT_NE(flow.src, flow.dst);
        ASSERT_GT(flow.bytes, 0u);
      }
    }
  }
}

TEST(Workload, EqualSeedsGiveEqualFlowsAndOthersDoNot) {
  for (const char* kind : {"permutation", "mixed", "moe", "incast", "incast_mixed"}) {
    WorkloadSpec spec;
    spec.kind = kind;
    const auto picture = [&](uint64_t seed) {
      spec.seed = seed;
      std::vector<uint64_t> words;
      for (const Flow& f : Build(spec).flows) {
        words.insert(words.end(), {f.src, f.dst, f.bytes, static_cast<uint64_t>(f.start.count())});
      }
      return words;
    };
    EXPECT_EQ(picture(5), picture(5)) << kind;
    EXPECT_NE(picture(5), picture(6)) << kind;
  }
}

TEST(Workload, PermutationUsesEveryHostOnceEachWay) {
  const Workload w = Build({.kind = "permutation", .hosts = 50});
  std::set<uint32_t> sources, targets;
  for (const Flow& flow : w.flows) {
    sources.insert(flow.src);
    targets.insert(flow.dst);
  }
  EXPECT_EQ(w.flows.size(), 50u);
  EXPECT_EQ(sources.size(), 50u);
  EXPECT_EQ(targets.size(), 50u);
}

TEST(Workload, CollectivesMoveTheBytesOfTheirAlgorithm) {
  // All-to-all: (n-1)/n of the bytes leave each host. Ring: 2 (n-1)/n. Tree: each edge twice.
  WorkloadSpec spec{.kind = "all_to_all", .hosts = 16, .bytes = 1 << 20};
  EXPECT_EQ(TotalBytes(Build(spec)), uint64_t{16} * 15 * (1 << 16));
  spec.kind = "ring_all_reduce";
  EXPECT_EQ(TotalBytes(Build(spec)), uint64_t{16} * 2 * 15 * (1 << 16));
  spec.kind = "tree_all_reduce";
  EXPECT_EQ(TotalBytes(Build(spec)), uint64_t{2} * 15 * (1 << 20));
}

TEST(Workload, IncastIsFromFanInOthersToOne) {
  const Workload w = Build({.kind = "incast", .hosts = 64, .fan_in = 15});
  std::set<uint32_t> sources;
  for (const Flow& flow : w.flows) {
    EXPECT_EQ(flow.dst, 0u);
    sources.insert(flow.src);
  }
  EXPECT_EQ(sources.size(), 15u);
}

TEST(Workload, IncastMixedLoadsTheTargetAsAskedAndOthersToo) {
  const WorkloadSpec spec{.kind = "incast_mixed",
                          .hosts = 64,
                          .bytes = 100'000,
                          .fan_in = 15,
                          .rounds = 40,
                          .load = 0.5,
                          .cross_load = 0.5};
  const Workload w = Build(spec);
  std::set<uint32_t> senders, crossing;
  uint64_t to_target = 0, crossed = 0, small = 0, small_to_target = 0;
  Nanos last{0};
  for (const Flow& flow : w.flows) {
    if (flow.kind == FlowClass::kMain) {
      EXPECT_EQ(flow.dst, 0u);
      senders.insert(flow.src);
      to_target += flow.bytes;
      last = std::max(last, flow.start);
    } else if (flow.kind == FlowClass::kCross) {
      EXPECT_NE(flow.dst, 0u);
      crossing.insert(flow.src);
      crossed += flow.bytes;
    } else {
      ++small;
      small_to_target += flow.dst == 0 ? 1 : 0;
      EXPECT_LE(flow.bytes, 16u * 1024);
    }
  }
  EXPECT_EQ(senders.size(), 15u);
  EXPECT_EQ(crossing.size(), 48u);
  for (uint32_t host : crossing) EXPECT_FALSE(senders.contains(host));
  EXPECT_EQ(to_target, 40u * 15 * 100'000);
  // 1.5 MB a round take 30 us at 400 Gbit/s; at half load a round comes every 60 us.
  EXPECT_NEAR(static_cast<double>(last.count()), 39 * 60e3, 2e3);
  // Half of 48 links for 2.4 ms.
  EXPECT_NEAR(static_cast<double>(crossed), 48 * 0.5 * 50 * 2.4e6, 0.1 * 48 * 0.5 * 50 * 2.4e6);
  EXPECT_EQ(small, 64u * 40 * 4);
  EXPECT_GT(small_to_target, small / 5);
}

TEST(Workload, MoeReturnsWhatItDispatchesAndSkewHeatsAHost) {
  const auto hottest = [](double skew) {
    const Workload w = Build({.kind = "moe", .hosts = 32, .bytes = 1 << 20, .skew = skew});
    std::vector<uint64_t> in(32), out(32);
    for (const Flow& flow : w.flows) {
      (flow.gate == kNoGate ? in[flow.dst] : out[flow.src]) += flow.bytes;
    }
    EXPECT_EQ(in, out);
    const uint64_t sum = std::accumulate(in.begin(), in.end(), uint64_t{0});
    return static_cast<double>(*std::ranges::max_element(in)) * 32 / static_cast<double>(sum);
  };
  const double uniform = hottest(0), skewed = hottest(1.2);
  EXPECT_LT(uniform, 1.3);
  EXPECT_GT(skewed, 1.5);
}

TEST(Workload, MoeSendsATokenOnceToAHost) {
  // One token, all experts: every other host gets it exactly once.
  const Workload w = Build({.kind = "moe", .hosts = 4, .bytes = 1, .skew = 0, .top_k = 16});
  EXPECT_EQ(w.flows.size(), 2u * 4 * 3);
  for (const Flow& flow : w.flows) EXPECT_EQ(flow.bytes, 7168u);
}

TEST(Workload, RefusesWhatMakesNone) {
  EXPECT_EQ(MakeWorkload({.kind = "gossip"}).status().code, StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeWorkload({.hosts = 1}).status().code, StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeWorkload({.bytes = 0}).status().code, StatusCode::kInvalidArgument);
  for (const WorkloadSpec& spec : {WorkloadSpec{.kind = "incast", .fan_in = 0},
                                   WorkloadSpec{.kind = "incast_mixed", .rounds = 0},
                                   WorkloadSpec{.kind = "incast_mixed", .load = 0}}) {
    EXPECT_EQ(MakeWorkload(spec).status().code, StatusCode::kInvalidArgument) << spec.kind;
  }
}

}  // namespace
}  // namespace uccl::sim
