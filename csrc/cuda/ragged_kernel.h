// The kernel of ragged.h, for any group of threads; one group only. No barrier: the end of the
// kernel orders the tables before the exchange that reads them.
#pragma once

#include "csrc/cuda/memory.h"
#include "csrc/cuda/ragged.h"
#include "csrc/fifo/thread_group.h"

namespace uccl::cuda {

namespace internal {

UCCL_HOST_DEVICE inline int64_t ReceiveOffset(const RaggedParams& p, uint32_t rank) {
  if (p.receive_offsets != nullptr) return p.receive_offsets[rank];
  int64_t sum = 0;
  for (uint32_t r = 0; r < rank; ++r) sum += p.receive_sizes[r];
  return sum;
}

}  // namespace internal

template <class Group>
UCCL_HOST_DEVICE void Ragged(Group& group, const RaggedParams& p) {
  for (uint32_t i = group.rank(); i < 2 * p.ranks; i += group.size()) {
    const bool sends = i < p.ranks;
    const uint32_t rank = sends ? i : i - p.ranks;
    const int64_t offset = sends ? p.send_offsets[rank] : internal::ReceiveOffset(p, rank);
    const int64_t size = sends ? p.send_sizes[rank] : p.receive_sizes[rank];
    const auto rows = static_cast<int64_t>(sends ? p.from_rows : p.to_rows);
    const bool within = offset >= 0 && size >= 0 && (size == 0 || offset + size <= rows);
    if (!within) AtomicMin(p.fault, i);
    const bool any = within && size > 0;
    p.messages[i].bytes = any ? static_cast<uint64_t>(size) * p.row_bytes : 0;
    p.addresses[i] =
        (sends ? p.from : p.to) + (any ? static_cast<uint64_t>(offset) * p.row_bytes : 0);
  }
}

}  // namespace uccl::cuda
