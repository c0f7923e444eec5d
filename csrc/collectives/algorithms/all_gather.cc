// All-gather: every member's input, `bytes` long, lands in everybody's output.
#include <algorithm>
#include <utility>

#include "csrc/collectives/algorithms/registry.h"
#include "csrc/collectives/dtype.h"

namespace uccl::coll {
namespace {

uint64_t InputBytes(const PlanRequest& request) {
  return request.elements * DTypeBytes(request.dtype);
}

// Inputs of this process into its outputs.
void CopyLocals(const GroupView& view, uint64_t bytes, Stage* stage) {
  for (uint32_t i = 0; i < view.num_locals(); ++i) {
    for (uint32_t j = 0; j < view.num_locals(); ++j) {
      stage->copies.push_back({Input(i, 0, bytes), Output(j, view.me().members[i] * bytes, bytes)});
    }
  }
}

// Sends and receives whole blocks, the inputs of one or more processes, straight between outputs.
class BlockMover final {
 public:
  BlockMover(const GroupView& view, uint64_t bytes)
      : view_(view), bytes_(bytes), spread_(view.num_locals()) {
    // What is sent lies in output 0; a stage of copies puts it there. With one rank on every
    // process the inputs themselves are blocks.
    CopyLocals(view, bytes, &stage_);
    if (view.any_shared()) EndStage();
  }
  // `blocks`: processes whose inputs are sent.
  void Send(uint32_t to, const std::vector<uint32_t>& blocks) {
    const std::vector<Run> runs = RunsOfBlocks(blocks);
    for (uint32_t part = 0; part < runs.size(); ++part) {
      const Slice slice = schedule_.stages.empty() ? Input(0, 0, bytes_) : Place(runs[part]);
      stage_.sends.push_back(view_.Sending(to, slice, part));
    }
  }
  void Receive(uint32_t from, const std::vector<uint32_t>& blocks) {
    const std::vector<Run> runs = RunsOfBlocks(blocks);
    for (uint32_t part = 0; part < runs.size(); ++part) {
      stage_.receives.push_back(view_.Receiving(from, Place(runs[part]), part));
      came_.push_back(Place(runs[part]));
    }
  }
  void EndStage() {
    schedule_.stages.push_back(std::exchange(stage_, {}));
    for (const Slice& slice : std::exchange(came_, {})) spread_.Received(slice);
    spread_.AddCopies(&stage_);
  }
  Schedule Finish() {
    if (!stage_.copies.empty()) EndStage();
    return std::move(schedule_);
  }

 private:
  std::vector<Run> RunsOfBlocks(const std::vector<uint32_t>& blocks) const {
    std::vector<uint32_t> members;
    for (uint32_t p : blocks) {
      members.insert(members.end(), view_.processes[p].members.begin(),
                     view_.processes[p].members.end());
    }
    std::sort(members.begin(), members.end());
    return RunsOf(members);
  }
  Slice Place(const Run& run) const { return Output(0, run.begin * bytes_, run.size() * bytes_); }

  const GroupView& view_;
  const uint64_t bytes_;
  Schedule schedule_;
  Stage stage_;
  std::vector<Slice> came_;  // in this stage
  LocalSpread spread_;
};

}  // namespace

// L*s*(P-1) bytes leave each process, in L*(P-1) messages.
Schedule AllGatherDirect(const PlanRequest& request, const GroupView& view) {
  const uint64_t bytes = InputBytes(request);
  Schedule schedule;
  Stage stage;
  LocalSpread spread(view.num_locals());
  CopyLocals(view, bytes, &stage);
  for (uint32_t step = 1; step < view.num_processes(); ++step) {
    const GroupView::Process& peer = view.processes[view.After(view.self, step)];
    for (uint32_t i = 0; i < view.num_locals(); ++i)
      stage.sends.push_back({peer.id, view.me().members[i], peer.first(), Input(i, 0, bytes)});
    for (uint32_t m : peer.members) {
      const Slice to = Output(0, m * bytes, bytes);
      stage.receives.push_back({peer.id, m, view.me().first(), to});
      spread.Received(to);
    }
  }
  schedule.stages.push_back(std::move(stage));
  spread.Finish(&schedule);
  return schedule;
}

// The same bytes in P-1 messages, after a copy where a process has several ranks.
Schedule AllGatherPacked(const PlanRequest& request, const GroupView& view) {
  BlockMover mover(view, InputBytes(request));
  for (uint32_t step = 1; step < view.num_processes(); ++step) {
    mover.Send(view.After(view.self, step), {view.self});
    mover.Receive(view.Before(view.self, step), {view.Before(view.self, step)});
  }
  if (view.num_processes() > 1) mover.EndStage();
  return mover.Finish();
}

// Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing
// systems", IEEE TPDS 1997, section 4; in place, so without its last rotation. The same bytes in
// log2(P) messages.
Schedule AllGatherBruck(const PlanRequest& request, const GroupView& view) {
  const uint32_t num = view.num_processes();
  BlockMover mover(view, InputBytes(request));
  const auto blocks = [&](uint32_t first, uint32_t count) {
    std::vector<uint32_t> all;
    for (uint32_t k = 0; k < count; ++k) all.push_back(view.After(first, k));
    return all;
  };
  for (uint32_t have = 1; have < num;) {
    const uint32_t count = std::min(have, num - have);
    mover.Send(view.Before(view.self, have), blocks(view.self, count));
    const uint32_t from = view.After(view.self, have);
    mover.Receive(from, blocks(from, count));
    mover.EndStage();
    have += count;
  }
  return mover.Finish();
}

// The same bytes in P-1 messages, all of them to the next process.
Schedule AllGatherRing(const PlanRequest& request, const GroupView& view) {
  BlockMover mover(view, InputBytes(request));
  for (uint32_t step = 0; step + 1 < view.num_processes(); ++step) {
    mover.Send(view.After(view.self, 1), {view.Before(view.self, step)});
    mover.Receive(view.Before(view.self, 1), {view.Before(view.self, step + 1)});
    mover.EndStage();
  }
  return mover.Finish();
}

}  // namespace uccl::coll
