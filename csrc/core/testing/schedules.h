// The loop of property tests over seeded schedules: UCCL_SIM_SEED=n replays one, UCCL_SIM_SEEDS=n
// sets how many run, from 1 on.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace uccl::core::testing {

inline uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// `run(seed)` returns what went wrong, or nothing. Ends after a few failures. Returns how many
// schedules were asked for.
template <class Run>
uint64_t RunSchedules(uint64_t by_default, Run run) {
  uint64_t first = 1, count = FromEnvironment("UCCL_SIM_SEEDS", by_default);
  if (std::getenv("UCCL_SIM_SEED") != nullptr) {
    first = FromEnvironment("UCCL_SIM_SEED", 1);
    count = 1;
  }
  int failures = 0;
  for (uint64_t seed = first; seed < first + count && failures < 5; ++seed) {
    const std::string fault = run(seed);
    if (fault.empty()) continue;
    ++failures;
    ADD_FAILURE() << "UCCL_SIM_SEED=" << seed << ": " << fault;
  }
  return count;
}

}  // namespace uccl::core::testing
