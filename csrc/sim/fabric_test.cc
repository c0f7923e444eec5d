// Every fabric: sizes, a way between every two hosts, capacity, and how evenly ECMP spreads.
#include "csrc/sim/fabric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

namespace uccl::sim {
namespace {

Fabric Build(const FabricSpec& spec) {
  Result<Fabric> fabric = Fabric::Make(spec);
  if (!fabric.ok()) throw std::runtime_error(fabric.status().ToString());
  return std::move(fabric.value());
}

// The links a packet takes; empty when it goes in circles.
std::vector<uint32_t> Walk(const Fabric& fabric, uint32_t src, uint32_t dst, uint32_t entropy) {
  std::vector<uint32_t> way = {fabric.host_link(src)};
  while (way.size() <= fabric.max_hops()) {
    const uint32_t node = fabric.cables()[way.back()].to;
    if (fabric.IsHost(node)) return node == dst ? way : std::vector<uint32_t>();
    way.push_back(fabric.Route(node, src, dst, entropy));
    if (fabric.cables()[way.back()].from != node) return {};
  }
  return {};
}

struct Case {
  FabricSpec spec;
  uint32_t switches, core_links, hops;
  uint32_t ways;  // between hosts that are far apart
};
const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {{"dumbbell", 8, 0, 0}, 2, 8, 3, 4},
      {{"dumbbell", 7, 0, 2}, 2, 4, 3, 2},
      {{"leaf_spine", 16, 0, 0}, 8, 32, 4, 4},
      {{"leaf_spine", 10, 4, 3}, 6, 18, 4, 3},
      {{"leaf_spine", 4, 4, 0}, 1, 0, 2, 1},
      {{"fat_tree", 16, 0, 0}, 20, 64, 6, 4},        // k = 4
      {{"fat_tree", 13, 0, 0}, 20, 64, 6, 4},        // the last edge switch has one host
      {{"fat_tree", 54, 0, 0}, 45, 216, 6, 9},       // k = 6
      {{"fat_tree", 1024, 0, 0}, 320, 4096, 6, 64},  // k = 16
      {{"leaf_spine", 1024, 0, 0}, 64, 2048, 4, 32},
  };
  return cases;
}

TEST(Fabric, HasTheSizesOfItsKind) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.spec.kind + " " + std::to_string(c.spec.hosts));
    const Fabric fabric = Build(c.spec);
    EXPECT_EQ(fabric.switches().size(), c.switches);
    EXPECT_EQ(fabric.core_links().size(), c.core_links);
    EXPECT_EQ(fabric.cables().size(), 2 * c.spec.hosts + c.core_links);
    EXPECT_EQ(fabric.max_hops(), c.hops);
  }
}

TEST(Fabric, BothDirectionsOfACableAreNeighbours) {
  for (const Case& c : Cases()) {
    const Fabric fabric = Build(c.spec);
    for (size_t i = 0; i < fabric.core_links().size(); i += 2) {
      const Fabric::Cable there = fabric.cables()[fabric.core_links()[i]];
      const Fabric::Cable back = fabric.cables()[fabric.core_links()[i + 1]];
      ASSERT_EQ(there.from, back.to);
      ASSERT_EQ(there.to, back.from);
    }
  }
}

TEST(Fabric, EveryTwoHostsReachEachOther) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.spec.kind + " " + std::to_string(c.spec.hosts));
    const Fabric fabric = Build(c.spec);
    const uint32_t step = c.spec.hosts > 100 ? 37 : 1;
    size_t longest = 0;
    for (uint32_t src = 0; src < c.spec.hosts; src += step) {
      for (uint32_t dst = 0; dst < c.spec.hosts; dst += step) {
        if (src == dst) continue;
        for (uint32_t entropy = 0; entropy < 8; ++entropy) {
          const std::vector<uint32_t> way = Walk(fabric, src, dst, entropy);
          ASSERT_FALSE(way.empty()) << src << " to " << dst;
          longest = std::max(longest, way.size());
        }
      }
    }
    EXPECT_EQ(longest, c.hops);
  }
}

TEST(Fabric, EntropyReachesEveryWayAndOneValueKeepsIts) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.spec.kind + " " + std::to_string(c.spec.hosts));
    const Fabric fabric = Build(c.spec);
    const uint32_t src = 0, dst = c.spec.hosts - 1;
    std::set<std::vector<uint32_t>> ways;
    for (uint32_t entropy = 0; entropy < 2000; ++entropy) {
      ways.insert(Walk(fabric, src, dst, entropy));
      ASSERT_EQ(Walk(fabric, src, dst, entropy), Walk(fabric, src, dst, entropy));
    }
    EXPECT_EQ(ways.size(), c.ways);
  }
}

