// Copies of memory, by the vector loop that suits the size.
//
// libc's memcpy moves more than a few kilobytes with `rep movsb`, which some processors and virtual
// machines run slowly for some distances between source and destination, and it fills the caches
// with destinations that are much larger than them. benchmarks/memory.cc measures both.
#pragma once

#include <cstddef>

#include "csrc/base/vector_level.h"

namespace uccl {

// As std::memcpy: the ranges must not overlap. Small destinations are in the cache afterwards.
void CopyBytes(void* to, const void* from, size_t bytes);

// As std::memcpy, past the caches: for a destination that has left them before anybody reads it.
// What was written is only ordered before other stores of this thread by StreamFence, so call that
// before telling another thread.
void StreamBytes(void* to, const void* from, size_t bytes);
void StreamFence();

// From so many bytes on, written in one go, a destination is better streamed: what a core's share
// of the caches holds today. Measured, read and written, through the cache and past it: on a Xeon
// with 2 MB of second-level cache 1 MB at 50 and 30 GB/s, 2 MB at 29 and 28 to 37, 16 MB at 17 and
// 22 to 32; on an EPYC with 512 KB, and 32 MB of third level for both cores, up to 4 MB at 69 and
// 46, 8 MB at 58 and 46, 16 MB at 29 and 43. Eight copies of 1 MB between devices of one process
// took a tenth less through the cache there, and eight of 4 MB a tenth more.
inline constexpr size_t kStreamBytes = size_t{4} << 20;

// With the instructions of one of VectorLevels(), for tests and measurements.
using CopyFunction = void (*)(void* to, const void* from, size_t bytes);
CopyFunction CopyBytesAt(VectorLevel level);
CopyFunction StreamBytesAt(VectorLevel level);

}  // namespace uccl
