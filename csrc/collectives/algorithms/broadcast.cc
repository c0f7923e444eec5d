// Broadcast: the root's input lands in everybody's output.
#include <utility>

#include "csrc/collectives/algorithms/registry.h"
#include "csrc/collectives/dtype.h"

namespace uccl::coll {
namespace {

// Messages name the root itself, and of the other processes the first member.
uint32_t NameOf(const GroupView& view, uint32_t process, uint32_t root) {
  return view.process_of[root] == process ? root : view.processes[process].first();
}

class Plan final {
 public:
  Plan(const PlanRequest& request, const GroupView& view)
      : view_(view),
        root_(request.root),
        bytes_(request.elements * DTypeBytes(request.dtype)),
        spread_(view.num_locals()) {
    if (!view.is_local(root_)) return;
    for (uint32_t j = 0; j < view.num_locals(); ++j)
      stage_.copies.push_back({Input(view.local_of[root_], 0, bytes_), Output(j, 0, bytes_)});
  }
  void Send(uint32_t to) {
    const Slice from =
        view_.is_local(root_) ? Input(view_.local_of[root_], 0, bytes_) : Output(0, 0, bytes_);
    stage_.sends.push_back(
        {view_.processes[to].id, NameOf(view_, view_.self, root_), NameOf(view_, to, root_), from});
  }
  void Receive(uint32_t from) {
    stage_.receives.push_back({view_.processes[from].id, NameOf(view_, from, root_),
                               NameOf(view_, view_.self, root_), Output(0, 0, bytes_)});
    came_ = true;
  }
  void EndStage() {
    schedule_.stages.push_back(std::exchange(stage_, {}));
    if (std::exchange(came_, false)) spread_.Received(Output(0, 0, bytes_));
    spread_.AddCopies(&stage_);
  }
  Schedule Finish() {
    if (!stage_.copies.empty()) EndStage();
    return std::move(schedule_);
  }

 private:
  const GroupView& view_;
  const uint32_t root_;
  const uint64_t bytes_;
  Schedule schedule_;
  Stage stage_;
  bool came_ = false;  // in this stage
  LocalSpread spread_;
};

}  // namespace

// s*(P-1) bytes leave the root's process, in P-1 messages.
Schedule BroadcastDirect(const PlanRequest& request, const GroupView& view) {
  Plan plan(request, view);
  const uint32_t root = view.process_of[request.root];
  if (view.self == root) {
    for (uint32_t step = 1; step < view.num_processes(); ++step) plan.Send(view.After(root, step));
  } else {
    plan.Receive(root);
  }
  plan.EndStage();
  return plan.Finish();
}

// s*log2(P) bytes leave the root's process, in log2(P) messages; fewer leave the others.
Schedule BroadcastBinomial(const PlanRequest& request, const GroupView& view) {
  Plan plan(request, view);
  const uint32_t num = view.num_processes(), root = view.process_of[request.root];
  const uint32_t me = view.Before(view.self, root);  // distance from the root
  for (uint32_t have = 1; have < num; have *= 2) {
    if (me < have && me + have < num) plan.Send(view.After(root, me + have));
    if (me >= have && me < 2 * have) plan.Receive(view.After(root, me - have));
    plan.EndStage();
  }
  return plan.Finish();
}

}  // namespace uccl::coll
