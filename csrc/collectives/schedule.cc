// The schedules of schedule.h, from one view of who lives where.
#include "csrc/collectives/schedule.h"

#include <algorithm>

namespace uccl::coll {
namespace {

// A group seen from one process: which members are here, and each process's first member.
struct View {
  std::vector<int64_t> local_of;    // member -> index among the local ones, -1 for remote members
  std::vector<uint32_t> processes;  // first member of each process, in order of appearance
  std::vector<uint32_t> locals;     // members on this process
  size_t self_process = 0;          // index into `processes`

  View(const std::vector<Member>& group, ProcessId self) {
    for (uint32_t m = 0; m < group.size(); ++m) {
      const bool seen = std::any_of(processes.begin(), processes.end(), [&](uint32_t first) {
        return group[first].process == group[m].process;
      });
      if (!seen) {
        if (group[m].process == self) self_process = processes.size();
        processes.push_back(m);
      }
      const bool local = group[m].process == self;
      local_of.push_back(local ? static_cast<int64_t>(locals.size()) : -1);
      if (local) locals.push_back(m);
    }
  }
  uint32_t num_locals() const { return static_cast<uint32_t>(locals.size()); }
};

Slice Input(uint32_t local, uint64_t offset, uint64_t bytes) {
  return {BufferKind::kInput, local, offset, bytes};
}
Slice Output(uint32_t local, uint64_t offset, uint64_t bytes) {
  return {BufferKind::kOutput, local, offset, bytes};
}
Slice Scratch(uint64_t offset, uint64_t bytes) { return {BufferKind::kScratch, 0, offset, bytes}; }

// Adds the reduction of bytes [offset, offset + bytes) of every member's vector. Remote members'
// parts are in scratch, one after the other in group order; reserves that space.
Reduction ReduceRange(const View& view, uint64_t offset, uint64_t bytes, Schedule* schedule) {
  Reduction reduction;
  for (int64_t local : view.local_of) {
    if (local >= 0) {
      reduction.from.push_back(Input(static_cast<uint32_t>(local), offset, bytes));
    } else {
      reduction.from.push_back(Scratch(schedule->scratch_bytes, bytes));
      schedule->scratch_bytes += bytes;
    }
  }
  for (uint32_t i = 0; i < view.num_locals(); ++i) reduction.to.push_back(Output(i, offset, bytes));
  return reduction;
}

// Every pair of ranks: chunk r of a member's input goes to member r.
Stage PairwiseStage(const View& view, const std::vector<Member>& group, uint64_t chunk) {
  Stage stage;
  for (uint32_t i = 0; i < view.num_locals(); ++i) {
    const uint32_t me = view.locals[i];
    // Start with the next member, so that not all ranks send to the same one first.
    for (uint32_t step = 0; step < group.size(); ++step) {
      const auto other = static_cast<uint32_t>((me + step) % group.size());
      if (view.local_of[other] >= 0) {
        const auto j = static_cast<uint32_t>(view.local_of[other]);
        stage.copies.push_back(
            {Input(i, other * chunk, chunk), Output(j, me * chunk, chunk), me, other});
        continue;
      }
      const ProcessId peer = group[other].process;
      stage.sends.push_back({peer, me, other, Input(i, other * chunk, chunk)});
      stage.receives.push_back({peer, other, me, Output(i, other * chunk, chunk)});
    }
  }
  return stage;
}

// Payload `bytes` per rank, a multiple of the group size: chunk r of a member's input goes to
// member r.
Schedule AllToAllSchedule(const std::vector<Member>& group, ProcessId self, uint64_t bytes) {
  const View view(group, self);
  const uint64_t chunk = bytes / group.size();
  Schedule schedule;
  if (chunk > 0) schedule.stages.push_back(PairwiseStage(view, group, chunk));
  return schedule;
}

// `count` elements of `element_bytes` per rank. Up to `direct_max_bytes` in one step.
Schedule AllReduceSchedule(const std::vector<Member>& group, ProcessId self, uint64_t count,
                           uint64_t element_bytes, uint64_t direct_max_bytes) {
  const View view(group, self);
  const size_t num_processes = view.processes.size();
  const uint64_t bytes = count * element_bytes;
  Schedule schedule;
  if (bytes == 0) return schedule;

  // Process number p reduces elements [Begin(p), Begin(p + 1)); in the direct form every process
  // reduces all.
  const bool direct = num_processes == 1 || bytes <= direct_max_bytes;
  const auto begin = [&](size_t p) {
    const uint64_t base = count / num_processes, rest = count % num_processes;
    return (p * base + std::min<uint64_t>(p, rest)) * element_bytes;
  };
  const auto part = [&](size_t p) {
    return direct ? std::pair<uint64_t, uint64_t>{0, bytes}
                  : std::pair<uint64_t, uint64_t>{begin(p), begin(p + 1) - begin(p)};
  };
  const auto [my_offset, my_bytes] = part(view.self_process);
  const uint32_t my_first = view.processes[view.self_process];

  Stage gather;
  for (size_t step = 1; step < num_processes; ++step) {
    const size_t p = (view.self_process + step) % num_processes;
    const auto [offset, size] = part(p);
    if (size == 0) continue;
    for (uint32_t i = 0; i < view.num_locals(); ++i) {
      gather.sends.push_back({group[view.processes[p]].process, view.locals[i], view.processes[p],
                              Input(i, offset, size)});
    }
  }
  if (my_bytes > 0) {
    gather.reductions.push_back(ReduceRange(view, my_offset, my_bytes, &schedule));
    for (uint32_t m = 0; m < group.size(); ++m) {
      if (view.local_of[m] >= 0) continue;
      gather.receives.push_back({group[m].process, m, my_first, gather.reductions[0].from[m]});
    }
  }
  schedule.stages.push_back(std::move(gather));
  if (direct) return schedule;

  Stage spread, copy;
  for (size_t step = 1; step < num_processes; ++step) {
    const size_t p = (view.self_process + step) % num_processes;
    const ProcessId peer = group[view.processes[p]].process;
    if (my_bytes > 0) {
      spread.sends.push_back({peer, my_first, view.processes[p], Output(0, my_offset, my_bytes)});
    }
    const auto [offset, size] = part(p);
    if (size == 0) continue;
    spread.receives.push_back({peer, view.processes[p], my_first, Output(0, offset, size)});
    for (uint32_t i = 1; i < view.num_locals(); ++i) {
      copy.copies.push_back({Output(0, offset, size), Output(i, offset, size)});
    }
  }
  schedule.stages.push_back(std::move(spread));
  if (!copy.copies.empty()) schedule.stages.push_back(std::move(copy));
  return schedule;
}

// Every member's input, `bytes` long, lands in everybody's output.
Schedule AllGatherSchedule(const std::vector<Member>& group, ProcessId self, uint64_t bytes) {
  const View view(group, self);
  Schedule schedule;
  if (bytes == 0) return schedule;
  Stage stage, spread;
  for (uint32_t m = 0; m < group.size(); ++m) {
    if (view.local_of[m] >= 0) {
      const auto i = static_cast<uint32_t>(view.local_of[m]);
      for (size_t step = 1; step < view.processes.size(); ++step) {
        const uint32_t to = view.processes[(view.self_process + step) % view.processes.size()];
        stage.sends.push_back({group[to].process, m, to, Input(i, 0, bytes)});
      }
      for (uint32_t j = 0; j < view.num_locals(); ++j) {
        stage.copies.push_back({Input(i, 0, bytes), Output(j, m * bytes, bytes)});
      }
    } else {
      const uint32_t first = view.processes[view.self_process];
      stage.receives.push_back({group[m].process, m, first, Output(0, m * bytes, bytes)});
      for (uint32_t j = 1; j < view.num_locals(); ++j) {
        spread.copies.push_back({Output(0, m * bytes, bytes), Output(j, m * bytes, bytes)});
      }
    }
  }
  schedule.stages.push_back(std::move(stage));
  if (!spread.copies.empty()) schedule.stages.push_back(std::move(spread));
  return schedule;
}

// Row r of everybody's input, reduced, is member r's output.
Schedule ReduceScatterSchedule(const std::vector<Member>& group, ProcessId self, uint64_t bytes) {
  const View view(group, self);
  const uint64_t row = bytes / group.size();
  Schedule schedule;
  if (row == 0) return schedule;
  Stage stage;
  for (uint32_t i = 0; i < view.num_locals(); ++i) {
    const uint32_t me = view.locals[i];
    Reduction reduction;
    for (uint32_t m = 0; m < group.size(); ++m) {
      if (view.local_of[m] >= 0) {
        reduction.from.push_back(Input(static_cast<uint32_t>(view.local_of[m]), me * row, row));
        continue;
      }
      reduction.from.push_back(Scratch(schedule.scratch_bytes, row));
      schedule.scratch_bytes += row;
      stage.receives.push_back({group[m].process, m, me, reduction.from.back()});
      stage.sends.push_back({group[m].process, me, m, Input(i, m * row, row)});
    }
    reduction.to.push_back(Output(i, 0, row));
    stage.reductions.push_back(std::move(reduction));
  }
  schedule.stages.push_back(std::move(stage));
  return schedule;
}

// permutation[2k] sends to permutation[2k + 1]; who receives from nobody gets zeros.
Schedule PermuteSchedule(const std::vector<Member>& group, ProcessId self,
                         const std::vector<int64_t>& permutation, uint64_t bytes) {
  const View view(group, self);
  Schedule schedule;
  if (bytes == 0) return schedule;
  Stage stage;
  std::vector<bool> receives(view.num_locals(), false);
  for (size_t k = 0; k + 1 < permutation.size(); k += 2) {
    const auto from = static_cast<uint32_t>(permutation[k]);
    const auto to = static_cast<uint32_t>(permutation[k + 1]);
    const int64_t i = view.local_of[from], j = view.local_of[to];
    if (j >= 0) receives[static_cast<size_t>(j)] = true;
    if (i >= 0 && j >= 0) {
      stage.copies.push_back(
          {Input(static_cast<uint32_t>(i), 0, bytes), Output(static_cast<uint32_t>(j), 0, bytes)});
    } else if (i >= 0) {
      stage.sends.push_back(
          {group[to].process, from, to, Input(static_cast<uint32_t>(i), 0, bytes)});
    } else if (j >= 0) {
      stage.receives.push_back(
          {group[from].process, from, to, Output(static_cast<uint32_t>(j), 0, bytes)});
    }
  }
  for (uint32_t j = 0; j < view.num_locals(); ++j) {
    if (!receives[j]) {
      stage.copies.push_back({{BufferKind::kZero, 0, 0, bytes}, Output(j, 0, bytes)});
    }
  }
  schedule.stages.push_back(std::move(stage));
  return schedule;
}

// The root's process sends to the first member of every other one.
Schedule BroadcastSchedule(const std::vector<Member>& group, ProcessId self, uint32_t root,
                           uint64_t bytes) {
  const View view(group, self);
  Schedule schedule;
  if (bytes == 0) return schedule;
  Stage stage, spread;
  if (view.local_of[root] >= 0) {
    const auto i = static_cast<uint32_t>(view.local_of[root]);
    for (uint32_t to : view.processes) {
      if (group[to].process == self) continue;
      stage.sends.push_back({group[to].process, root, to, Input(i, 0, bytes)});
    }
    for (uint32_t j = 0; j < view.num_locals(); ++j) {
      stage.copies.push_back({Input(i, 0, bytes), Output(j, 0, bytes)});
    }
  } else {
    const uint32_t first = view.processes[view.self_process];
    stage.receives.push_back({group[root].process, root, first, Output(0, 0, bytes)});
    for (uint32_t j = 1; j < view.num_locals(); ++j) {
      spread.copies.push_back({Output(0, 0, bytes), Output(j, 0, bytes)});
    }
  }
  schedule.stages.push_back(std::move(stage));
  if (!spread.copies.empty()) schedule.stages.push_back(std::move(spread));
  return schedule;
}

// One item for every pair, without offsets and sizes yet.
Schedule RaggedSchedule(const std::vector<Member>& group, ProcessId self) {
  Schedule schedule;
  schedule.stages.push_back(PairwiseStage(View(group, self), group, 0));
  return schedule;
}

// An empty message from every process to every other one, once all ranks of the process are here:
// the messages name no rank's buffer, so in the first stage they would leave with the first rank.
Schedule BarrierSchedule(const std::vector<Member>& group, ProcessId self) {
  const View view(group, self);
  const uint32_t first = view.processes[view.self_process];
  Stage stage;
  for (uint32_t other : view.processes) {
    if (other == first) continue;
    stage.sends.push_back({group[other].process, first, other, Scratch(0, 0)});
    stage.receives.push_back({group[other].process, other, first, Scratch(0, 0)});
  }
  Schedule schedule;
  schedule.stages.emplace_back();
  schedule.stages.push_back(std::move(stage));
  return schedule;
}

}  // namespace

Schedule MakeSchedule(const PlanRequest& request, const std::vector<Member>& group,
                      ProcessId self) {
  const uint64_t element = DTypeBytes(request.dtype);
  const uint64_t bytes = request.elements * element;
  switch (request.kind) {
    case OpKind::kAllToAll:
      return AllToAllSchedule(group, self, bytes);
    case OpKind::kAllReduce:
      return AllReduceSchedule(group, self, request.elements, element, request.direct_max_bytes);
    case OpKind::kAllGather:
      return AllGatherSchedule(group, self, bytes);
    case OpKind::kReduceScatter:
      return ReduceScatterSchedule(group, self, bytes);
    case OpKind::kPermute:
      return PermuteSchedule(group, self, request.permutation, bytes);
    case OpKind::kBroadcast:
      return BroadcastSchedule(group, self, request.root, bytes);
    case OpKind::kRaggedAllToAll:
      return RaggedSchedule(group, self);
    case OpKind::kBarrier:
      return BarrierSchedule(group, self);
    case OpKind::kInvalid:
      break;
  }
  return {};
}

}  // namespace uccl::coll
