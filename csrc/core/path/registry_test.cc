// Every policy picks existing paths and avoids the one asked to; unknown names list the known ones.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "csrc/core/path/path_selector.h"

namespace uccl::core {
namespace {

TEST(PathSelectors, UnknownNameListsTheKnown) {
  const auto made = MakePathSelector("best", 1);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code, StatusCode::kInvalidArgument);
  EXPECT_NE(made.status().detail.find("`best`"), std::string::npos);
  for (const PathSelectorRow& row : PathSelectors()) {
    EXPECT_NE(made.status().detail.find(row.name), std::string::npos) << made.status().detail;
  }
}

TEST(PathSelectors, NamesAreUniqueAndExplained) {
  std::set<std::string> names;
  for (const PathSelectorRow& row : PathSelectors()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_FALSE(std::string(row.summary).empty()) << row.name;
  }
  EXPECT_TRUE(names.contains("round_robin"));
  EXPECT_TRUE(names.contains("single"));
}

class Policy final {
 public:
  Policy(const std::string& name, size_t count, uint64_t seed = 1) : paths(count) {
    auto made = MakePathSelector(name, seed);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    selector_ = std::move(made.value());
  }
  std::optional<PathId> Select(std::optional<PathId> avoid = std::nullopt, bool urgent = false) {
    return selector_->Select({paths, now, avoid, urgent});
  }
  size_t Pick(std::optional<PathId> avoid = std::nullopt) {
    const auto path = Select(avoid);
    EXPECT_TRUE(path.has_value());
    return path ? ToInt(*path) : paths.size();
  }
  PathSelector& selector() { return *selector_; }
  void SetRtt(size_t path, Nanos rtt) {
    paths[path].rtt = RttEstimator();
    paths[path].rtt.Sample(rtt);
    paths[path].rtt_taken = now;
  }
  // Of `picks` packets that stay in flight, how many took each path.
  std::vector<int> Spread(int picks, int64_t bytes) {
    std::vector<int> uses(paths.size());
    for (int i = 0; i < picks; ++i) {
      const size_t path = Pick();
      if (path >= paths.size()) break;
      ++uses[path];
      paths[path].inflight_bytes += bytes;
    }
    return uses;
  }

  std::vector<PathState> paths;
  Nanos now = FromMillis(1000);

