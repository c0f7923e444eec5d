// Tests of csrc/fifo/thread_group.h: one kernel over groups of any size gives the same result.
#include "csrc/fifo/thread_group.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace uccl::fifo {
namespace {

// Sums 0..n-1 in slices per group: each thread adds its part, the leader adds up and broadcasts.
template <class Group>
uint64_t SumKernel(Group& group, uint64_t n, std::vector<uint64_t>* scratch, uint64_t* total) {
  const uint64_t begin = n * group.index() / group.count();
  const uint64_t end = n * (group.index() + 1) / group.count();
  uint64_t* const parts = scratch->data() + group.index() * group.size();
  uint64_t sum = 0;
  for (uint64_t i = begin + group.rank(); i < end; i += group.size()) sum += i;
  parts[group.rank()] = sum;
  group.Sync();
  uint64_t all = 0;
  if (group.IsLeader()) all = std::accumulate(parts, parts + group.size(), uint64_t{0});
  all = group.Broadcast(all);
  if (group.IsLeader()) total[group.index()] = all;
  // Again at once: a broadcast must not overtake the one before.
  return group.Broadcast(all + group.rank());
}

TEST(ThreadGroup, HostGroupsOfAnySizeAgreeWithSolo) {
  constexpr uint64_t kN = 1000;
  for (const uint32_t count : {1u, 3u}) {
    std::vector<uint64_t> solo(count), scratch(count);
    RunSoloGroups(count, [&](SoloGroup& g) { SumKernel(g, kN, &scratch, solo.data()); });
    EXPECT_EQ(std::accumulate(solo.begin(), solo.end(), uint64_t{0}), kN * (kN - 1) / 2);
    for (const uint32_t size : {1u, 2u, 3u, 7u}) {
      std::vector<uint64_t> total(count), parts(count * size), seen(count * size);
      RunHostGroups(count, size, [&](HostGroup& g) {
        seen[g.index() * g.size() + g.rank()] = SumKernel(g, kN, &parts, total.data());
      });
      EXPECT_EQ(total, solo) << size;
      for (uint32_t i = 0; i < count * size; ++i) EXPECT_EQ(seen[i], solo[i / size]) << i;
    }
  }
}

TEST(ThreadGroup, SyncSeparatesPhases) {
  constexpr uint32_t kSize = 4;
  std::vector<uint32_t> cells(kSize);
  bool right = true;
  RunHostGroups(1, kSize, [&](HostGroup& g) {
    for (uint32_t round = 1; round <= 100; ++round) {
      cells[g.rank()] = round;
      g.Sync();
      const bool good = cells[(g.rank() + 1) % kSize] == round;
      g.Sync();
      if (!good) right = false;
    }
  });
  EXPECT_TRUE(right);
}

}  // namespace
}  // namespace uccl::fifo
