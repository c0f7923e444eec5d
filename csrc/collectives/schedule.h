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
#include "csrc/collectives/dtype.h"

namespace uccl::coll {

struct Member {
  int64_t device = -1;  // jax.Device.id
  ProcessId process{};
  bool operator==(const Member&) const = default;
};

enum class BufferKind : uint8_t { kInput, kOutput, kScratch };

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

// Payload `bytes` per rank, a multiple of the group size: chunk r of a member's input goes to
// member r.
Schedule AllToAllSchedule(const std::vector<Member>& group, ProcessId self, uint64_t bytes);

// `count` elements of `element_bytes` per rank. Up to `direct_max_bytes` in one step.
Schedule AllReduceSchedule(const std::vector<Member>& group, ProcessId self, uint64_t count,
                           uint64_t element_bytes, uint64_t direct_max_bytes);

}  // namespace uccl::coll
