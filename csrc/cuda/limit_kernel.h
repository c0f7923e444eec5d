// The kernel of limit.h, for any group of threads. No barrier: threads share nothing but the word.
#pragma once

#include "csrc/cuda/limit.h"
#include "csrc/cuda/memory.h"
#include "csrc/fifo/thread_group.h"

namespace uccl::cuda {

template <class Group>
UCCL_HOST_DEVICE void Limit(Group& group, const LimitParams& p) {
  const uint64_t threads = uint64_t{group.count()} * group.size();
  for (uint64_t i = uint64_t{group.index()} * group.size() + group.rank(); i < p.count;
       i += threads) {
    if (p.values[i] > p.limit) AtomicMin(p.fault, LimitFault(i, p.values[i]));
  }
}

}  // namespace uccl::cuda
