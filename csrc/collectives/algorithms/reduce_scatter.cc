// Reduce-scatter in the order of reduce.h: row r of everybody's input, reduced, is member r's
// output. The ring is in ring.cc.
#include <utility>

#include "csrc/collectives/algorithms/reduction_tree.h"
#include "csrc/collectives/algorithms/registry.h"
#include "csrc/collectives/dtype.h"

namespace uccl::coll {
namespace {

uint64_t RowBytes(const PlanRequest& request, const GroupView& view) {
  return request.elements / view.num_members() * DTypeBytes(request.dtype);
}

}  // namespace

// Each rank sends a row to each rank elsewhere: L*(n-L) messages and rows leave each process.
Schedule ReduceScatterDirect(const PlanRequest& request, const GroupView& view) {
  const uint64_t row = RowBytes(request, view);
  Schedule schedule;
  Scratch scratch(&schedule);
  Stage stage;
  for (uint32_t i = 0; i < view.num_locals(); ++i) {
    const uint32_t me = view.me().members[i];
    Reduction reduction;
    for (uint32_t m = 0; m < view.num_members(); ++m) {
      if (view.is_local(m)) {
        reduction.from.push_back(Input(view.local_of[m], me * row, row));
        continue;
      }
      const ProcessId peer = view.processes[view.process_of[m]].id;
      reduction.from.push_back(scratch.Take(row));
      stage.receives.push_back({peer, m, me, reduction.from.back()});
      stage.sends.push_back({peer, me, m, Input(i, m * row, row)});
    }
    reduction.to.push_back(Output(i, 0, row));
    stage.reductions.push_back(std::move(reduction));
  }
  schedule.stages.push_back(std::move(stage));
  return schedule;
}

// n-L rows leave each process, in P-1 messages; more where its ranks are no subtree, or those of
// the receiver no neighbours.
Schedule ReduceScatterPartials(const PlanRequest& request, const GroupView& view) {
  const uint64_t row = RowBytes(request, view);
  const uint64_t row_elements = request.elements / view.num_members();
  const bool wide = AccumulatesWide(request.dtype, request.reduction);
  const uint32_t n = view.num_members();
  Schedule schedule;
  Scratch scratch(&schedule);
  Stage local, stage;
  bool anybody = false;

  // What leaves: for each other process, each of this one's nodes, each run of the other's rows.
  const std::vector<TreeNode> nodes = MaximalNodes(n, view.me().runs);
  for (uint32_t step = 1; step < view.num_processes(); ++step) {
    const uint32_t to = view.After(view.self, step);
    const GroupView::Process& peer = view.processes[to];
    uint32_t part = 0;
    for (const TreeNode& node : nodes) {
      for (const Run& run : peer.runs) {
        NodeValues inputs;
        for (uint32_t m = node.lo; m < node.hi; ++m)
          inputs[{m, m + 1}] = Input(view.local_of[m], run.begin * row, run.size() * row);
        TreeReducer reducer(request, run.size() * row_elements, &scratch, &local.reductions);
        const Slice slice = node.size() == 1 ? inputs[node] : reducer.Reduce(node, inputs);
        stage.sends.push_back(view.Sending(to, slice, part++));
      }
    }
  }

  // What comes, row by row of this process.
  std::vector<NodeValues> values(view.num_locals());
  for (uint32_t i = 0; i < view.num_locals(); ++i) {
    for (uint32_t j = 0; j < view.num_locals(); ++j) {
      const uint32_t m = view.me().members[j];
      values[i][{m, m + 1}] = Input(j, view.me().members[i] * row, row);
    }
  }
  for (uint32_t step = 1; step < view.num_processes(); ++step) {
    const uint32_t from = view.Before(view.self, step);
    const GroupView::Process& peer = view.processes[from];
    uint32_t part = 0;
    for (const TreeNode& node : MaximalNodes(n, peer.runs)) {
      const bool wide_node = wide && node.size() > 1;
      const uint64_t bytes = wide_node ? row_elements * kWideBytes : row;
      for (const Run& run : view.me().runs) {
        const Slice slice = scratch.Take(run.size() * bytes, wide_node);
        stage.receives.push_back(view.Receiving(from, slice, part++));
        for (uint32_t m = run.begin; m < run.end; ++m)
          values[view.local_of[m]][node] = Part(slice, (m - run.begin) * bytes, bytes);
      }
    }
  }
  TreeReducer reducer(request, row_elements, &scratch, &stage.reductions);
  for (uint32_t i = 0; i < view.num_locals(); ++i)
    reducer.Reduce({0, n}, values[i], {Output(i, 0, row)});

  // Stages are counted alike everywhere: the local one is there when anybody needs it.
  for (const GroupView::Process& process : view.processes) {
    for (const TreeNode& node : MaximalNodes(n, process.runs)) anybody |= node.size() > 1;
  }
  if (anybody && view.num_processes() > 1) schedule.stages.push_back(std::move(local));
  schedule.stages.push_back(std::move(stage));
  return schedule;
}

}  // namespace uccl::coll
