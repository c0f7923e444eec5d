// All-reduce. All of these keep the tree of reduce.h; the ring is in ring.cc.
#include <algorithm>
#include <utility>

#include "csrc/collectives/algorithms/layered_all_reduce.h"
#include "csrc/collectives/algorithms/registry.h"
#include "csrc/collectives/dtype.h"

namespace uccl::coll {
namespace {

std::vector<Block> OneEach(const GroupView& view) {
  std::vector<Block> blocks;
  for (uint32_t p = 0; p < view.num_processes(); ++p) blocks.push_back({p});
  return blocks;
}
Block All(const GroupView& view) {
  Block all;
  for (uint32_t p = 0; p < view.num_processes(); ++p) all.push_back(p);
  return all;
}
BlockLevels OneLevel(const GroupView& view) { return {OneEach(view), {All(view)}}; }

// Blocks of 1, 2, 4, ... processes, the last one of a level perhaps shorter: the nodes of the tree
// over the processes.
BlockLevels DoublingLevels(const GroupView& view) {
  BlockLevels levels = {OneEach(view)};
  const uint32_t count = view.num_processes();
  for (uint64_t size = 2; levels.back().size() > 1; size *= 2) {
    std::vector<Block> blocks;
    for (uint64_t begin = 0; begin < count; begin += size) {
      Block block;
      for (uint64_t p = begin; p < std::min<uint64_t>(begin + size, count); ++p)
        block.push_back(static_cast<uint32_t>(p));
      blocks.push_back(std::move(block));
    }
    levels.push_back(std::move(blocks));
  }
  return levels;
}

BlockLevels HostLevels(const GroupView& view) {
  std::vector<Block> hosts;
  for (uint32_t p = 0; p < view.num_processes(); ++p) {
    const auto same = [&](const Block& b) {
      return view.processes[b[0]].host == view.processes[p].host;
    };
    const auto it = std::find_if(hosts.begin(), hosts.end(), same);
    if (it == hosts.end()) {
      hosts.push_back({p});
    } else {
      it->push_back(p);
    }
  }
  BlockLevels levels = OneLevel(view);
  const bool between = hosts.size() > 1 && hosts.size() < view.num_processes();
  if (between) levels.insert(levels.begin() + 1, std::move(hosts));
  return levels;
}

// Bytes [offset, offset + bytes) of everybody's vector. Those of remote members are in scratch.
Reduction ReduceBytes(const GroupView& view, uint64_t offset, uint64_t bytes, Schedule* schedule) {
  Reduction reduction;
  Scratch scratch(schedule);
  for (uint32_t m = 0; m < view.num_members(); ++m) {
    reduction.from.push_back(view.is_local(m) ? Input(view.local_of[m], offset, bytes)
                                              : scratch.Take(bytes));
  }
  for (uint32_t i = 0; i < view.num_locals(); ++i) reduction.to.push_back(Output(i, offset, bytes));
  return reduction;
}

Schedule OneProcess(const PlanRequest& request, const GroupView& view) {
  Schedule schedule;
  Stage stage;
  const uint64_t bytes = request.elements * DTypeBytes(request.dtype);
  stage.reductions.push_back(ReduceBytes(view, 0, bytes, &schedule));
  schedule.stages.push_back(std::move(stage));
  return schedule;
}

// Process p reduces `part(p)` (offset and bytes) of every rank's vector.
template <class PartOf>
Stage RawStage(const GroupView& view, const PartOf& part, Schedule* schedule) {
  Stage stage;
  for (uint32_t step = 1; step < view.num_processes(); ++step) {
    const GroupView::Process& peer = view.processes[view.After(view.self, step)];
    const auto [offset, bytes] = part(view.After(view.self, step));
    if (bytes == 0) continue;
    for (uint32_t i = 0; i < view.num_locals(); ++i) {
      stage.sends.push_back({peer.id, view.me().members[i], peer.first(), Input(i, offset, bytes)});
    }
  }
  const auto [offset, bytes] = part(view.self);
  if (bytes == 0) return stage;
  stage.reductions.push_back(ReduceBytes(view, offset, bytes, schedule));
  for (uint32_t m = 0; m < view.num_members(); ++m) {
    if (view.is_local(m)) continue;
    const ProcessId peer = view.processes[view.process_of[m]].id;
    stage.receives.push_back({peer, m, view.me().first(), stage.reductions[0].from[m]});
  }
  return stage;
}

}  // namespace

// L*s*(P-1) bytes leave each process, in L*(P-1) messages.
Schedule AllReduceDirect(const PlanRequest& request, const GroupView& view) {
  const uint64_t bytes = request.elements * DTypeBytes(request.dtype);
  Schedule schedule;
  const auto part = [&](uint32_t) { return std::pair<uint64_t, uint64_t>{0, bytes}; };
  schedule.stages.push_back(RawStage(view, part, &schedule));
  return schedule;
}

// (L + 1)*s*(P-1)/P bytes leave each process, in (L + 1)*(P-1) messages.
Schedule AllReduceSplit(const PlanRequest& request, const GroupView& view) {
  const uint64_t count = request.elements, element = DTypeBytes(request.dtype);
  const uint32_t num = view.num_processes();
  const auto part = [&](uint32_t p) {
    const uint64_t begin = count * p / num, end = count * (p + 1) / num;
    return std::pair<uint64_t, uint64_t>{begin * element, (end - begin) * element};
  };
  Schedule schedule;
  schedule.stages.push_back(RawStage(view, part, &schedule));
  if (num == 1) return schedule;
  LocalSpread spread(view.num_locals());
  Stage gather;
  const auto [my_offset, my_bytes] = part(view.self);
  for (uint32_t step = 1; step < num; ++step) {
    const uint32_t p = view.After(view.self, step);
    if (my_bytes > 0) gather.sends.push_back(view.Sending(p, Output(0, my_offset, my_bytes)));
    const auto [offset, bytes] = part(p);
    if (bytes == 0) continue;
    gather.receives.push_back(view.Receiving(p, Output(0, offset, bytes)));
    spread.Received(Output(0, offset, bytes));
  }
  schedule.stages.push_back(std::move(gather));
  spread.Finish(&schedule);
  return schedule;
}

// s*(P-1) bytes leave each process, in P-1 messages; more where its ranks are no subtree.
Schedule AllReducePartials(const PlanRequest& request, const GroupView& view) {
  if (view.num_processes() == 1) return OneProcess(request, view);
  return LayeredAllReduce(request, view, OneLevel(view), Division::kReplicate);
}

// s*log2(P) bytes leave each process, in log2(P) messages, likewise.
Schedule AllReduceDoubling(const PlanRequest& request, const GroupView& view) {
  if (view.num_processes() == 1) return OneProcess(request, view);
  return LayeredAllReduce(request, view, DoublingLevels(view), Division::kReplicate);
}

// 2*s*(P-1)/P bytes leave each process, in 2*log2(P) messages, likewise.
Schedule AllReduceHalving(const PlanRequest& request, const GroupView& view) {
  if (view.num_processes() == 1) return OneProcess(request, view);
  return LayeredAllReduce(request, view, DoublingLevels(view), Division::kSplit);
}

// With H hosts of Q processes: 2*s*(Q-1)/Q bytes to processes of the same host and 2*s*(H-1)/(H*Q)
// to other hosts leave each process, in 2*(Q-1) and 2*(H-1) messages, likewise.
Schedule AllReduceTwoLevel(const PlanRequest& request, const GroupView& view) {
  if (view.num_processes() == 1) return OneProcess(request, view);
  return LayeredAllReduce(request, view, HostLevels(view), Division::kSplit);
}

}  // namespace uccl::coll
