// Which algorithm an operation runs: the one that the setting `algorithms` names, otherwise the
// cheapest of those whose result has the right bits.
//
// All processes must choose alike without asking each other, so the choice depends only on what is
// equal on all of them: the group and where its members live, sizes and types, the settings, which
// are compared at start-up.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/config.h"
#include "csrc/base/status.h"
#include "csrc/collectives/algorithms/registry.h"
#include "csrc/collectives/cost_model.h"

namespace uccl::coll {

// By preference, for each collective that was named.
using AlgorithmChoices = std::map<OpKind, std::vector<const Algorithm*>>;

// "all_reduce=ring,all_reduce=halving,all_gather=bruck"; a collective that is named more than once
// takes the first that is eligible. kInvalidArgument names what is unknown, and what there is.
Result<AlgorithmChoices> ParseAlgorithms(const std::string& text);

// The host of each process: {0, 0, 1} of "2,1"; counts may be followed by "(xN)". Empty for "".
Result<std::vector<int32_t>> ParseHosts(const std::string& text);

struct PlanPolicy {
  uint64_t id = 0;  // unique in this process
  AlgorithmChoices choices;
  CostParams costs;
  std::vector<int32_t> hosts;  // see PlanRequest
};
// From `algorithms`, `tuning_file` and `processes_per_host`.
Result<std::shared_ptr<const PlanPolicy>> MakePolicy(const Config& config);
// kInvalidArgument when the hosts are of another number of processes.
Status CheckHosts(const PlanPolicy& policy, size_t processes);

// kInvalidArgument when the setting leaves none that is eligible.
Result<const Algorithm*> ChooseAlgorithm(const PlanRequest& request,
                                         const std::vector<Member>& group,
                                         const PlanPolicy& policy);

}  // namespace uccl::coll
