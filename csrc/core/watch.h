// Receives that nobody sends for. While one is posted, the transport looks for signs of life of its
// peer, so that a loss is noticed although nothing is owed by it. Proxies post them.
#pragma once

#include <cstdint>

#include "csrc/core/message.h"

namespace uccl::core {

inline constexpr uint64_t kWatchBit = uint64_t{1} << 63;
// Puts are numbered from 1, and never come so far.
constexpr MessageTag WatchTag(uint64_t number) { return {kPutTagHi, kWatchBit | number}; }
constexpr bool IsWatch(const MessageTag& tag) { return IsPut(tag) && (tag.lo & kWatchBit) != 0; }

}  // namespace uccl::core
