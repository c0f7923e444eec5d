// The kernel of route.h, for any group of threads. No barrier: threads share nothing.
//
// One thread for each rank reads all choices. The alternative, a prefix sum over segments of the
// tokens, takes barriers and scratch memory to divide a loop of some thousand reads, all of which
// the threads of a warp make at the same addresses.
#pragma once

#include "csrc/cuda/memory.h"
#include "csrc/cuda/route.h"
#include "csrc/fifo/thread_group.h"

namespace uccl::cuda {

template <class Group>
UCCL_HOST_DEVICE void Route(Group& group, const RouteParams& p) {
  const uint64_t experts = uint64_t{p.ranks} * p.experts_per_rank;
  const uint32_t threads = group.count() * group.size();
  for (uint32_t rank = group.index() * group.size() + group.rank(); rank < p.ranks;
       rank += threads) {
    uint32_t copies = 0;
    for (uint32_t token = 0; token < p.tokens; ++token) {
      bool found = false;
      for (uint32_t j = 0; j < p.width; ++j) {
        const uint64_t entry = uint64_t{token} * p.width + j;
        const int32_t choice = p.choices[entry];
        const bool known = choice >= 0 && static_cast<uint64_t>(choice) < experts;
        // Each entry is written by one thread: that of its rank, or the first where it has none.
        const uint32_t owner = known ? static_cast<uint32_t>(choice) / p.experts_per_rank : 0;
        if (owner != rank) continue;
        if (choice >= 0 && !known && p.fault != nullptr) AtomicMin(p.fault, entry);
        const bool first = known && !found;
        found |= known;
        p.peers[entry] = first ? static_cast<int32_t>(rank) : -1;
        p.slots[entry] = first ? static_cast<int32_t>(copies++) : -1;
      }
    }
  }
}

}  // namespace uccl::cuda
