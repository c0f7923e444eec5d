// The kernel of resolve.h, for any group of threads; one group only. No barrier: the end of the
// kernel orders the addresses before what follows on the stream.
#pragma once

#include "csrc/cuda/resolve.h"
#include "csrc/fifo/native_memory.h"
#include "csrc/fifo/thread_group.h"

namespace uccl::cuda {

template <class Group>
UCCL_HOST_DEVICE void Resolve(Group& group, const ResolveParams& p) {
  for (uint64_t i = group.rank(); i < p.count; i += group.size()) {
    p.to[i] = p.buffers[p.places[i].buffer] + p.places[i].offset;
  }
  if (p.uses != nullptr && group.IsLeader()) ++*p.uses;
  // Release, system, so that the host may look at the word at any time; nothing hangs on it.
  if (p.mark != nullptr && group.IsLeader())
    fifo::NativeMemory().StoreReleaseSystem(p.mark, *p.mark + 1);
}

}  // namespace uccl::cuda
