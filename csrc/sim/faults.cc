// See faults.h.
#include "csrc/sim/faults.h"

#include <algorithm>

#include "csrc/sim/random.h"

namespace uccl::sim {
namespace {

// Strong enough to hurt, weak enough that transports with a few retransmissions get through.
constexpr double kChaosLoss = 0.2, kChaosCorrupt = 0.1, kChaosDuplicate = 0.3;
constexpr uint32_t kKinds = 4;

Fault RandomFault(const FaultSpec& spec, const Fabric& fabric, Random* random) {
  Fault fault;
  fault.kind = static_cast<FaultKind>(random->Below(kKinds));
  fault.link = static_cast<uint32_t>(random->Below(fabric.cables().size()));
  const auto span = static_cast<uint64_t>(std::max<int64_t>(spec.chaos_span.count(), 1));
  fault.begin = Nanos(random->Below(span));
  fault.end = fault.begin + Nanos(1 + random->Below(span));
  const double strength = random->Unit();
  switch (fault.kind) {
    case FaultKind::kDown:
      break;
    case FaultKind::kLoss:
      fault.probability = kChaosLoss * strength;
      break;
    case FaultKind::kCorrupt:
      fault.probability = kChaosCorrupt * strength;
      break;
    case FaultKind::kDuplicate:
      fault.probability = kChaosDuplicate * strength;
      break;
  }
  return fault;
}

}  // namespace

std::vector<Fault> MakeFaultPlan(const FaultSpec& spec, const Fabric& fabric) {
  std::vector<Fault> plan;
  Random random(spec.seed);
  if (spec.loss > 0) {
    for (uint32_t link : fabric.core_links()) {
      plan.push_back({.kind = FaultKind::kLoss, .link = link, .probability = spec.loss});
    }
  }
  // Both directions of a cable are neighbours in core_links().
  std::vector<uint32_t> cables(fabric.core_links().size() / 2);
  for (uint32_t i = 0; i < cables.size(); ++i) cables[i] = i;
  random.Shuffle(&cables);
  cables.resize(std::min<size_t>(cables.size(), spec.fail_cables));
  for (uint32_t cable : cables) {
    for (uint32_t direction : {0u, 1u}) {
      plan.push_back({.kind = FaultKind::kDown,
                      .link = fabric.core_links()[2 * cable + direction],
                      .begin = spec.fail_at,
                      .end = spec.fail_at + spec.fail_for});
    }
  }
  for (uint32_t i = 0; i < spec.chaos; ++i) plan.push_back(RandomFault(spec, fabric, &random));
  return plan;
}

Nanos FaultsEnd(const std::vector<Fault>& plan) {
  Nanos end{0};
  for (const Fault& fault : plan) {
    if (fault.end != kNever) end = std::max(end, fault.end);
  }
  return end;
}

}  // namespace uccl::sim
