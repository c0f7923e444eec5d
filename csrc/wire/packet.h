// Packets on the wire: encode, decode, sizes. docs/wire_format.md describes every byte.
//
// All integers are little-endian. A datagram is one packet: common header, body of fixed size per
// type, payload. The CRC covers everything but itself, because the UDP checksum misses what routers
// and offloads repair.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "csrc/base/types.h"

namespace uccl::wire {

inline constexpr uint8_t kVersion = 3;

enum class PacketType : uint8_t {
  kAck = 1,      // kAck, kProbe, kCredit and kDemand are not sequenced; all others carry a PSN
  kProbe = 2,    // asks for an ACK
  kEager = 3,    // part of a small message, self-describing
  kRequest = 4,  // a large message waits at the sender
  kGrant = 5,    // its receive is posted at the receiver
  kData = 6,     // part of a granted message
  kControl = 7,  // small message to the layer above
  kSkip = 8,     // takes the place of a packet whose message was withdrawn
  kCredit = 9,   // how much the peer may send, by the receiver's schedule
  kDemand = 10,  // how much this end wants to send: a request to send
};

// Common header, 28 bytes on the wire.
struct Header {
  PacketType type{};
  uint16_t path = 0;
  uint16_t payload_bytes = 0;
  uint64_t key = 0;        // of the connection, in this direction
  uint32_t psn = 0;        // of sequenced packets; else 0
  uint32_t timestamp = 0;  // sender's clock in microseconds, echoed by ACKs
};
inline constexpr size_t kHeaderBytes =
    28;  // version, type, path, payload, reserved(2), key, psn, timestamp, crc

// What a message is: body of kRequest and kGrant, and head of the body of kEager.
struct Description {
  uint64_t tag_hi = 0, tag_lo = 0;
  uint64_t digest = 0;
  uint64_t size_bytes = 0;
  std::array<std::byte, 32> note{};
};
inline constexpr size_t kDescriptionBytes = 64;

struct Eager {
  Description description;
  uint32_t message_id = 0;  // counts the sender's eager and requested messages, modulo 2^32
  uint32_t offset = 0;
};
struct Request {
  Description description;
  uint32_t message_id = 0;
};
struct Grant {
  Description description;
  uint32_t receive_id = 0;  // counts the receiver's grants, modulo 2^32
};
struct Data {
  uint32_t receive_id = 0;
  uint64_t offset = 0;
};
// Receiver-driven credit (core/credit). All are sums since the connection began, in bytes of kEager
// and kData packets with their headers, so that a lost or overtaken packet does no harm.
struct Credit {
  uint64_t granted_bytes = 0;
};
struct Demand {
  uint64_t wanted_bytes = 0;   // to be sent, packets that are sent again included each time
  uint64_t settled_bytes = 0;  // of what was sent: given up for lost, so not to be waited for
};
// One path from which packets came since the last ACK: the newest timestamp and how many packets.
// `marked` counts those of the path that the network marked (ECN CE) since the connection began,
// modulo 2^16: a sum, so that a lost ACK loses no mark.
struct Echo {
  uint16_t path = 0;
  uint16_t packets = 0;
  uint16_t marked = 0;
  uint32_t timestamp = 0;
};
inline constexpr size_t kEchoBytes = 10;
inline constexpr size_t kMaxEchoes = 16;
inline constexpr size_t kMaxBitmapBytes = 1024;  // 8192 packets beyond the cumulative one
// `next` is the first PSN not received; bit i of the bitmap says whether next + 1 + i was received.
struct Ack {
  uint32_t next = 0;
  uint64_t eager_consumed_bytes =
      0;                       // eager bytes whose buffer is free again, since the connection began
  uint64_t granted_bytes = 0;  // as Credit says; 0 without receiver-driven credit
  uint8_t num_echoes = 0;
  std::array<Echo, kMaxEchoes> echoes{};
  uint16_t bitmap_bytes = 0;
  // Views the caller's bitmap when encoding and the datagram when decoding.
  const std::byte* bitmap = nullptr;
};

// Body sizes. kControl and kSkip have none (control text is the payload).
inline constexpr size_t kEagerBodyBytes = kDescriptionBytes + 8;
inline constexpr size_t kRequestBodyBytes = kDescriptionBytes + 4;
inline constexpr size_t kGrantBodyBytes = kDescriptionBytes + 4;
inline constexpr size_t kDataBodyBytes = 12;
inline constexpr size_t kCreditBodyBytes = 8;
inline constexpr size_t kDemandBodyBytes = 16;
inline constexpr size_t kAckFixedBytes =
    24;  // next, consumed, granted, echoes, reserved, bitmap size
inline constexpr size_t kMaxAckBodyBytes =
    kAckFixedBytes + kMaxEchoes * kEchoBytes + kMaxBitmapBytes;
// Room for the header and body of any packet but an ACK.
inline constexpr size_t kMaxHeadBytes = kHeaderBytes + kEagerBodyBytes;
inline constexpr size_t kMaxAckBytes = kHeaderBytes + kMaxAckBodyBytes;

// Each writes header and body into `out` (large enough), with the CRC over them and `payload`, and
// returns their size. header.type and header.payload_bytes are set here, and the PSN of packets
// that have none to 0. Control and Skip have no body. What does not fit (out too small, payload
// over 65535 bytes, too many echoes) is a bug of the caller: nothing is written and 0 returned.
size_t EncodeEager(Header header, const Eager& body, Bytes payload, std::span<std::byte> out);
size_t EncodeRequest(Header header, const Request& body, std::span<std::byte> out);
size_t EncodeGrant(Header header, const Grant& body, std::span<std::byte> out);
size_t EncodeData(Header header, const Data& body, Bytes payload, std::span<std::byte> out);
size_t EncodeControl(Header header, Bytes payload, std::span<std::byte> out);
size_t EncodeSkip(Header header, std::span<std::byte> out);
size_t EncodeProbe(Header header, std::span<std::byte> out);
size_t EncodeCredit(Header header, const Credit& body, std::span<std::byte> out);
size_t EncodeDemand(Header header, const Demand& body, std::span<std::byte> out);
size_t EncodeAck(Header header, const Ack& body, std::span<std::byte> out);

enum class DecodeError : uint8_t { kNone, kMalformed, kBadChecksum };

// The connection key of a datagram that looks like ours (length and version), for routing it before
// the rest is checked.
std::optional<uint64_t> PeekKey(Bytes datagram);
// Checks length, version, type, payload length and CRC. On success `body` is what follows the
// header up to the payload, and `payload` the rest.
DecodeError DecodeHeader(Bytes datagram, Header* header, Bytes* body, Bytes* payload);
// Bodies come from DecodeHeader and have the right size for their type (DecodeHeader checked it);
// these cannot fail, except that an ACK's inner lengths are checked: false when they contradict the
// size.
Eager DecodeEager(Bytes body);
Request DecodeRequest(Bytes body);
Grant DecodeGrant(Bytes body);
Data DecodeData(Bytes body);
Credit DecodeCredit(Bytes body);
Demand DecodeDemand(Bytes body);
bool DecodeAck(Bytes body, Ack* ack);

}  // namespace uccl::wire
