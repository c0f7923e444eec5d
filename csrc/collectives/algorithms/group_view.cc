// Who lives where, and the bookkeeping of buffers.
#include "csrc/collectives/algorithms/group_view.h"

#include <algorithm>
#include <map>
#include <utility>

namespace uccl::coll {

std::vector<Run> RunsOf(const std::vector<uint32_t>& members) {
  std::vector<Run> runs;
  for (uint32_t m : members) {
    if (!runs.empty() && runs.back().end == m) {
      ++runs.back().end;
    } else {
      runs.push_back({m, m + 1});
    }
  }
  return runs;
}

GroupView::GroupView(const PlanRequest& request, const std::vector<Member>& group,
                     ProcessId self_id) {
  std::map<ProcessId, uint32_t> index;
  for (uint32_t m = 0; m < group.size(); ++m) {
    const ProcessId id = group[m].process;
    const auto [it, added] = index.emplace(id, num_processes());
    if (added) {
      Process process;
      process.id = id;
      const auto number = static_cast<size_t>(ToInt(id));
      if (number < request.hosts.size()) process.host = request.hosts[number];
      processes.push_back(std::move(process));
    }
    process_of.push_back(it->second);
    local_of.push_back(processes[it->second].size());
    processes[it->second].members.push_back(m);
  }
  for (Process& process : processes) process.runs = RunsOf(process.members);
  if (const auto it = index.find(self_id); it != index.end()) self = it->second;
}

bool GroupView::any_shared() const {
  return std::any_of(processes.begin(), processes.end(),
                     [](const Process& p) { return p.size() > 1; });
}

Slice Scratch::Take(uint64_t bytes, bool wide) {
  // Whole cache lines, so that neighbours that different threads reduce share none.
  constexpr uint64_t kLine = 64;
  const Slice slice{BufferKind::kScratch, 0, schedule_->scratch_bytes, bytes, wide};
  schedule_->scratch_bytes += (bytes + kLine - 1) / kLine * kLine;
  return slice;
}

Slice Part(const Slice& slice, uint64_t offset, uint64_t bytes) {
  return {slice.kind, slice.local, slice.offset + offset, bytes, slice.wide};
}

void LocalSpread::AddCopies(Stage* stage) {
  for (const Slice& slice : received_) {
    for (uint32_t i = 1; i < num_locals_; ++i) {
      stage->copies.push_back({slice, Output(i, slice.offset, slice.bytes)});
    }
  }
  received_.clear();
}

void LocalSpread::Finish(Schedule* schedule) {
  Stage stage;
  AddCopies(&stage);
  if (!stage.copies.empty()) schedule->stages.push_back(std::move(stage));
}

}  // namespace uccl::coll
