// See packet.h, and docs/wire_format.md for the offsets. Meaning is left to core/: a decoded packet
// is well formed and arrived as it was sent, but its PSN, offsets and identities may still be
// impossible.
#include "csrc/wire/packet.h"

#include <algorithm>
#include <limits>

#include "csrc/base/little_endian.h"
#include "csrc/wire/crc32c.h"

namespace uccl::wire {
namespace {

constexpr size_t kKeyOffset = 8;
constexpr size_t kCrcOffset = kHeaderBytes - 4;

// What the type of a packet says about its form.
struct Form {
  bool known = false;
  bool sequenced = false;
  bool carries_payload = false;
  size_t min_body_bytes = 0;
  size_t max_body_bytes = 0;
};
constexpr Form Fixed(bool sequenced, bool carries_payload, size_t body_bytes) {
  return {true, sequenced, carries_payload, body_bytes, body_bytes};
}

constexpr Form FormOf(PacketType type) {
  switch (type) {
    case PacketType::kAck:
      return {true, false, false, kAckFixedBytes, kMaxAckBodyBytes};
    case PacketType::kProbe:
      return Fixed(false, false, 0);
    case PacketType::kEager:
      return Fixed(true, true, kEagerBodyBytes);
    case PacketType::kRequest:
      return Fixed(true, false, kRequestBodyBytes);
    case PacketType::kGrant:
      return Fixed(true, false, kGrantBodyBytes);
    case PacketType::kData:
      return Fixed(true, true, kDataBodyBytes);
    case PacketType::kControl:
      return Fixed(true, true, 0);
    case PacketType::kSkip:
      return Fixed(true, false, 0);
    case PacketType::kCredit:
      return Fixed(false, false, kCreditBodyBytes);
    case PacketType::kDemand:
      return Fixed(false, false, kDemandBodyBytes);
  }
  return {};  // a byte from the network that names no type
}

class Writer final {
 public:
  explicit Writer(std::byte* at) : at_(at) {}
  template <std::unsigned_integral T>
  void Put(T value) {
    StoreLittleEndian(value, at_);
    at_ += sizeof(T);
  }
  void Put(Bytes bytes) { at_ = std::copy(bytes.begin(), bytes.end(), at_); }
  void Put(const Description& d) {
    Put(d.tag_hi);
    Put(d.tag_lo);
    Put(d.digest);
    Put(d.size_bytes);
    Put(Bytes(d.note));
  }

 private:
  std::byte* at_;
};

class Reader final {
 public:
  explicit Reader(const std::byte* at) : at_(at) {}
  template <std::unsigned_integral T>
  T Get() {
    const T value = LoadLittleEndian<T>(at_);
    at_ += sizeof(T);
    return value;
  }
  Description GetDescription() {
    Description d;
    d.tag_hi = Get<uint64_t>();
    d.tag_lo = Get<uint64_t>();
    d.digest = Get<uint64_t>();
    d.size_bytes = Get<uint64_t>();
    std::copy_n(at_, d.note.size(), d.note.begin());
    at_ += d.note.size();
    return d;
  }
  const std::byte* at() const { return at_; }