TEST(Fabric, UpAndDownHaveTheSameCapacityWithoutOversubscription) {
  for (const Case& c : Cases()) {
    if (c.spec.uplinks != 0) continue;
    const Fabric fabric = Build(c.spec);
    for (const Fabric::Switch& s : fabric.switches()) {
      if (s.up.empty()) continue;
      ASSERT_GE(s.up.size(), s.down.size()) << s.name;
    }
  }
}

// The share of the uplinks of the first tier, over many flows, is that of independent uniform
// picks: its chi-square is near the degrees of freedom.
TEST(Fabric, EcmpSpreadsEvenly) {
  for (const Case& c : Cases()) {
    const Fabric fabric = Build(c.spec);
    const Fabric::Switch& leaf = fabric.switches().front();
    if (leaf.up.size() < 2) continue;
    SCOPED_TRACE(c.spec.kind + " " + std::to_string(c.spec.hosts));
    std::map<uint32_t, double> count;
    constexpr int kFlows = 20'000;
    for (uint32_t entropy = 0; entropy < kFlows; ++entropy) {
      ++count[Walk(fabric, 0, c.spec.hosts - 1, entropy * 7919)[1]];
    }
    const double expected = static_cast<double>(kFlows) / static_cast<double>(leaf.up.size());
    double chi_square = 0;
    for (uint32_t link : leaf.up) chi_square += std::pow(count[link] - expected, 2) / expected;
    const auto freedom = static_cast<double>(leaf.up.size() - 1);
    EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom) + 5);
  }
}

// Flows that a first switch sends one way must spread again at the second.
TEST(Fabric, TiersHashIndependently) {
  const Fabric fabric = Build({"fat_tree", 1024, 0, 0});
  std::map<uint32_t, std::set<uint32_t>> second;  // by link of the first tier
  for (uint32_t entropy = 0; entropy < 5000; ++entropy) {
    const std::vector<uint32_t> way = Walk(fabric, 0, 1023, entropy);
    second[way[1]].insert(way[2]);
  }
  ASSERT_EQ(second.size(), 8u);
  for (const auto& [link, links] : second) EXPECT_EQ(links.size(), 8u);
}

std::vector<uint32_t> WalkAround(const Fabric& fabric, uint32_t src, uint32_t dst, uint32_t entropy,
                                 const std::vector<bool>& out) {
  std::vector<uint32_t> way{fabric.host_link(src)};
  for (;;) {
    const uint32_t node = fabric.cables()[way.back()].to;
    if (fabric.IsHost(node) || way.size() > 10) return way;
    way.push_back(fabric.RouteAround(node, src, dst, entropy, out));
  }
}

// Whatever one link between switches is out, no flow takes it, all arrive, and those that did not
// use it stay where they were.
TEST(Fabric, RoutesAroundAnyOneLink) {
  for (const FabricSpec& spec :
       {FabricSpec{"leaf_spine", 16, 4, 0}, FabricSpec{"fat_tree", 16, 0, 0},
        FabricSpec{"dumbbell", 8, 0, 3}}) {
    SCOPED_TRACE(spec.kind);
    const Fabric fabric = Build(spec);
    for (uint32_t dead : fabric.core_links()) {
      std::vector<bool> out(fabric.cables().size());
      out[dead] = true;
      for (uint32_t entropy = 0; entropy < 20; ++entropy) {
        for (uint32_t src = 0; src < spec.hosts; ++src) {
          const uint32_t dst = (src + 1 + entropy % (spec.hosts - 1)) % spec.hosts;
          const std::vector<uint32_t> usual = Walk(fabric, src, dst, entropy);
          const std::vector<uint32_t> way = WalkAround(fabric, src, dst, entropy, out);
          ASSERT_EQ(fabric.cables()[way.back()].to, dst);
          ASSERT_EQ(std::ranges::count(way, dead), 0);
          if (std::ranges::count(usual, dead) == 0) {
            ASSERT_EQ(way, usual);
          }
        }
      }
    }
  }
}

TEST(Fabric, WhereNoWayIsLeftTheUsualOneIsTaken) {
  const Fabric fabric = Build({"dumbbell", 4, 0, 2});
  const std::vector<bool> out(fabric.cables().size(), true);
  EXPECT_EQ(WalkAround(fabric, 0, 3, 5, out), Walk(fabric, 0, 3, 5));
}

TEST(Fabric, RefusesWhatMakesNone) {
  EXPECT_EQ(Fabric::Make({"torus", 8, 0, 0}).status().code, StatusCode::kInvalidArgument);
  EXPECT_EQ(Fabric::Make({"dumbbell", 1, 0, 0}).status().code, StatusCode::kInvalidArgument);
  EXPECT_EQ(Fabric::Make({"fat_tree", 70'000, 0, 0}).status().code, StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace uccl::sim
