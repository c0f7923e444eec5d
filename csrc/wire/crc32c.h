// CRC-32C (Castagnoli), the checksum of every packet, by the fastest means of the processor.
//
// Reflected polynomial 0x82f63b78, initial value and final inversion all ones (RFC 3720 appendix
// B.4): the CRC of "123456789" is 0xe3069283. Chosen over CRC-32 because x86 and Arm have an
// instruction for it.
#pragma once

#include <cstdint>
#include <span>

#include "csrc/base/types.h"

namespace uccl::wire {

// The CRC of what `crc` covers followed by `bytes`; the CRC of nothing is 0. So a packet's header
// and payload, which lie apart, are covered by ExtendCrc32c(ExtendCrc32c(0, header), payload).
uint32_t ExtendCrc32c(uint32_t crc, Bytes bytes);

struct Crc32cImplementation {
  const char* name;
  uint32_t (*extend)(uint32_t crc, Bytes bytes);
};
// Those that this machine can run, fastest first (ExtendCrc32c uses the first), for tests to
// compare.
std::span<const Crc32cImplementation> Crc32cImplementations();

}  // namespace uccl::wire
