// All-reduce over nested groups of processes, the common part of several algorithms.
//
// Going up, the processes of a block divide the vector among themselves; each receives its part of
// the partial results that the smaller blocks inside have formed, and reduces them. Going down, the
// finished parts are handed back the same way. With one level this is a reduce-scatter and an
// all-gather, with blocks that double it is recursive halving and doubling (Rabenseifner,
// "Optimization of collective reduction operations", ICCS'04), with a level of hosts it is
// hierarchical.
//
// A block forms the partial results that it owns in the tree of reduce.h, whichever ranks it holds,
// so the result keeps its bits for every layout and any number of processes. Blocks of ranks
// aligned to powers of two own one, and then no step sends more than its part; others send a few.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/collectives/algorithms/group_view.h"
#include "csrc/collectives/schedule.h"

namespace uccl::coll {

using Block = std::vector<uint32_t>;  // indices of processes
// From one block per process to one of all; each block is a union of blocks of the level before.
using BlockLevels = std::vector<std::vector<Block>>;

enum class Division : uint8_t {
  kSplit,      // the processes of a block divide the vector
  kReplicate,  // each has all of it: fewer steps, more bytes
};

Schedule LayeredAllReduce(const PlanRequest& request, const GroupView& view,
                          const BlockLevels& levels, Division division);

}  // namespace uccl::coll
