// A group of host threads in which kLaneCount neighbours form lanes, as a warp's do on a GPU: it
// runs the paths of kernels that exchange values.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/cuda/lanes.h"
#include "csrc/fifo/thread_group.h"

namespace uccl::cuda {

template <uint32_t kLaneCount>
class LaneGroup final {
 public:
  // `values` is shared by the group: one slot for each thread.
  LaneGroup(fifo::HostGroup* group, std::vector<uint32_t>* values)
      : group_(group), values_(values) {}
  uint32_t rank() const { return group_->rank(); }
  uint32_t size() const { return group_->size(); }
  uint32_t index() const { return group_->index(); }
  uint32_t count() const { return group_->count(); }
  bool IsLeader() const { return group_->IsLeader(); }
  void Sync() { group_->Sync(); }
  template <class T>
  T Broadcast(T value) {
    return group_->Broadcast(value);
  }

  uint32_t LaneMax(uint32_t value) {
    std::vector<uint32_t>& values = *values_;
    values[rank()] = value;
    Sync();
    const uint32_t first = rank() / kLaneCount * kLaneCount;
    for (uint32_t lane = first; lane < first + kLaneCount; ++lane) {
      if (values[lane] > value) value = values[lane];
    }
    Sync();  // nobody writes the next one before all have read this one
    return value;
  }

 private:
  fifo::HostGroup* group_;
  std::vector<uint32_t>* values_;
};

template <uint32_t kLaneCount>
inline constexpr uint32_t LanesOf<LaneGroup<kLaneCount>> = kLaneCount;

template <uint32_t kLaneCount>
uint32_t LaneMax(LaneGroup<kLaneCount>& group, uint32_t value) {
  return group.LaneMax(value);
}

}  // namespace uccl::cuda
