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

// From so many bytes on, written in one go, a destination is better streamed: what a core's own
// cache holds today. Measured on a Xeon with 2 MB of it: 1 MB is copied at 50 GB/s through it and
// at 30 past it (read and written), 2 MB at 29 and 28 to 37, 16 MB at 17 and 22 to 32.
inline constexpr size_t kStreamBytes = size_t{2} << 20;

// With the instructions of one of VectorLevels(), for tests and measurements.
using CopyFunction = void (*)(void* to, const void* from, size_t bytes);
CopyFunction CopyBytesAt(VectorLevel level);
CopyFunction StreamBytesAt(VectorLevel level);

}  // namespace uccl
