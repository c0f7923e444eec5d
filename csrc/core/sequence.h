// Packet sequence numbers are 64 bits inside and 32 bits on the wire, so they never wrap in here.
#pragma once

#include <cstdint>

namespace uccl::core {

// The 64-bit number nearest to `reference` whose low half is `wire`. Right as long as the true
// number is within 2^31 of the reference, which the receive window (2^13) guarantees for honest
// peers.
constexpr uint64_t ExpandSequence(uint32_t wire, uint64_t reference) {
  const auto delta = static_cast<int32_t>(wire - static_cast<uint32_t>(reference));
  return reference + static_cast<uint64_t>(static_cast<int64_t>(delta));
}

}  // namespace uccl::core
