// Neighbouring threads of a group that exchange a value quickly: sixteen lanes of a warp on a GPU,
// none on the host. Algorithms take LanesOf<Group> as a size, so that host groups of any size run
// them too.
#pragma once

#include <cstdint>

#include "csrc/fifo/thread_group.h"

namespace uccl::cuda {

// 1: a thread has nobody to exchange with. Otherwise it divides the size of every such group.
template <class Group>
inline constexpr uint32_t LanesOf = 1;

// The largest value of the LanesOf<Group> threads with equal rank() / LanesOf<Group>. All threads
// of the group come.
template <class Group>
UCCL_HOST_DEVICE inline uint32_t LaneMax(Group&, uint32_t value) {
  static_assert(LanesOf<Group> == 1, "this group needs a LaneMax of its own");
  return value;
}

#if defined(__CUDACC__) || defined(__HIPCC__)

// Half of a warp, and at most half of an AMD wave: one number serves both.
inline constexpr uint32_t kWarpLanes = 16;
template <>
inline constexpr uint32_t LanesOf<fifo::BlockGroup> = kWarpLanes;
template <>
inline constexpr uint32_t LanesOf<fifo::WarpGroup> = kWarpLanes;

UCCL_DEVICE inline uint32_t WarpLaneMax(uint32_t value) {
  for (int distance = kWarpLanes / 2; distance > 0; distance /= 2) {
#if defined(__CUDACC__)
    const uint32_t other = __shfl_xor_sync(0xffffffffu, value, distance);
#else
    const uint32_t other = __shfl_xor(value, distance);
#endif
    value = value > other ? value : other;
  }
  return value;
}
// The block must consist of whole warps.
UCCL_DEVICE inline uint32_t LaneMax(fifo::BlockGroup&, uint32_t v) { return WarpLaneMax(v); }
UCCL_DEVICE inline uint32_t LaneMax(fifo::WarpGroup&, uint32_t v) { return WarpLaneMax(v); }

#endif

}  // namespace uccl::cuda
