// Work in parts, done by the calling thread and by those of the pool that are free.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "csrc/collectives/worker_pool.h"

namespace uccl::coll {

// Below so many bytes for each thread, one of its own costs more than it brings. Parts are a few
// for each: one that the system lets wait, on a machine that has other work, then holds up little.
inline constexpr uint64_t kShareThreadBytes = 256 << 10;
inline constexpr uint64_t kPartsPerThread = 4;

// How many threads may share work that touches so many bytes, `most` of them at most.
inline uint64_t ThreadsFor(uint64_t bytes, uint64_t most) {
  return std::clamp<uint64_t>(bytes / kShareThreadBytes, 1, most);
}

// Runs run(0) to run(parts - 1), each once, on up to `threads` threads with this one; comes back
// when all are done. Whoever is free takes the next part; this thread does too, so it waits only
// for parts that run.
void ShareWork(WorkerPool* pool, uint64_t threads, size_t parts,
               const std::function<void(size_t)>& run);

}  // namespace uccl::coll
