// What goes wrong, where and when: made from a seed before the run, applied by the network.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/sim/fabric.h"

namespace uccl::sim {

enum class FaultKind : uint8_t { kDown, kLoss, kCorrupt, kDuplicate };

struct Fault {
  FaultKind kind{};
  uint32_t link = 0;  // one direction
  double probability = 0;
  Nanos begin{0}, end = kNever;  // kNever: for the whole run
};

struct FaultSpec {
  double loss = 0;           // of every link between switches, for the whole run
  uint32_t fail_cables = 0;  // random ones between switches, both directions
  Nanos fail_at{0}, fail_for{0};
  uint32_t chaos = 0;                  // random faults on random links, hosts' too
  Nanos chaos_span = FromMicros(500);  // they begin within this
  uint64_t seed = 1;
};

std::vector<Fault> MakeFaultPlan(const FaultSpec& spec, const Fabric& fabric);
// When the last of those that end has ended. From then on everything must make progress.
Nanos FaultsEnd(const std::vector<Fault>& plan);

}  // namespace uccl::sim
