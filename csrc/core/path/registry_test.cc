// Every policy picks existing paths and avoids the one asked to; unknown names list the known ones.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

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

TEST(PathSelectors, StayWithinThePaths) {
  for (const PathSelectorRow& row : PathSelectors()) {
    for (const size_t count : {1u, 2u, 3u, 16u, 256u}) {
      auto made = MakePathSelector(row.name, 0xffff'ffff'ffff'fff0);
      ASSERT_TRUE(made.ok());
      const std::vector<PathState> paths(count);
      for (size_t i = 0; i < 1000; ++i) {
        ASSERT_LT(ToInt(made.value()->Select(paths, std::nullopt)), count) << row.name;
        ASSERT_LT(ToInt(made.value()->Select(paths, static_cast<PathId>(i % count))), count)
            << row.name;
      }
    }
  }
}

TEST(RoundRobin, TakesThePathsInTurn) {
  auto made = MakePathSelector("round_robin", 2);
  ASSERT_TRUE(made.ok());
  const std::vector<PathState> paths(4);
  std::map<int, int> uses;
  for (int i = 0; i < 400; ++i) ++uses[ToInt(made.value()->Select(paths, std::nullopt))];
  for (int path = 0; path < 4; ++path) EXPECT_EQ(uses[path], 100);
}

TEST(RoundRobin, AvoidsTheLostOnesPath) {
  auto made = MakePathSelector("round_robin", 1);
  ASSERT_TRUE(made.ok());
  const std::vector<PathState> two(2), one(1);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(made.value()->Select(two, PathId{0}), PathId{1});
  EXPECT_EQ(made.value()->Select(one, PathId{0}), PathId{0}) << "there is no other";
}

TEST(Single, StaysOnTheFirst) {
  auto made = MakePathSelector("single", 7);
  ASSERT_TRUE(made.ok());
  const std::vector<PathState> paths(4);
  EXPECT_EQ(made.value()->Select(paths, std::nullopt), PathId{0});
  EXPECT_EQ(made.value()->Select(paths, PathId{0}), PathId{0});
}

}  // namespace
}  // namespace uccl::core
