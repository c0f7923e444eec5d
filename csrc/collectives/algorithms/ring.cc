// Reductions along a ring of processes (Patarasuk and Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", JPDC 2009). Each part is added up in the order of the
// ring from another start, so these are for where the order does not matter.
#include <algorithm>
#include <utility>

#include "csrc/collectives/algorithms/reduction_tree.h"
#include "csrc/collectives/algorithms/registry.h"
#include "csrc/collectives/dtype.h"

namespace uccl::coll {
namespace {

// What one process ends up with. On its way part q starts behind process q, grows at every process
// and ends at q.
struct RingPart {
  uint64_t elements = 0;
  // Of input 0; the same of the other ranks' inputs. One after the other they are the part.
  std::vector<Slice> runs;
};

// Adds stages that leave part `self` reduced. `part_of(q)` is part q, and `target(run)` says where
// the result of a run of this process's part goes.
template <class PartOf, class Target>
void ReduceAlongRing(const PlanRequest& request, const GroupView& view, const PartOf& part_of,
                     const Target& target, Schedule* schedule) {
  const uint64_t element = DTypeBytes(request.dtype);
  const bool wide = AccumulatesWide(request.dtype, request.reduction);
  const uint64_t width = wide ? kWideBytes : element;
  const uint32_t num = view.num_processes();
  uint64_t largest = 0;
  for (uint32_t q = 0; q < num; ++q) largest = std::max(largest, part_of(q).elements);
  Scratch scratch(schedule);
  // In turn: while one is sent, the next is added up.
  const Slice sums[2] = {scratch.Take(largest * width, wide), scratch.Take(largest * width, wide)};
  const Slice received = scratch.Take(largest * width, wide);

  // One reduction for each run of the part: what came (if anything) and the ranks' inputs.
  const auto add = [&](uint32_t q, const Slice& sum, bool came, bool last, Stage* stage) {
    uint64_t at = 0;
    const RingPart part = part_of(q);
    for (const Slice& run : part.runs) {
      const uint64_t bytes = run.bytes / element * width;
      Reduction reduction;
      if (came) reduction.from.push_back(Part(received, at, bytes));
      for (uint32_t i = 0; i < view.num_locals(); ++i)
        reduction.from.push_back(Input(i, run.offset, run.bytes));
      reduction.to = last ? target(run) : std::vector<Slice>{Part(sum, at, bytes)};
      at += bytes;
      stage->reductions.push_back(std::move(reduction));
    }
  };
  const uint32_t next = view.After(view.self, 1), previous = view.Before(view.self, 1);
  Stage first;
  add(previous, sums[0], /*came=*/false, /*last=*/num == 1, &first);
  schedule->stages.push_back(std::move(first));
  for (uint32_t step = 0; step + 1 < num; ++step) {
    const uint32_t out = view.Before(view.self, 1 + step), in = view.Before(view.self, 2 + step);
    Stage stage;
    if (const uint64_t bytes = part_of(out).elements * width; bytes > 0) {
      stage.sends.push_back(view.Sending(next, Part(sums[step % 2], 0, bytes)));
    }
    if (const uint64_t bytes = part_of(in).elements * width; bytes > 0) {
      stage.receives.push_back(view.Receiving(previous, Part(received, 0, bytes)));
      add(in, sums[(step + 1) % 2], /*came=*/true, /*last=*/step + 2 == num, &stage);
    }
    schedule->stages.push_back(std::move(stage));
  }
}

}  // namespace

// 2*s*(P-1)/P bytes leave each process, in 2*(P-1) messages to its neighbour; twice the bytes in
// the first half for 16-bit sums.
Schedule AllReduceRing(const PlanRequest& request, const GroupView& view) {
  const uint64_t count = request.elements, element = DTypeBytes(request.dtype);
  const uint32_t num = view.num_processes();
  const auto slice = [&](uint32_t local, uint32_t q, BufferKind kind) {
    const uint64_t begin = count * q / num, end = count * (q + 1) / num;
    return Slice{kind, local, begin * element, (end - begin) * element};
  };
  const auto part_of = [&](uint32_t q) {
    const Slice run = slice(0, q, BufferKind::kInput);
    if (run.bytes == 0) return RingPart{};
    return RingPart{run.bytes / element, {run}};
  };
  const auto target = [&](const Slice& run) {
    std::vector<Slice> to;
    for (uint32_t i = 0; i < view.num_locals(); ++i) to.push_back(Output(i, run.offset, run.bytes));
    return to;
  };
  Schedule schedule;
  ReduceAlongRing(request, view, part_of, target, &schedule);

  LocalSpread spread(view.num_locals());
  const uint32_t next = view.After(view.self, 1), previous = view.Before(view.self, 1);
  for (uint32_t step = 0; step + 1 < num; ++step) {
    const Slice out = slice(0, view.Before(view.self, step), BufferKind::kOutput);
    const Slice in = slice(0, view.Before(view.self, 1 + step), BufferKind::kOutput);
    Stage stage;
    spread.AddCopies(&stage);
    if (out.bytes > 0) stage.sends.push_back(view.Sending(next, out));
    if (in.bytes > 0) {
      stage.receives.push_back(view.Receiving(previous, in));
      spread.Received(in);
    }
    schedule.stages.push_back(std::move(stage));
  }
  spread.Finish(&schedule);
  return schedule;
}

// s*(P-1)/P bytes leave each process, in P-1 messages to its neighbour; twice that for 16-bit sums.
Schedule ReduceScatterRing(const PlanRequest& request, const GroupView& view) {
  const uint64_t row = request.elements / view.num_members() * DTypeBytes(request.dtype);
  // A row is a run of its own: rows of a process go to different outputs.
  const auto part_of = [&](uint32_t q) {
    RingPart part;
    for (uint32_t m : view.processes[q].members) {
      part.runs.push_back(Input(0, m * row, row));
      part.elements += row / DTypeBytes(request.dtype);
    }
    return part;
  };
  const auto target = [&](const Slice& run) {
    const auto m = static_cast<uint32_t>(run.offset / row);
    return std::vector<Slice>{Output(view.local_of[m], 0, row)};
  };
  Schedule schedule;
  ReduceAlongRing(request, view, part_of, target, &schedule);
  return schedule;
}

}  // namespace uccl::coll
