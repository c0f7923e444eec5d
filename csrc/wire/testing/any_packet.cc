// See any_packet.h.
#include "csrc/wire/testing/any_packet.h"

#include <algorithm>

namespace uccl::wire {

size_t HeadBytes(const Packet& p) {
  switch (p.header.type) {
    case PacketType::kAck:
      return kHeaderBytes + kAckFixedBytes + kEchoBytes * p.ack.num_echoes + p.bitmap.size();
    case PacketType::kEager:
      return kHeaderBytes + kEagerBodyBytes;
    case PacketType::kRequest:
      return kHeaderBytes + kRequestBodyBytes;
    case PacketType::kGrant:
      return kHeaderBytes + kGrantBodyBytes;
    case PacketType::kData:
      return kHeaderBytes + kDataBodyBytes;
    case PacketType::kCredit:
      return kHeaderBytes + kCreditBodyBytes;
    case PacketType::kDemand:
      return kHeaderBytes + kDemandBodyBytes;
    default:
      return kHeaderBytes;
  }
}

size_t EncodeHead(const Packet& p, std::span<std::byte> out) {
  switch (p.header.type) {
    case PacketType::kAck: {
      Ack ack = p.ack;
      ack.bitmap = p.bitmap.data();
      ack.bitmap_bytes = static_cast<uint16_t>(p.bitmap.size());
      return EncodeAck(p.header, ack, out);
    }
    case PacketType::kProbe:
      return EncodeProbe(p.header, out);
    case PacketType::kEager:
      return EncodeEager(p.header, p.eager, p.payload, out);
    case PacketType::kRequest:
      return EncodeRequest(p.header, p.request, out);
    case PacketType::kGrant:
      return EncodeGrant(p.header, p.grant, out);
    case PacketType::kData:
      return EncodeData(p.header, p.data, p.payload, out);
    case PacketType::kControl:
      return EncodeControl(p.header, p.payload, out);
    case PacketType::kSkip:
      return EncodeSkip(p.header, out);
    case PacketType::kCredit:
      return EncodeCredit(p.header, p.credit, out);
    case PacketType::kDemand:
      return EncodeDemand(p.header, p.demand, out);
  }
  return 0;
}

Datagram Encode(const Packet& p) {
  Datagram datagram(HeadBytes(p));
  if (EncodeHead(p, datagram) != datagram.size()) return {};
  datagram.insert(datagram.end(), p.payload.begin(), p.payload.end());
  return datagram;
}

bool Decode(const Header& header, Bytes body, Bytes payload, Packet* p) {
  p->header = header;
  p->payload.assign(payload.begin(), payload.end());
  switch (header.type) {
    case PacketType::kAck:
      if (!DecodeAck(body, &p->ack)) return false;
      p->bitmap.assign(p->ack.bitmap, p->ack.bitmap + p->ack.bitmap_bytes);
      break;
    case PacketType::kEager:
      p->eager = DecodeEager(body);
      break;
    case PacketType::kRequest:
      p->request = DecodeRequest(body);
      break;
    case PacketType::kGrant:
      p->grant = DecodeGrant(body);
      break;
    case PacketType::kData:
      p->data = DecodeData(body);
      break;
    case PacketType::kCredit:
      p->credit = DecodeCredit(body);
      break;
    case PacketType::kDemand:
      p->demand = DecodeDemand(body);
      break;
    default:
      return body.empty();
  }
  return true;
}

std::vector<std::byte> RandomBytes(std::mt19937_64& rng, size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = Random<std::byte>(rng);
  return bytes;
}

Packet RandomPacket(std::mt19937_64& rng, PacketType type, size_t max_payload_bytes) {
  Packet p;
  p.header.type = type;
  p.header.path = Random<uint16_t>(rng);
  p.header.key = rng();
  p.header.timestamp = Random<uint32_t>(rng);
  if (IsSequenced(type)) p.header.psn = Random<uint32_t>(rng);
  Description description{rng(), rng(), rng(), rng(), {}};
  for (std::byte& b : description.note) b = Random<std::byte>(rng);
  switch (type) {
    case PacketType::kAck:
      p.ack.next = Random<uint32_t>(rng);
      p.ack.eager_consumed_bytes = rng();
      p.ack.granted_bytes = rng();
      p.ack.num_echoes = static_cast<uint8_t>(rng() % (kMaxEchoes + 1));
      for (size_t i = 0; i < p.ack.num_echoes; ++i) {
        p.ack.echoes[i] = {Random<uint16_t>(rng), Random<uint16_t>(rng), Random<uint16_t>(rng),
                           Random<uint32_t>(rng)};
      }
      p.bitmap = RandomBytes(rng, rng() % (std::min(kMaxBitmapBytes, max_payload_bytes) + 1));
      return p;
    case PacketType::kEager:
      p.eager = {description, Random<uint32_t>(rng), Random<uint32_t>(rng)};
      break;
    case PacketType::kRequest:
      p.request = {description, Random<uint32_t>(rng)};
      return p;
    case PacketType::kGrant:
      p.grant = {description, Random<uint32_t>(rng)};
      return p;
    case PacketType::kData:
      p.data = {Random<uint32_t>(rng), rng()};
      break;
    case PacketType::kControl:
      break;
    case PacketType::kCredit:
      p.credit = {rng()};
      return p;
    case PacketType::kDemand:
      p.demand = {rng(), rng()};
      return p;
    default:
      return p;
  }
  p.payload = RandomBytes(rng, rng() % (max_payload_bytes + 1));
  p.header.payload_bytes = static_cast<uint16_t>(p.payload.size());
  return p;
}

bool operator==(const Description& a, const Description& b) {
  return a.tag_hi == b.tag_hi && a.tag_lo == b.tag_lo && a.digest == b.digest &&
         a.size_bytes == b.size_bytes && a.note == b.note;
}
bool operator==(const Header& a, const Header& b) {
  return a.type == b.type && a.path == b.path && a.payload_bytes == b.payload_bytes &&
         a.key == b.key && a.psn == b.psn && a.timestamp == b.timestamp;
}
bool operator==(const Eager& a, const Eager& b) {
  return a.description == b.description && a.message_id == b.message_id && a.offset == b.offset;
}
bool operator==(const Request& a, const Request& b) {
  return a.description == b.description && a.message_id == b.message_id;
}
bool operator==(const Grant& a, const Grant& b) {
  return a.description == b.description && a.receive_id == b.receive_id;
}
bool operator==(const Data& a, const Data& b) {
  return a.receive_id == b.receive_id && a.offset == b.offset;
}
bool operator==(const Credit& a, const Credit& b) { return a.granted_bytes == b.granted_bytes; }
bool operator==(const Demand& a, const Demand& b) {
  return a.wanted_bytes == b.wanted_bytes && a.settled_bytes == b.settled_bytes;
}
bool operator==(const Echo& a, const Echo& b) {
  return a.path == b.path && a.packets == b.packets && a.marked == b.marked &&
         a.timestamp == b.timestamp;
}

}  // namespace uccl::wire
