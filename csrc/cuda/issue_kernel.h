// The kernel of issue.h, for any group of threads.
#pragma once

#include "csrc/cuda/issue.h"
#include "csrc/cuda/memory.h"
#include "csrc/fifo/fifo_device.h"
#include "csrc/fifo/thread_group.h"

namespace uccl::cuda {
namespace internal {

UCCL_HOST_DEVICE inline void IssueOne(const IssueQueue& queue, uint32_t i) {
  const fifo::PushOutcome outcome = fifo::Push(queue.fifo, queue.commands[i]);
  if (outcome != fifo::PushOutcome::kPushed && queue.fault != nullptr) AtomicMin(queue.fault, i);
}

}  // namespace internal

template <class Group>
UCCL_HOST_DEVICE void Issue(Group& group, const IssueParams& p) {
  for (uint32_t q = group.index(); q < p.count; q += group.count()) {
    const IssueQueue& queue = p.queues[q];
    for (uint32_t i = group.rank(); i < queue.unordered; i += group.size()) {
      internal::IssueOne(queue, i);
    }
    // Behind this barrier the leader draws later numbers from the FIFO's head than all of those.
    group.Sync();
    if (!group.IsLeader()) continue;
    for (uint32_t i = queue.unordered; i < queue.count; ++i) internal::IssueOne(queue, i);
  }
}

}  // namespace uccl::cuda
