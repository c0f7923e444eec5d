// Permute: permutation[2k] sends to permutation[2k + 1]; who receives from nobody gets zeros.
#include <utility>

#include "csrc/collectives/algorithms/registry.h"
#include "csrc/collectives/dtype.h"

namespace uccl::coll {

Schedule PermuteDirect(const PlanRequest& request, const GroupView& view) {
  const uint64_t bytes = request.elements * DTypeBytes(request.dtype);
  Schedule schedule;
  Stage stage;
  std::vector<bool> receives(view.num_locals(), false);
  for (size_t k = 0; k + 1 < request.permutation.size(); k += 2) {
    const auto from = static_cast<uint32_t>(request.permutation[k]);
    const auto to = static_cast<uint32_t>(request.permutation[k + 1]);
    const bool here = view.is_local(from), there = view.is_local(to);
    const uint32_t i = view.local_of[from], j = view.local_of[to];
    if (there) receives[j] = true;
    if (here && there) {
      stage.copies.push_back({Input(i, 0, bytes), Output(j, 0, bytes)});
    } else if (here) {
      stage.sends.push_back({view.processes[view.process_of[to]].id, from, to, Input(i, 0, bytes)});
    } else if (there) {
      stage.receives.push_back(
          {view.processes[view.process_of[from]].id, from, to, Output(j, 0, bytes)});
    }
  }
  for (uint32_t j = 0; j < view.num_locals(); ++j) {
    if (!receives[j])
      stage.copies.push_back({{BufferKind::kZero, 0, 0, bytes}, Output(j, 0, bytes)});
  }
  schedule.stages.push_back(std::move(stage));
  return schedule;
}

}  // namespace uccl::coll
