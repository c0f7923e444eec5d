// The kernel of fold.h, for any group of threads. No barrier: threads share nothing.
#pragma once

#include "csrc/cuda/chunk.h"
#include "csrc/cuda/fold.h"
#include "csrc/cuda/memory.h"
#include "csrc/fifo/thread_group.h"

namespace uccl::cuda {

template <class From, class To, class Group>
UCCL_HOST_DEVICE void FoldRows(Group& group, const FoldRowsParams& p) {
  const std::byte* const from_base = p.from + p.turn.buffer() * p.from_turn;
  // A group takes neighbouring chunks of a row, so that its accesses are neighbours as well.
  const uint64_t chunks = (p.channels + kChunk - 1) / kChunk;
  const uint64_t parts = (chunks + group.size() - 1) / group.size();
  for (uint64_t item = group.index(); item < p.rows * parts; item += group.count()) {
    const uint64_t t = item / parts;
    const uint64_t at = (item % parts * group.size() + group.rank()) * kChunk;
    const uint32_t count = ChunkCount(at, p.channels);
    if (count == 0) continue;
    float sums[kChunk] = {};
    for (uint32_t j = 0; j < p.width; ++j) {
      const uint64_t entry = t * p.width + j;
      const int32_t row = p.table[entry];
      if (row < 0) continue;
      if (static_cast<uint64_t>(row) >= p.from_rows) {
        if (p.fault != nullptr && at == 0) AtomicMin(p.fault, entry);
        continue;
      }
      float values[kChunk];
      LoadChunk<From>(from_base + static_cast<uint64_t>(row) * p.from_stride + at * From::kBytes,
                      count, values);
      for (uint32_t k = 0; k < kChunk; ++k) sums[k] += values[k];
    }
    if (p.bias != nullptr) {
      const float* bias = p.bias + t * p.bias_stride + at;
      for (uint32_t k = 0; k < count; ++k) sums[k] += bias[k];
    }
    StoreChunk<To>(sums, count, p.to + t * p.to_stride + at * To::kBytes);
  }
}

// Calls visit.template operator()<From, To>() with the parameters' codecs; false if there is none.
template <class Visit>
bool WithFoldCodecs(const FoldRowsParams& p, const Visit& visit) {
  bool found = false;
  WithFloatCodec(p.from_element, [&]<class From>() {
    found =
        WithFloatCodec(p.to_element, [&]<class To>() { visit.template operator()<From, To>(); });
  });
  return found;
}

}  // namespace uccl::cuda
