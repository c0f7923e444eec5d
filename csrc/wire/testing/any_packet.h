// A packet of any type as one value, for the tests of this room: made at random, encoded, decoded,
// compared.
//
// Datagrams are vectors of their exact size, so that a read or write outside is seen by the address
// sanitizer.
#pragma once

#include <random>
#include <vector>

#include "csrc/wire/packet.h"

namespace uccl::wire {

using Datagram = std::vector<std::byte>;

inline constexpr PacketType kTypes[] = {
    PacketType::kAck,    PacketType::kProbe, PacketType::kEager,   PacketType::kRequest,
    PacketType::kGrant,  PacketType::kData,  PacketType::kControl, PacketType::kSkip,
    PacketType::kCredit, PacketType::kDemand};

inline bool IsSequenced(PacketType type) {
  return type != PacketType::kAck && type != PacketType::kProbe && type != PacketType::kCredit &&
         type != PacketType::kDemand;
}

// A packet of any type; only the body that the type has is meant.
struct Packet {
  Header header;
  Eager eager;
  Request request;
  Grant grant;
  Data data;
  Credit credit;
  Demand demand;
  Ack ack;
  std::vector<std::byte> bitmap;
  std::vector<std::byte> payload;
};

// Size of header and body.
size_t HeadBytes(const Packet& p);
// The encoder of the packet's type.
size_t EncodeHead(const Packet& p, std::span<std::byte> out);
// The whole datagram, payload included; empty when the encoder gave another size than HeadBytes.
Datagram Encode(const Packet& p);
// The decoder of the packet's type; false when it rejects the body of an ACK, or a type without
// body has one.
bool Decode(const Header& header, Bytes body, Bytes payload, Packet* p);

template <class Integer>
Integer Random(std::mt19937_64& rng) {
  return static_cast<Integer>(rng());
}
std::vector<std::byte> RandomBytes(std::mt19937_64& rng, size_t size);
// Every field is random; the payload has 0 to max_payload_bytes where the type carries one, the
// bitmap likewise.
Packet RandomPacket(std::mt19937_64& rng, PacketType type, size_t max_payload_bytes);

bool operator==(const Description& a, const Description& b);
bool operator==(const Header& a, const Header& b);
bool operator==(const Eager& a, const Eager& b);
bool operator==(const Request& a, const Request& b);
bool operator==(const Grant& a, const Grant& b);
bool operator==(const Data& a, const Data& b);
bool operator==(const Credit& a, const Credit& b);
bool operator==(const Demand& a, const Demand& b);
bool operator==(const Echo& a, const Echo& b);

}  // namespace uccl::wire
