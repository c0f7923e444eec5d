// Fault schedules by the thousand: everything about a run (fabric, workload, transport, path
// policy, congestion control, sizes, limits, faults) is drawn from one number, so that number
// replays it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "csrc/sim/settings.h"

namespace uccl::sim {

// The settings of schedule `seed`; they include it as their seed.
Settings ChaosSettings(uint64_t seed);

struct ChaosFailure {
  uint64_t seed = 0;
  std::string text;  // of the first violation
};
struct ChaosSummary {
  uint64_t schedules = 0, violations = 0;
  std::vector<ChaosFailure> failures;  // the first kMaxFailures schedules that had violations
  // What the schedules did to the transport, to see that they do it.
  uint64_t packets = 0, drops = 0, corrupted = 0, duplicated = 0, marked = 0;
  uint64_t retransmits = 0, timeouts = 0, spurious_retransmits = 0;
  // Of all trace hashes, whatever their order: equal for equal ranges.
  uint64_t trace_hash = 0;

  static constexpr size_t kMaxFailures = 32;
};

// Runs the schedules [first, first + count). `proceed` is asked before each with the number of
// those that are done, and ends it by returning false.
ChaosSummary RunChaos(uint64_t first, uint64_t count,
                      const std::function<bool(uint64_t done)>& proceed = {});

}  // namespace uccl::sim
