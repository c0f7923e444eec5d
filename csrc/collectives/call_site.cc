// Parsing of attributes, seats of devices, and the caches of a call site.
#include "csrc/collectives/call_site.h"

#include <algorithm>
#include <utility>

#include "csrc/base/hash.h"
#include "csrc/collectives/kernel_types.h"
#include "csrc/collectives/schedule_reads.h"

namespace uccl::coll {
namespace {

Status Invalid(const CallSiteSpec& spec, const std::string& what) {
  Status s = Status::Error(StatusCode::kInvalidArgument, what);
  s.op = spec.label;
  return s;
}

// Every member is the source of at most one pair and the target of at most one.
Status CheckPermutation(const CallSiteSpec& spec) {
  if (spec.permutation.size() % 2 != 0)
    return Invalid(spec, "`permutation` is not a list of pairs");
  std::vector<bool> used(2 * static_cast<size_t>(spec.group_size), false);
  for (size_t k = 0; k < spec.permutation.size(); ++k) {
    const int64_t member = spec.permutation[k];
    if (member < 0 || member >= spec.group_size) {
      return Invalid(spec, "`permutation` names member " + std::to_string(member) + " of " +
                               std::to_string(spec.group_size));
    }
    const size_t slot = 2 * static_cast<size_t>(member) + k % 2;
    if (used[slot]) {
      return Invalid(spec, "`permutation` has member " + std::to_string(member) + " twice as " +
                               (k % 2 == 0 ? "source" : "target"));
    }
    used[slot] = true;
  }
  return Status::Ok();
}

// The algorithm that was chosen if the kernels can do it, else the cheapest that they can; the
// chosen one where there is none. Alike on all ranks, because all parts of the whole are looked at.
const Algorithm* ForKernels(const Algorithm* chosen, const PlanRequest& request,
                            const std::vector<Member>& ranks, const PlanPolicy& policy) {
  const auto wide = [&](const Algorithm& algorithm) {
    return std::ranges::any_of(ranks, [&](const Member& rank) {
      return HasWideResults(MakeSchedule(algorithm, request, ranks, rank.process));
    });
  };
  if (!wide(*chosen)) return chosen;
  const Algorithm* best = nullptr;
  uint64_t least = 0;
  for (const Algorithm& algorithm : Algorithms()) {
    if (!IsEligible(algorithm, request) || wide(algorithm)) continue;
    const uint64_t cost = CostOf(policy.costs, algorithm, request, ranks);
    if (best != nullptr && cost >= least) continue;
    best = &algorithm;
    least = cost;
  }
  return best == nullptr ? chosen : best;
}

// Only uniqueness matters, so relaxed order is enough.
std::atomic<uint64_t> next_launch{1};

}  // namespace

Result<std::shared_ptr<CallSite>> CallSite::Make(CallSiteSpec spec, InstanceTable* instances,
                                                 uint64_t thread) {
  if (spec.group_size < 1 || spec.groups.empty() ||
      spec.groups.size() % static_cast<size_t>(spec.group_size) != 0) {
    return Invalid(spec, "group_size " + std::to_string(spec.group_size) + " does not divide the " +
                             std::to_string(spec.groups.size()) + " partitions of `groups`");
  }
  if (spec.devices.size() != spec.processes.size()) {
    return Invalid(spec, "`devices` has " + std::to_string(spec.devices.size()) +
                             " entries and `processes` " + std::to_string(spec.processes.size()));
  }
  for (int64_t partition : spec.groups) {
    const bool known =
        spec.devices.empty() || partition < static_cast<int64_t>(spec.devices.size());
    if (partition < 0 || !known) {
      return Invalid(spec, "`groups` names partition " + std::to_string(partition) + " of " +
                               std::to_string(spec.devices.size()));
    }
  }
  if (spec.root < 0 || spec.root >= spec.group_size) {
    return Invalid(spec, "root " + std::to_string(spec.root) + " is not one of the " +
                             std::to_string(spec.group_size) + " members");
  }
  if (Status status = CheckPermutation(spec); !status.ok()) return status;
  std::shared_ptr<CallSite> site(new CallSite(std::move(spec)));
  const CallSiteSpec& s = site->spec_;
  site->instance_ = instances->Add(static_cast<uint64_t>(s.site), s.module, thread);
  site->launch_ = next_launch.fetch_add(1, std::memory_order_relaxed);
  return site;
}

Result<CallSite::Seat> CallSite::SeatOf(int64_t device, int64_t partition,
                                        const DeviceTable& defaults) {
  std::lock_guard lock(mutex_);
  if (auto it = seats_.find(device); it != seats_.end()) return it->second;

  const bool own_table = !spec_.devices.empty();
  const std::vector<int64_t>& ids = own_table ? spec_.devices : defaults.ids;
  const std::vector<int64_t>& processes = own_table ? spec_.processes : defaults.processes;
  if (ids.empty()) {
    return Invalid(
        spec_,
        "the module does not name its devices (it was exported, or lowered for an AbstractMesh) "
        "and the device list is not known yet; call jax_uccl.init() before running it");
  }
  const auto at = std::find(ids.begin(), ids.end(), device);
  if (at == ids.end()) {
    return Invalid(spec_, "device " + std::to_string(device) + " is not in the mesh of this call");
  }
  const int64_t mine = at - ids.begin();
  if (!own_table && partition != mine) {
    return Invalid(
        spec_,
        "a module that does not name its devices (it was exported, or lowered for an "
        "AbstractMesh) ran on device " +
            std::to_string(device) + " as partition " + std::to_string(partition) +
            ", but that is device number " + std::to_string(mine) +
            " of jax.devices(); run it over a mesh in jax.devices() order, or lower it under "
            "jax.set_mesh(mesh)");
  }
  const auto where = std::find(spec_.groups.begin(), spec_.groups.end(), mine);
  if (where == spec_.groups.end()) {
    return Invalid(spec_, "device " + std::to_string(device) + " (partition " +
                              std::to_string(mine) + ") is in none of the groups");
  }
  const auto n = static_cast<size_t>(spec_.group_size);
  const size_t first = static_cast<size_t>(where - spec_.groups.begin()) / n * n;

  auto comm = std::make_shared<Communicator>();
  comm->self = static_cast<ProcessId>(processes[static_cast<size_t>(mine)]);
  Hasher hash;
  Seat seat;
  for (uint32_t i = 0; i < n; ++i) {
    const auto p = static_cast<size_t>(spec_.groups[first + i]);
    if (p >= ids.size()) {
      return Invalid(spec_, "partition " + std::to_string(p) + " is beyond the " +
                                std::to_string(ids.size()) + " devices of this job");
    }
    const Member member{ids[p], static_cast<ProcessId>(processes[p])};
    hash.Word(static_cast<uint64_t>(member.device));
    if (member.device == device) seat.local = static_cast<uint32_t>(comm->locals.size());
    if (member.process == comm->self) comm->locals.push_back(i);
    comm->members.push_back(member);
  }
  // Kept to 63 bits so that it prints as a positive number everywhere.
  comm->id = hash.Finish64() >> 1;
  seat.comm = std::move(comm);
  seats_.emplace(device, seat);
  return seat;
}

void CallSite::MarkExecuted(InstanceTable* instances) {
  // Relaxed: marking twice does no harm, and the table has its own lock.
  if (executed_.load(std::memory_order_relaxed)) return;
  executed_.store(true, std::memory_order_relaxed);
  instances->MarkExecuted(instance_.group.get());
}

Result<CallSite::Plan> CallSite::PlanRanks(const Communicator& comm, const PlanPolicy& policy,
                                           PlanRequest request, bool kernels, Plan* plan) {
  std::vector<Member> ranks = comm.members;
  request.hosts.clear();
  for (size_t m = 0; m < ranks.size(); ++m) {
    const auto process = static_cast<size_t>(ToInt(ranks[m].process));
    if (!policy.hosts.empty())
      request.hosts.push_back(process < policy.hosts.size() ? policy.hosts[process] : 0);
    ranks[m].process = static_cast<ProcessId>(m);
  }
  const Result<const Algorithm*> chosen = ChooseAlgorithm(request, ranks, policy);
  if (!chosen.ok()) return chosen.status();
  const Algorithm* const algorithm =
      kernels ? ForKernels(chosen.value(), request, ranks, policy) : chosen.value();
  for (uint32_t member : comm.locals) {
    Schedule schedule = MakeSchedule(*algorithm, request, ranks, static_cast<ProcessId>(member));
    for (Stage& stage : schedule.stages) {
      std::ranges::stable_sort(stage.sends, {}, &Transfer::part);
      std::ranges::stable_sort(stage.receives, {}, &Transfer::part);
    }
    plan->of_ranks.push_back(std::make_shared<const Schedule>(std::move(schedule)));
  }
  plan->algorithm = algorithm;
  return *plan;
}

Result<CallSite::Plan> CallSite::MakePlan(const Communicator& comm, uint64_t elements, DType dtype,
                                          const PlanPolicy& policy, PlanFor whom) {
  std::lock_guard lock(mutex_);
  Plan& plan = plans_[{comm.id, elements, policy.id, whom}];
  if (plan.algorithm != nullptr) return plan;
  PlanRequest request;
  request.kind = spec_.kind;
  request.dtype = dtype;
  request.reduction = spec_.reduction;
  request.any_order = spec_.any_order;
  request.elements = elements;
  request.permutation = spec_.permutation;
  request.root = static_cast<uint32_t>(spec_.root);
  request.hosts = policy.hosts;
  if (whom != PlanFor::kProcess)
    return PlanRanks(comm, policy, request, whom == PlanFor::kKernels, &plan);
  const Result<const Algorithm*> chosen = ChooseAlgorithm(request, comm.members, policy);
  if (!chosen.ok()) return chosen.status();
  plan.algorithm = chosen.value();
  Schedule schedule = MakeSchedule(*plan.algorithm, request, comm.members, comm.self);
  MarkReadOnce(&schedule);
  plan.schedule = std::make_shared<const Schedule>(std::move(schedule));
  return plan;
}

}  // namespace uccl::coll
