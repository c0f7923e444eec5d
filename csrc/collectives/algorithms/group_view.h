// A group of ranks seen from one process, and the slices and scratch space that algorithms name.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/collectives/schedule.h"

namespace uccl::coll {

// Members [begin, end), which are neighbours in the group.
struct Run {
  uint32_t begin = 0, end = 0;
  uint32_t size() const { return end - begin; }
  bool operator==(const Run&) const = default;
};
// The maximal runs of some members, given in ascending order.
std::vector<Run> RunsOf(const std::vector<uint32_t>& members);

struct GroupView {
  struct Process {
    ProcessId id{};
    int32_t host = 0;
    std::vector<uint32_t> members;  // ascending
    std::vector<Run> runs;          // the same
    uint32_t first() const { return members[0]; }
    uint32_t size() const { return static_cast<uint32_t>(members.size()); }
  };

  GroupView(const PlanRequest& request, const std::vector<Member>& group, ProcessId self_id);

  uint32_t num_members() const { return static_cast<uint32_t>(process_of.size()); }
  uint32_t num_processes() const { return static_cast<uint32_t>(processes.size()); }
  const Process& me() const { return processes[self]; }
  uint32_t num_locals() const { return me().size(); }
  bool is_local(uint32_t member) const { return process_of[member] == self; }
  // The process `distance` further in a ring.
  uint32_t After(uint32_t process, uint32_t distance) const {
    return static_cast<uint32_t>((uint64_t{process} + distance) % num_processes());
  }
  uint32_t Before(uint32_t process, uint32_t distance) const {
    return After(process, num_processes() - distance % num_processes());
  }
  // Messages between this process and another one as a whole.
  Transfer Sending(uint32_t to, const Slice& slice, uint32_t part = 0) const {
    return {processes[to].id, me().first(), processes[to].first(), slice, part, true};
  }
  Transfer Receiving(uint32_t from, const Slice& slice, uint32_t part = 0) const {
    return {processes[from].id, processes[from].first(), me().first(), slice, part, true};
  }
  // Whether some process has several members.
  bool any_shared() const;

  std::vector<Process> processes;    // in order of appearance
  std::vector<uint32_t> process_of;  // member -> index in `processes`
  std::vector<uint32_t> local_of;    // member -> index among its process's members
  uint32_t self = 0;                 // index in `processes`
};

inline Slice Input(uint32_t local, uint64_t offset, uint64_t bytes) {
  return {BufferKind::kInput, local, offset, bytes};
}
inline Slice Output(uint32_t local, uint64_t offset, uint64_t bytes) {
  return {BufferKind::kOutput, local, offset, bytes};
}

// Hands out a schedule's scratch buffer, piece after piece.
class Scratch final {
 public:
  explicit Scratch(Schedule* schedule) : schedule_(schedule) {}
  Slice Take(uint64_t bytes, bool wide = false);

 private:
  Schedule* const schedule_;
};

// Bytes [offset, offset + bytes) of a slice.
Slice Part(const Slice& slice, uint64_t offset, uint64_t bytes);

// Copies slices of output 0 into the other outputs of this process, one stage after they came: what
// is sent to a process is sent once.
class LocalSpread final {
 public:
  explicit LocalSpread(uint32_t num_locals) : num_locals_(num_locals) {}
  void Received(const Slice& slice) { received_.push_back(slice); }
  void AddCopies(Stage* stage);
  // What is left, in a stage of its own.
  void Finish(Schedule* schedule);

 private:
  const uint32_t num_locals_;
  std::vector<Slice> received_;
};

}  // namespace uccl::coll
