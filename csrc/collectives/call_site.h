// One custom call of one executable: its parsed attributes, its instance number, and the group that
// each device belongs to. Made at the FFI instantiate stage, then immutable but for a lazily filled
// cache of resolved groups; shared by all devices of the process and kept alive by operations in
// flight.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/collectives/description.h"
#include "csrc/collectives/matching.h"
#include "csrc/collectives/planner.h"
#include "csrc/collectives/schedule.h"

namespace uccl::coll {

// An ordered set of ranks, seen from this process.
struct Communicator {
  uint64_t id = 0;  // hash of the ordered devices; equal on all members
  std::vector<Member> members;
  ProcessId self{};
  std::vector<uint32_t> locals;  // members that live in this process
  bool all_local() const { return locals.size() == members.size(); }
};

// Attributes of the custom call, as lowered (jax_uccl/_src/lowering.py).
struct CallSiteSpec {
  OpKind kind{};
  ReduceOp reduction{};
  int64_t site = 0, position = 0;
  std::string label, module;
  int64_t group_size = 0;
  std::vector<int64_t> groups;     // flattened partition ids
  std::vector<int64_t> devices;    // partition -> jax.Device.id; empty in exported modules
  std::vector<int64_t> processes;  // partition -> process index; empty likewise
  bool ordered = false;
  bool any_order = false;            // see PlanRequest
  std::vector<int64_t> permutation;  // likewise, by position in the group
  int64_t root = 0;
  bool fill = true;  // ragged exchange: zeros where nothing lands
};

// jax.devices() in order, for modules that do not carry their devices.
struct DeviceTable {
  std::vector<int64_t> ids, processes;
};

class CallSite final {
 public:
  // kInvalidArgument when the attributes contradict each other.
  static Result<std::shared_ptr<CallSite>> Make(CallSiteSpec spec, InstanceTable* instances,
                                                uint64_t thread);

  struct Seat {
    std::shared_ptr<const Communicator> comm;
    uint32_t local = 0;  // index among comm->locals
  };
  // Where `device` sits. `partition` is its index in the module's mesh, or -1 when the module
  // carries its devices.
  Result<Seat> SeatOf(int64_t device, int64_t partition, const DeviceTable& defaults);

  // What this process does, and by which algorithm.
  struct Plan {
    const Algorithm* algorithm = nullptr;
    std::shared_ptr<const Schedule> schedule;
    // Instead of it where every rank works for itself: by local index, each as if its rank were a
    // process of its own, whose number is its place in the group. Messages stand by their parts, so
    // both ends list those between them alike.
    std::vector<std::shared_ptr<const Schedule>> of_ranks;
  };
  // kRanks fills in of_ranks; so does kKernels, with what the kernels of csrc/cuda alone can do
  // where there is an algorithm of that kind.
  enum class PlanFor : uint8_t { kProcess, kRanks, kKernels };
  // Made once per communicator, payload size and policy. Errors of ChooseAlgorithm.
  Result<Plan> MakePlan(const Communicator& comm, uint64_t elements, DType dtype,
                        const PlanPolicy& policy, PlanFor whom);

  // Closes the group of instances this one was numbered in (see InstanceTable).
  void MarkExecuted(InstanceTable* instances);

  const CallSiteSpec& spec() const { return spec_; }
  const InstanceTable::Instance& instance() const { return instance_; }
  uint64_t launch() const { return launch_; }

 private:
  explicit CallSite(CallSiteSpec spec) : spec_(std::move(spec)) {}
  static Result<Plan> PlanRanks(const Communicator& comm, const PlanPolicy& policy,
                                PlanRequest request, bool kernels, Plan* plan);

  CallSiteSpec spec_;
  InstanceTable::Instance instance_;
  uint64_t launch_ = 0;  // unique in this process
  std::atomic<bool> executed_{false};
  std::mutex mutex_;  // guards the two caches
  std::map<int64_t, Seat> seats_;
  // (comm, elements, policy, for whom): settings may change from one epoch to the next.
  std::map<std::tuple<uint64_t, uint64_t, uint64_t, PlanFor>, Plan> plans_;
};

}  // namespace uccl::coll