 private:
  std::unique_ptr<PathSelector> selector_;
};

std::vector<std::string> Multipath() {
  std::vector<std::string> names;
  for (const PathSelectorRow& row : PathSelectors()) {
    if (!row.single_path) names.push_back(row.name);
  }
  return names;
}

TEST(PathSelectors, SinglePathIsToldByTheRow) {
  EXPECT_TRUE(UsesSinglePath("single"));
  EXPECT_FALSE(UsesSinglePath("no such policy"));
  EXPECT_EQ(Multipath(),
            (std::vector<std::string>{"round_robin", "power_of_two", "least_loaded", "reps"}));
  for (const PathSelectorRow& row : PathSelectors()) {
    Policy policy(row.name, 4, 3);
    std::set<size_t> used;
    for (int i = 0; i < 1000; ++i) used.insert(policy.Pick());
    EXPECT_EQ(used.size(), row.single_path ? 1u : 4u) << row.name;
  }
}

TEST(PathSelectors, StayWithinThePaths) {
  for (const PathSelectorRow& row : PathSelectors()) {
    for (const size_t count : {1u, 2u, 3u, 16u, 256u}) {
      Policy policy(row.name, count, 0xffff'ffff'ffff'fff0);
      for (size_t i = 0; i < 1000; ++i) {
        ASSERT_LT(policy.Pick(), count) << row.name;
        ASSERT_LT(policy.Pick(static_cast<PathId>(i % count)), count) << row.name;
      }
    }
  }
}

TEST(PathSelectors, AvoidTheLostOnesPath) {
  for (const std::string& name : Multipath()) {
    Policy two(name, 2), one(name, 1);
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(two.Pick(PathId{0}), 1u) << name;
      EXPECT_EQ(one.Pick(PathId{0}), 0u) << name << ": there is no other";
    }
  }
}

TEST(PathSelectors, AvoidFailedPaths) {
  for (const std::string& name : Multipath()) {
    Policy policy(name, 4);
    policy.paths[0].health = policy.paths[2].health = PathHealth::kFailed;
    std::set<size_t> used;
    for (int i = 0; i < 200; ++i) used.insert(policy.Pick());
    EXPECT_EQ(used, (std::set<size_t>{1, 3})) << name;
    // Better where it was lost than where nothing arrives.
    policy.paths[3].health = PathHealth::kFailed;
    EXPECT_EQ(policy.Pick(PathId{1}), 1u) << name;
    // None works: all are tried.
    policy.paths[1].health = PathHealth::kFailed;
    used.clear();
    for (int i = 0; i < 200; ++i) used.insert(policy.Pick());
    EXPECT_EQ(used.size(), 4u) << name;
    EXPECT_NE(policy.Pick(PathId{1}), 1u) << name;
  }
}

TEST(PathSelectors, WaitForWindowAndPace) {
  for (const PathSelectorRow& row : PathSelectors()) {
    Policy policy(row.name, 3);
    for (PathState& path : policy.paths) {
      path.window_bytes = 1000;
      path.inflight_bytes = 1000;
    }
    policy.paths[1].health = PathHealth::kFailed;
    policy.paths[1].inflight_bytes = 0;  // open, but nothing arrives
    EXPECT_EQ(policy.Select(), std::nullopt) << row.name;
    EXPECT_TRUE(policy.Select(std::nullopt, /*urgent=*/true).has_value()) << row.name;
    policy.paths[0].inflight_bytes = 999;
    EXPECT_EQ(policy.Select(), PathId{0}) << row.name;
    policy.paths[0].next_send = policy.now + Nanos(1);
    EXPECT_EQ(policy.Select(), std::nullopt) << row.name;
    policy.now += Nanos(1);
    EXPECT_EQ(policy.Select(), PathId{0}) << row.name;
  }
}

TEST(RoundRobin, TakesThePathsInTurn) {
  Policy policy("round_robin", 4, 2);
  EXPECT_EQ(policy.Spread(400, 0), (std::vector<int>{100, 100, 100, 100}));
}

TEST(Single, StaysOnTheFirst) {
  Policy policy("single", 4, 7);
  EXPECT_EQ(policy.Pick(), 0u);
  EXPECT_EQ(policy.Pick(PathId{0}), 0u);
  policy.paths[0].health = PathHealth::kFailed;
  EXPECT_EQ(policy.Pick(), 0u);
}

TEST(LeastLoaded, TakesTheFewestBytesInFlight) {
  Policy policy("least_loaded", 3);
  policy.paths[0].inflight_bytes = 5000;
  policy.paths[1].inflight_bytes = 2000;
  policy.paths[2].inflight_bytes = 3000;
  EXPECT_EQ(policy.Pick(), 1u);
  EXPECT_EQ(policy.Spread(8, 1000), (std::vector<int>{1, 4, 3})) << "up to the same level";
}

TEST(LeastLoaded, EqualOnesTakeTurns) {
  Policy policy("least_loaded", 4);
  EXPECT_EQ(policy.Spread(400, 0), (std::vector<int>{100, 100, 100, 100}));
}

TEST(Reps, TakesWhatCameBackUnmarkedInThatOrder) {
  Policy policy("reps", 8, 0);
  policy.selector().OnAcked(PathId{5}, 1, 0);
  policy.selector().OnAcked(PathId{3}, 2, 0);
  policy.selector().OnAcked(PathId{6}, 3, 3);  // all of them marked
  policy.selector().OnAcked(PathId{7}, 2, 1);
  for (const size_t expected : {5u, 3u, 3u, 7u}) EXPECT_EQ(policy.Pick(), expected);
  // Nothing is left: the paths in turn, from where the seed says.
  for (const size_t expected : {0u, 1u, 2u, 3u}) EXPECT_EQ(policy.Pick(), expected);
  // More marks than packets come from ACKs that were lost.
  policy.selector().OnAcked(PathId{6}, 1, 2);
  EXPECT_EQ(policy.Pick(), 4u);
}

TEST(Reps, ForgetsTheOldestWhenMoreComeBackThanLeave) {
  Policy policy("reps", 4, 0);
  for (int i = 0; i < 3; ++i) policy.selector().OnAcked(PathId{1}, 1000, 0);
  policy.selector().OnAcked(PathId{2}, 1, 0);
  // Bounded by what a window may hold: still the path of the many, and the newest at the end.
  size_t ones = 0;
  for (int i = 0; i < 6000; ++i) ones += policy.Pick() == 1 ? 1 : 0;
  EXPECT_GT(ones, 6000u / 4 + 500);
  EXPECT_LT(ones, 6000u / 4 + 1500);
}

TEST(Reps, SkipsWhatFailedMeanwhile) {
  Policy policy("reps", 4, 0);
  policy.selector().OnAcked(PathId{2}, 2, 0);
  policy.selector().OnAcked(PathId{3}, 1, 0);
  policy.paths[2].health = PathHealth::kFailed;
  EXPECT_EQ(policy.Pick(), 3u);
  policy.paths[2].health = PathHealth::kUp;
  EXPECT_EQ(policy.Pick(), 0u) << "what was skipped is not kept";
}

TEST(Reps, LeavesACongestedPathAlone) {
  // Path 0 marks whatever takes it. After the first round its share comes from exploring only.
  Policy policy("reps", 8, 0);
  int uses = 0;
  std::vector<size_t> in_flight;
  for (int i = 0; i < 8; ++i) in_flight.push_back(policy.Pick());
  for (int i = 0; i < 8000; ++i) {
    const size_t path = in_flight[static_cast<size_t>(i) % 8];
    policy.selector().OnAcked(static_cast<PathId>(path), 1, path == 0 ? 1 : 0);
    in_flight[static_cast<size_t>(i) % 8] = policy.Pick();
    uses += in_flight[static_cast<size_t>(i) % 8] == 0 ? 1 : 0;
  }
  EXPECT_LT(uses, 8000 / 8 / 8);
}

TEST(PowerOfTwo, PrefersTheLowerRoundTrip) {
  Policy policy("power_of_two", 4);
  for (size_t i = 0; i < 4; ++i) policy.SetRtt(i, FromMicros(100 << i));
  const std::vector<int> uses = policy.Spread(16'000, 0);
  // Drawn with replacement, rank k of 4 wins (2 (4 - k) + 1) / 16 of the draws.
  for (int k = 0; k < 4; ++k) EXPECT_NEAR(uses[k], 1000 * (2 * (3 - k) + 1), 300) << k;
}

TEST(PowerOfTwo, EqualRoundTripsBalanceBytes) {
  Policy policy("power_of_two", 16);
  for (size_t i = 0; i < 16; ++i) policy.SetRtt(i, FromMicros(1000 + 5 * static_cast<int>(i)));
  const std::vector<int> uses = policy.Spread(16'000, 1000);
  // Two choices keep the fullest within a few packets of the mean; one choice would be off by 80.
  for (int use : uses) EXPECT_NEAR(use, 1000, 12);
}

TEST(PowerOfTwo, AStaleRoundTripDoesNotCondemn) {
  Policy policy("power_of_two", 2);
  policy.SetRtt(0, FromMicros(100));
  policy.SetRtt(1, FromMicros(10'000));
  policy.now += FromMillis(101);
  policy.SetRtt(0, FromMicros(100));
  policy.paths[0].inflight_bytes = 1000;
  int tried = 0;
  for (int i = 0; i < 1000; ++i) tried += policy.Pick() == 1;
  EXPECT_NEAR(tried, 750, 60) << "whenever it is drawn at all";
  policy.paths[1].inflight_bytes = 2000;
  tried = 0;
  for (int i = 0; i < 1000; ++i) tried += policy.Pick() == 1;
  EXPECT_NEAR(tried, 250, 60) << "no more than its bytes in flight allow until it answers";
}

}  // namespace
}  // namespace uccl::core
