// The kernel of wait.h, for any group of threads; one group only.
#pragma once

#include "csrc/cuda/wait.h"
#include "csrc/fifo/native_memory.h"
#include "csrc/fifo/thread_group.h"

namespace uccl::cuda {
namespace internal {

// Acquire, system: pairs with the release with which the proxy raises the counter after the data of
// a message has landed. The group's Sync hands it on to the other threads, the end of the kernel to
// the kernels behind it.
struct Reached {
  fifo::NativeMemory& memory;
  const uint64_t* counter;
  uint64_t threshold;
  const uint64_t* abort;
  uint64_t& aborted;

  UCCL_HOST_DEVICE bool operator()() const {
    if (memory.LoadAcquireSystem(counter) >= threshold) return true;
    aborted = memory.LoadAcquireSystem(abort);
    return aborted != 0;
  }
};

}  // namespace internal

template <class Group>
UCCL_HOST_DEVICE void Wait(Group& group, const WaitParams& p) {
  fifo::NativeMemory memory;
  for (uint32_t i = group.rank(); i < p.count; i += group.size()) {
    const uint64_t* counter = p.counters + (p.which == nullptr ? i : p.which[i]);
    uint64_t aborted = 0;
    memory.WaitUntil(internal::Reached{memory, counter, p.thresholds[i], p.abort, aborted});
    // Every thread stores the same value. Release, device: nothing hangs on it but itself.
    if (aborted != 0) memory.StoreReleaseDevice(p.outcome, aborted);
  }
  group.Sync();
}

}  // namespace uccl::cuda
