// What a put says about itself: the 32 bytes of note that travel with a message.
//
//   offset 0  kind            1 byte
//          1  channel         1
//          2  fifo            2   number of the FIFO within the source rank's region
//          4  number          4   write, write_count, count: of the put in its stream
//                                 ack, ack_request: all below it; barrier: the generation
//          8  source          4   rank that sends this
//         12  destination     4   rank that it is for
//         16  offset          8   bytes from the start of the destination's region
//         24  counter         4   barrier: the round
//         28  amount          4
// Little-endian. The region's key is the message's digest, so both ends must agree about it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "csrc/base/status.h"
#include "csrc/core/message.h"

namespace uccl::proxy {

enum class PutKind : uint8_t {
  kWrite = 1,
  kWriteCount = 2,
  kCount = 3,
  kAckRequest = 4,
  kAck = 5,
  kBarrier = 6,
};

struct PutNote {
  PutKind kind = PutKind::kWrite;
  uint8_t channel = 0;
  uint16_t fifo = 0;
  uint32_t number = 0;
  uint32_t source = 0, destination = 0;
  uint64_t offset = 0;
  uint32_t counter = 0, amount = 0;
  bool operator==(const PutNote&) const = default;
};

std::array<std::byte, 32> EncodeNote(const PutNote& note);
// kProtocol for bytes that no encoder of this version wrote, or that do not go with `size_bytes`.
Result<PutNote> DecodeNote(const std::array<std::byte, 32>& bytes, uint64_t size_bytes);

}  // namespace uccl::proxy
