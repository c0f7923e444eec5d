// What one process does in one operation, as pure data: who sends which bytes to whom, what is
// copied and reduced here, and in which order. A function of the group, the sizes and this process
// alone, so it can be checked without running it (schedule_test.cc executes it in a simulator of
// its own).
//
// Cost per process, with n ranks on P processes, L of them here, payload of s bytes per rank:
//   all_to_all          one step; each rank sends s/n to each other rank.
//   all_reduce, direct  one step; each rank sends s to each other process, every process reduces
//   all. all_reduce, split   two steps; each rank sends s/P to each other process, which reduces
//   its part and
//                       sends s/P to each other process: L*s*(P-1)/P + s*(P-1)/P bytes leave each
//                       process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/collectives/description.h"
#include "csrc/collectives/dtype.h"

namespace uccl::coll {

struct Member {
  int64_t device = -1;  // jax.Device.id
  ProcessId process{};
  bool operator==(const Member&) const = default;
};

// kZero: zeros, as the source of a copy.
enum class BufferKind : uint8_t { kInput, kOutput, kScratch, kZero };

// Bytes [offset, offset + bytes) of a buffer. `local` counts the group's members on this process,
// in group order; it is 0 for the scratch buffer, of which there is one per operation and process.
struct Slice {
  BufferKind kind{};
  uint32_t local = 0;
  uint64_t offset = 0, bytes = 0;
};

// One message. `from` and `to` name it on both ends (with the stage): member indices, or for
// messages between processes as a whole the index of the process's first member.
struct Transfer {
  ProcessId peer{};
  uint32_t from = 0, to = 0;
  Slice slice;
};
struct Copy {
  Slice from, to;
  uint32_t source = 0, target = 0;  // the members, for a ragged exchange
};
// to[k] = tree reduction of `from`, in group order; all slices have the same size.
struct Reduction {
  std::vector<Slice> from, to;
};

// Within a stage sends, receives and copies are independent. Reductions run when all of them are
// done, and the next stage starts when the reductions are done. In the first stage an item may
// start as soon as the local ranks whose buffers it names have arrived; later stages start with all
// of them present.
struct Stage {
  std::vector<Transfer> sends, receives;
  std::vector<Copy> copies;
  std::vector<Reduction> reductions;
};

struct Schedule {
  uint64_t scratch_bytes = 0;
  std::vector<Stage> stages;
};

// What is to be done, alike on all members.
//   kind             input of a rank      output of a rank, n members
//   kAllToAll        [n, c]               [n, c]: row r of the input goes to member r
//   kAllReduce       [c]                  [c]: reduction of all inputs
//   kAllGather       [c]                  [n, c]: everybody's input
//   kReduceScatter   [n, c]               [c]: reduction of everybody's row for this rank
//   kPermute         [c]                  [c]: the input of the member that `permutation` says, or
//                                         zeros
//   kBroadcast       [c]                  [c]: the input of member `root`
//   kRaggedAllToAll  [rows, c]            [rows, c]: only who talks to whom; offsets and sizes are
//                                         0 here and filled in when a rank calls
//   kBarrier         nothing              nothing
struct PlanRequest {
  OpKind kind{};
  DType dtype{};
  ReduceOp reduction{};
  bool any_order = false;            // the order of a reduction is free; otherwise that of reduce.h
  uint64_t elements = 0;             // of one rank's input
  std::vector<int64_t> permutation;  // source and target member of each pair, one after the other
  uint32_t root = 0;
  // All-reduces up to this size in one step.
  uint64_t direct_max_bytes = 0;
};
Schedule MakeSchedule(const PlanRequest& request, const std::vector<Member>& group, ProcessId self);

}  // namespace uccl::coll
