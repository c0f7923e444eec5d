// All-to-all: chunk r of a member's input goes to member r.
#include <map>
#include <utility>

#include "csrc/collectives/algorithms/registry.h"
#include "csrc/collectives/dtype.h"

namespace uccl::coll {
namespace {

uint64_t ChunkBytes(const PlanRequest& request, const GroupView& view) {
  return request.elements * DTypeBytes(request.dtype) / view.num_members();
}

// Every pair of ranks.
Stage PairwiseStage(const GroupView& view, uint64_t chunk) {
  Stage stage;
  for (uint32_t i = 0; i < view.num_locals(); ++i) {
    const uint32_t me = view.me().members[i];
    // Start with the next member, so that not all ranks send to the same one first.
    for (uint32_t step = 0; step < view.num_members(); ++step) {
      const uint32_t other = (me + step) % view.num_members();
      if (view.is_local(other)) {
        stage.copies.push_back({Input(i, other * chunk, chunk),
                                Output(view.local_of[other], me * chunk, chunk), me, other});
        continue;
      }
      const ProcessId peer = view.processes[view.process_of[other]].id;
      stage.sends.push_back({peer, me, other, Input(i, other * chunk, chunk)});
      stage.receives.push_back({peer, other, me, Output(i, other * chunk, chunk)});
    }
  }
  return stage;
}

void CopyLocals(const GroupView& view, uint64_t chunk, Stage* stage) {
  for (uint32_t i = 0; i < view.num_locals(); ++i) {
    for (uint32_t j = 0; j < view.num_locals(); ++j) {
      const uint32_t from = view.me().members[i], to = view.me().members[j];
      stage->copies.push_back({Input(i, to * chunk, chunk), Output(j, from * chunk, chunk)});
    }
  }
}

// A block is what process o has for process t: for each rank of o, in order, a chunk for each rank
// of t. These two move blocks between a buffer and inputs or outputs.
void Pack(const GroupView& view, uint32_t target, uint64_t chunk, const Slice& block,
          Stage* stage) {
  uint64_t at = 0;
  for (uint32_t i = 0; i < view.num_locals(); ++i) {
    for (const Run& run : view.processes[target].runs) {
      const uint64_t bytes = run.size() * chunk;
      stage->copies.push_back({Input(i, run.begin * chunk, bytes), Part(block, at, bytes)});
      at += bytes;
    }
  }
}
void Unpack(const GroupView& view, uint32_t origin, uint64_t chunk, const Slice& block,
            Stage* stage) {
  uint64_t at = 0;
  for (uint32_t m : view.processes[origin].members) {
    for (uint32_t j = 0; j < view.num_locals(); ++j) {
      stage->copies.push_back({Part(block, at, chunk), Output(j, m * chunk, chunk)});
      at += chunk;
    }
  }
}
uint64_t BlockBytes(const GroupView& view, uint32_t origin, uint32_t target, uint64_t chunk) {
  return uint64_t{view.processes[origin].size()} * view.processes[target].size() * chunk;
}

}  // namespace

// Each rank sends s/n to each rank elsewhere: L*(n-L) messages leave each process.
Schedule AllToAllDirect(const PlanRequest& request, const GroupView& view) {
  Schedule schedule;
  schedule.stages.push_back(PairwiseStage(view, ChunkBytes(request, view)));
  return schedule;
}

// Without offsets and sizes; those come with the calls.
Schedule RaggedAllToAllDirect(const PlanRequest& /*request*/, const GroupView& view) {
  Schedule schedule;
  schedule.stages.push_back(PairwiseStage(view, 0));
  return schedule;
}

// The same bytes in P-1 messages. A process with one rank needs no copies where the ranks of the
// other one are neighbours.
Schedule AllToAllPacked(const PlanRequest& request, const GroupView& view) {
  const uint64_t chunk = ChunkBytes(request, view);
  Schedule schedule;
  Scratch scratch(&schedule);
  Stage pack, exchange, unpack;
  CopyLocals(view, chunk, &pack);
  for (uint32_t step = 1; step < view.num_processes(); ++step) {
    const uint32_t to = view.After(view.self, step), from = view.Before(view.self, step);
    const auto in_place = [&](uint32_t process) {
      return view.num_locals() == 1 && view.processes[process].runs.size() == 1;
    };
    const auto place = [&](uint32_t process) { return view.processes[process].first() * chunk; };
    const uint64_t out_bytes = BlockBytes(view, view.self, to, chunk);
    const uint64_t in_bytes = BlockBytes(view, from, view.self, chunk);
    const Slice out = in_place(to) ? Input(0, place(to), out_bytes) : scratch.Take(out_bytes);
    const Slice in = in_place(from) ? Output(0, place(from), in_bytes) : scratch.Take(in_bytes);
    if (!in_place(to)) Pack(view, to, chunk, out, &pack);
    exchange.sends.push_back(view.Sending(to, out));
    exchange.receives.push_back(view.Receiving(from, in));
    if (!in_place(from)) Unpack(view, from, chunk, in, &unpack);
  }
  schedule.stages.push_back(std::move(pack));
  if (view.num_processes() > 1) schedule.stages.push_back(std::move(exchange));
  if (!unpack.copies.empty()) schedule.stages.push_back(std::move(unpack));
  return schedule;
}

// Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing
// systems", IEEE TPDS 1997, section 3: a block whose target is d processes further moves by 2^k in
// step k for every bit k of d. About s*L*log2(P)/2 bytes leave each process, in log2(P) messages.
Schedule AllToAllBruck(const PlanRequest& request, const GroupView& view) {
  const uint64_t chunk = ChunkBytes(request, view);
  const uint32_t num = view.num_processes();
  Schedule schedule;
  Scratch scratch(&schedule);
  using BlockName = std::pair<uint32_t, uint32_t>;  // origin, target
  // What process p sends in step k, in this order on both ends.
  const auto sent = [&](uint32_t p, uint32_t k) {
    std::vector<BlockName> blocks;
    for (uint32_t d = 1; d < num; ++d) {
      if ((d >> k & 1) == 0) continue;
      const uint32_t origin = view.Before(p, d & ((1u << k) - 1));
      blocks.emplace_back(origin, view.After(origin, d));
    }
    return blocks;
  };
  const auto size = [&](const std::vector<BlockName>& blocks) {
    uint64_t bytes = 0;
    for (const auto& [origin, target] : blocks) bytes += BlockBytes(view, origin, target, chunk);
    return bytes;
  };

  std::map<BlockName, Slice> held;  // what came and has to go on
  Stage copies;
  CopyLocals(view, chunk, &copies);
  for (uint32_t k = 0; num > 1u << k; ++k) {
    const uint32_t to = view.After(view.self, 1u << k), from = view.Before(view.self, 1u << k);
    const std::vector<BlockName> out = sent(view.self, k), in = sent(from, k);
    const Slice out_slice = scratch.Take(size(out)), in_slice = scratch.Take(size(in));
    uint64_t at = 0;
    for (const BlockName& name : out) {
      const Slice block = Part(out_slice, at, BlockBytes(view, name.first, name.second, chunk));
      at += block.bytes;
      if (name.first == view.self) {
        Pack(view, name.second, chunk, block, &copies);
      } else {
        copies.copies.push_back({held[name], block});
        held.erase(name);
      }
    }
    Stage exchange;
    exchange.sends.push_back(view.Sending(to, out_slice));
    exchange.receives.push_back(view.Receiving(from, in_slice));
    schedule.stages.push_back(std::exchange(copies, {}));
    schedule.stages.push_back(std::move(exchange));
    at = 0;
    for (const BlockName& name : in) {
      const Slice block = Part(in_slice, at, BlockBytes(view, name.first, name.second, chunk));
      at += block.bytes;
      if (name.second == view.self) {
        Unpack(view, name.first, chunk, block, &copies);
      } else {
        held[name] = block;
      }
    }
  }
  schedule.stages.push_back(std::move(copies));
  return schedule;
}

}  // namespace uccl::coll
