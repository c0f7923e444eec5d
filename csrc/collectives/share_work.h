// Work in parts, done by the calling thread and by those of the pool that are free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "csrc/collectives/worker_pool.h"

namespace uccl::coll {

// Runs run(0) to run(parts - 1), each once, on up to `threads` threads with this one; comes back
// when all are done. Whoever is free takes the next part; this thread does too, so it waits only
// for parts that run.
void ShareWork(WorkerPool* pool, uint64_t threads, size_t parts,
               const std::function<void(size_t)>& run);

}  // namespace uccl::coll
