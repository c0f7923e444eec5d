// Barrier: nobody leaves before everybody has come. Messages wait for all ranks of their process:
// they name no rank's buffer, so in the first stage they would leave with the first rank.
#include <utility>

#include "csrc/collectives/algorithms/registry.h"

namespace uccl::coll {
namespace {

constexpr Slice kNothing{BufferKind::kScratch, 0, 0, 0};

void AddExchange(const GroupView& view, uint32_t distance, Stage* stage) {
  stage->sends.push_back(view.Sending(view.After(view.self, distance), kNothing));
  stage->receives.push_back(view.Receiving(view.Before(view.self, distance), kNothing));
}

}  // namespace

// P-1 messages leave each process.
Schedule BarrierDirect(const PlanRequest& /*request*/, const GroupView& view) {
  Schedule schedule;
  schedule.stages.emplace_back();
  Stage stage;
  for (uint32_t distance = 1; distance < view.num_processes(); ++distance)
    AddExchange(view, distance, &stage);
  schedule.stages.push_back(std::move(stage));
  return schedule;
}

// Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", IJPP 1988. log2(P)
// messages leave each process.
Schedule BarrierDissemination(const PlanRequest& /*request*/, const GroupView& view) {
  Schedule schedule;
  schedule.stages.emplace_back();
  for (uint32_t distance = 1; distance < view.num_processes(); distance *= 2) {
    Stage stage;
    AddExchange(view, distance, &stage);
    schedule.stages.push_back(std::move(stage));
  }
  return schedule;
}

}  // namespace uccl::coll