 private:
  const std::byte* at_;
};

bool Fits(size_t body_bytes, Bytes payload, std::span<std::byte> out) {
  return out.size() >= kHeaderBytes + body_bytes &&
         payload.size() <= std::numeric_limits<uint16_t>::max();
}

uint32_t PacketCrc(Bytes head, Bytes payload) {
  uint32_t crc = ExtendCrc32c(0, head.first(kCrcOffset));
  crc = ExtendCrc32c(crc, head.subspan(kHeaderBytes));
  return ExtendCrc32c(crc, payload);
}

// Writes the header before the body that stands in `out` already; last, because the CRC covers
// both.
size_t Seal(PacketType type, const Header& header, size_t body_bytes, Bytes payload,
            std::span<std::byte> out) {
  if (!Fits(body_bytes, payload, out)) return 0;
  Writer w(out.data());
  w.Put(kVersion);
  w.Put(static_cast<uint8_t>(type));
  w.Put(header.path);
  w.Put(static_cast<uint16_t>(payload.size()));
  w.Put(uint16_t{0});
  w.Put(header.key);
  w.Put(FormOf(type).sequenced ? header.psn : 0);
  w.Put(header.timestamp);
  const size_t head_bytes = kHeaderBytes + body_bytes;
  w.Put(PacketCrc(out.first(head_bytes), payload));
  return head_bytes;
}

}  // namespace

size_t EncodeEager(Header header, const Eager& body, Bytes payload, std::span<std::byte> out) {
  if (!Fits(kEagerBodyBytes, payload, out)) return 0;
  Writer w(out.data() + kHeaderBytes);
  w.Put(body.description);
  w.Put(body.message_id);
  w.Put(body.offset);
  return Seal(PacketType::kEager, header, kEagerBodyBytes, payload, out);
}

size_t EncodeRequest(Header header, const Request& body, std::span<std::byte> out) {
  if (!Fits(kRequestBodyBytes, {}, out)) return 0;
  Writer w(out.data() + kHeaderBytes);
  w.Put(body.description);
  w.Put(body.message_id);
  return Seal(PacketType::kRequest, header, kRequestBodyBytes, {}, out);
}

size_t EncodeGrant(Header header, const Grant& body, std::span<std::byte> out) {
  if (!Fits(kGrantBodyBytes, {}, out)) return 0;
  Writer w(out.data() + kHeaderBytes);
  w.Put(body.description);
  w.Put(body.receive_id);
  return Seal(PacketType::kGrant, header, kGrantBodyBytes, {}, out);
}

size_t EncodeData(Header header, const Data& body, Bytes payload, std::span<std::byte> out) {
  if (!Fits(kDataBodyBytes, payload, out)) return 0;
  Writer w(out.data() + kHeaderBytes);
  w.Put(body.receive_id);
  w.Put(body.offset);
  return Seal(PacketType::kData, header, kDataBodyBytes, payload, out);
}

size_t EncodeControl(Header header, Bytes payload, std::span<std::byte> out) {
  return Seal(PacketType::kControl, header, 0, payload, out);
}

size_t EncodeSkip(Header header, std::span<std::byte> out) {
  return Seal(PacketType::kSkip, header, 0, {}, out);
}

size_t EncodeProbe(Header header, std::span<std::byte> out) {
  return Seal(PacketType::kProbe, header, 0, {}, out);
}

size_t EncodeCredit(Header header, const Credit& body, std::span<std::byte> out) {
  if (!Fits(kCreditBodyBytes, {}, out)) return 0;
  Writer w(out.data() + kHeaderBytes);
  w.Put(body.granted_bytes);
  return Seal(PacketType::kCredit, header, kCreditBodyBytes, {}, out);
}

size_t EncodeDemand(Header header, const Demand& body, std::span<std::byte> out) {
  if (!Fits(kDemandBodyBytes, {}, out)) return 0;
  Writer w(out.data() + kHeaderBytes);
  w.Put(body.wanted_bytes);
  w.Put(body.settled_bytes);
  return Seal(PacketType::kDemand, header, kDemandBodyBytes, {}, out);
}

size_t EncodeAck(Header header, const Ack& body, std::span<std::byte> out) {
  if (body.num_echoes > kMaxEchoes || body.bitmap_bytes > kMaxBitmapBytes) return 0;
  const size_t body_bytes = kAckFixedBytes + body.num_echoes * kEchoBytes + body.bitmap_bytes;
  if (!Fits(body_bytes, {}, out)) return 0;
  Writer w(out.data() + kHeaderBytes);
  w.Put(body.next);
  w.Put(body.eager_consumed_bytes);
  w.Put(body.granted_bytes);
  w.Put(body.num_echoes);
  w.Put(uint8_t{0});
  w.Put(body.bitmap_bytes);
  for (const Echo& echo : std::span(body.echoes).first(body.num_echoes)) {
    w.Put(echo.path);
    w.Put(echo.packets);
    w.Put(echo.marked);
    w.Put(echo.timestamp);
  }
  w.Put(Bytes(body.bitmap, body.bitmap_bytes));
  return Seal(PacketType::kAck, header, body_bytes, {}, out);
}

std::optional<uint64_t> PeekKey(Bytes datagram) {
  if (datagram.size() < kHeaderBytes || static_cast<uint8_t>(datagram[0]) != kVersion) {
    return std::nullopt;
  }
  return LoadLittleEndian<uint64_t>(datagram.data() + kKeyOffset);
}

DecodeError DecodeHeader(Bytes datagram, Header* header, Bytes* body, Bytes* payload) {
  if (datagram.size() < kHeaderBytes) return DecodeError::kMalformed;
  Reader r(datagram.data());
  if (r.Get<uint8_t>() != kVersion) return DecodeError::kMalformed;
  Header h;
  h.type = static_cast<PacketType>(r.Get<uint8_t>());
  h.path = r.Get<uint16_t>();
  h.payload_bytes = r.Get<uint16_t>();
  const uint16_t reserved = r.Get<uint16_t>();
  h.key = r.Get<uint64_t>();
  h.psn = r.Get<uint32_t>();
  h.timestamp = r.Get<uint32_t>();
  const uint32_t crc = r.Get<uint32_t>();

  const Form form = FormOf(h.type);
  const size_t rest_bytes = datagram.size() - kHeaderBytes;
  if (!form.known || reserved != 0 || h.payload_bytes > rest_bytes) return DecodeError::kMalformed;
  if (h.payload_bytes != 0 && !form.carries_payload) return DecodeError::kMalformed;
  if (h.psn != 0 && !form.sequenced) return DecodeError::kMalformed;
  const size_t body_bytes = rest_bytes - h.payload_bytes;
  if (body_bytes < form.min_body_bytes || body_bytes > form.max_body_bytes) {
    return DecodeError::kMalformed;
  }
  // Last, because it costs the most: what is not ours is thrown out by a few compares.
  const size_t head_bytes = kHeaderBytes + body_bytes;
  if (PacketCrc(datagram.first(head_bytes), datagram.subspan(head_bytes)) != crc) {
    return DecodeError::kBadChecksum;
  }
  *header = h;
  *body = datagram.subspan(kHeaderBytes, body_bytes);
  *payload = datagram.subspan(head_bytes);
  return DecodeError::kNone;
}

Eager DecodeEager(Bytes body) {
  Reader r(body.data());
  Eager eager;
  eager.description = r.GetDescription();
  eager.message_id = r.Get<uint32_t>();
  eager.offset = r.Get<uint32_t>();
  return eager;
}

Request DecodeRequest(Bytes body) {
  Reader r(body.data());
  Request request;
  request.description = r.GetDescription();
  request.message_id = r.Get<uint32_t>();
  return request;
}

Grant DecodeGrant(Bytes body) {
  Reader r(body.data());
  Grant grant;
  grant.description = r.GetDescription();
  grant.receive_id = r.Get<uint32_t>();
  return grant;
}

Data DecodeData(Bytes body) {
  Reader r(body.data());
  Data data;
  data.receive_id = r.Get<uint32_t>();
  data.offset = r.Get<uint64_t>();
  return data;
}

Credit DecodeCredit(Bytes body) { return {Reader(body.data()).Get<uint64_t>()}; }

Demand DecodeDemand(Bytes body) {
  Reader r(body.data());
  Demand demand;
  demand.wanted_bytes = r.Get<uint64_t>();
  demand.settled_bytes = r.Get<uint64_t>();
  return demand;
}

bool DecodeAck(Bytes body, Ack* ack) {
  if (body.size() < kAckFixedBytes) return false;
  Reader r(body.data());
  Ack a;
  a.next = r.Get<uint32_t>();
  a.eager_consumed_bytes = r.Get<uint64_t>();
  a.granted_bytes = r.Get<uint64_t>();
  a.num_echoes = r.Get<uint8_t>();
  const uint8_t reserved = r.Get<uint8_t>();
  a.bitmap_bytes = r.Get<uint16_t>();
  if (reserved != 0 || a.num_echoes > kMaxEchoes || a.bitmap_bytes > kMaxBitmapBytes) return false;
  if (body.size() != kAckFixedBytes + a.num_echoes * kEchoBytes + a.bitmap_bytes) return false;
  for (Echo& echo : std::span(a.echoes).first(a.num_echoes)) {
    echo.path = r.Get<uint16_t>();
    echo.packets = r.Get<uint16_t>();
    echo.marked = r.Get<uint16_t>();
    echo.timestamp = r.Get<uint32_t>();
  }
  if (a.bitmap_bytes != 0) a.bitmap = r.at();
  *ack = a;
  return true;
}

}  // namespace uccl::wire
