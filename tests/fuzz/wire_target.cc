// Decoding of one datagram. The input is decoded as it is, then once more with what a stranger can
// easily put right (version, reserved bytes, checksum), because no fuzzer guesses a CRC. What
// decodes must encode to the same bytes again: then no two datagrams mean the same, and nothing is
// read that was not sent.
#include <algorithm>
#include <vector>

#include "csrc/wire/packet.h"
#include "csrc/wire/testing/any_packet.h"
#include "tests/fuzz/seal.h"
#include "tests/fuzz/targets.h"

namespace uccl::fuzz {
namespace {

// True when the datagram was accepted.
bool DecodeAndEncode(Bytes datagram) {
  wire::Header header;
  Bytes body, payload;
  if (wire::DecodeHeader(datagram, &header, &body, &payload) != wire::DecodeError::kNone)
    return false;
  Require(wire::kHeaderBytes + body.size() + payload.size() == datagram.size(),
          "header, body and payload are all of the datagram");
  Require(wire::PeekKey(datagram) == header.key, "the key that routes is the key that is checked");
  wire::Packet packet;
  if (!wire::Decode(header, body, payload, &packet)) {
    Require(header.type == wire::PacketType::kAck, "only the body of an ACK can be refused");
    return false;
  }
  Require(std::ranges::equal(wire::Encode(packet), datagram), "encode is the inverse of decode");
  return true;
}

}  // namespace

void FuzzWire(Bytes input) {
  DecodeAndEncode(input);
  if (input.size() < wire::kHeaderBytes) return;
  // Of its exact size, so that the address sanitizer sees a read beyond it.
  std::vector<std::byte> repaired(input.begin(), input.end());
  repaired[0] = std::byte{wire::kVersion};
  repaired[6] = repaired[7] = std::byte{0};
  Seal(repaired);
  if (!DecodeAndEncode(repaired)) return;
  // One flipped bit is always found (docs/wire_format.md).
  const size_t victim = static_cast<size_t>(input[4]) * 251 % input.size();
  repaired[victim] ^= std::byte{0x10};
  Require(!DecodeAndEncode(repaired), "a damaged datagram is refused");
}

}  // namespace uccl::fuzz
