// What one process does in one operation, as pure data: who sends which bytes to whom, what is
// copied and reduced here, and in which order. A function of the group, the sizes and this process
// alone, so that it can be checked (schedule_checker.h) and priced (cost_model.h) without running
// it. Which algorithms there are is the table in algorithms/registry.h.
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
  // Holds float32 partial results of a 16-bit type, so that the one rounding is the last one.
  bool wide = false;
};
inline constexpr uint64_t kWideBytes = 4;
inline bool Overlap(const Slice& a, const Slice& b) {
  return a.kind == b.kind && a.local == b.local && a.offset < b.offset + b.bytes &&
         b.offset < a.offset + a.bytes;
}

// One message. `from`, `to` and `part` name it on both ends (with the stage): member indices, or
// for messages between processes as a whole the index of the process's first member; `part` counts
// the messages between the same two.
struct Transfer {
  ProcessId peer{};
  uint32_t from = 0, to = 0;
  Slice slice;
  uint32_t part = 0;
  // Holds what all ranks of the sending process have contributed, so none of them may be late.
  bool of_process = false;
  // Of a receive: reductions of this stage read each of its bytes at most once, and nothing else
  // does (schedule_reads.h). So they may as well read them where the sender has them.
  bool read_once = false;
};
// Most stages and messages between the same two members in a stage, so that both fit into a tag.
inline constexpr uint32_t kMaxStages = 1u << 16, kMaxParts = 1u << 16;
struct Copy {
  Slice from, to;
  uint32_t source = 0, target = 0;  // the members, for a ragged exchange
};
// to[k] = tree reduction of `from`, in this order; all slices have the same number of elements.
struct Reduction {
  std::vector<Slice> from, to;
};

// Within a stage sends, receives and copies are independent. Reductions begin when the receives and
// copies are done, in an order: a later one may read what an earlier one wrote, and none writes
// what is sent in this stage. The next stage starts when the reductions and the sends are done. In
// the first stage an item may start as soon as the local ranks whose buffers it names have arrived;
// later stages start with all of them present.
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
  // By process number: which host it is on. Empty: all on one.
  std::vector<int32_t> hosts;
};

}  // namespace uccl::coll
