// Groups of ranks on processes and hosts, for tests of schedules.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "csrc/collectives/schedule.h"

namespace uccl::coll::testing {

// `devices[p]` ranks on process p, in order.
inline std::vector<Member> GroupOf(const std::vector<int>& devices) {
  std::vector<Member> group;
  for (size_t p = 0; p < devices.size(); ++p) {
    for (int i = 0; i < devices[p]; ++i) {
      group.push_back(
          {static_cast<int64_t>(group.size()), static_cast<ProcessId>(static_cast<int32_t>(p))});
    }
  }
  return group;
}

// `n` ranks somewhere on at most `processes` processes: uneven, interleaved, process numbers with
// gaps.
inline std::vector<Member> RandomGroup(size_t n, size_t processes, std::mt19937* random) {
  std::vector<Member> group;
  for (size_t r = 0; r < n; ++r) {
    const auto p = static_cast<int32_t>((*random)() % processes);
    group.push_back({static_cast<int64_t>(100 + r), static_cast<ProcessId>(7 * p + 1)});
  }
  return group;
}

// One process, a process each, equal blocks, blocks that differ by one, one process with nearly
// all, round robin, and some by chance.
inline std::vector<std::vector<Member>> LayoutsOf(int n, std::mt19937* random) {
  std::vector<std::vector<Member>> layouts;
  for (int processes = 1; processes <= n; ++processes) {
    // All numbers of processes are many; the larger ones are taken where they divide.
    if (processes > 6 && n % processes != 0) continue;
    std::vector<int> devices;
    for (int p = 0; p < processes; ++p)
      devices.push_back(n * (p + 1) / processes - n * p / processes);
    layouts.push_back(GroupOf(devices));
  }
  if (n > 2) {
    layouts.push_back(GroupOf({1, n - 1}));
    layouts.push_back(GroupOf({n - 2, 1, 1}));
    std::vector<Member> robin = GroupOf(std::vector<int>(static_cast<size_t>(n), 1));
    for (int r = 0; r < n; ++r)
      robin[static_cast<size_t>(r)].process = static_cast<ProcessId>(r % 3);
    layouts.push_back(std::move(robin));
  }
  for (size_t processes : {2u, 3u, 5u})
    layouts.push_back(RandomGroup(static_cast<size_t>(n), processes, random));
  return layouts;
}

inline std::string Text(const std::vector<Member>& group) {
  std::string s = "processes";
  for (const Member& m : group) s += " " + std::to_string(ToInt(m.process));
  return s;
}

}  // namespace uccl::coll::testing
