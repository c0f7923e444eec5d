// The checksum of a datagram put right, as whoever forges one would.
#pragma once

#include <span>

#include "csrc/base/little_endian.h"
#include "csrc/base/types.h"
#include "csrc/wire/crc32c.h"
#include "csrc/wire/packet.h"

namespace uccl::fuzz {

// `datagram` has at least a header.
inline void Seal(std::span<std::byte> datagram) {
  constexpr size_t kCrcOffset = wire::kHeaderBytes - 4;
  const uint32_t crc = wire::ExtendCrc32c(wire::ExtendCrc32c(0, datagram.first(kCrcOffset)),
                                          datagram.subspan(wire::kHeaderBytes));
  StoreLittleEndian(crc, datagram.data() + kCrcOffset);
}

}  // namespace uccl::fuzz
