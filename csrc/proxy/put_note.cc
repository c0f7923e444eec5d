// Bytes of a note. See put_note.h.
#include "csrc/proxy/put_note.h"

#include <string>

#include "csrc/fifo/command.h"

namespace uccl::proxy {
namespace {

void Put(std::byte* to, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}
uint64_t Get(const std::byte* from, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(from[i]) << (8 * i);
  return value;
}

Status Malformed(const std::string& what) {
  return Status::Error(StatusCode::kProtocol, "a put with " + what);
}

}  // namespace

std::array<std::byte, 32> EncodeNote(const PutNote& n) {
  std::array<std::byte, 32> bytes{};
  Put(&bytes[0], static_cast<uint64_t>(n.kind), 1);
  Put(&bytes[1], n.channel, 1);
  Put(&bytes[2], n.fifo, 2);
  Put(&bytes[4], n.number, 4);
  Put(&bytes[8], n.source, 4);
  Put(&bytes[12], n.destination, 4);
  Put(&bytes[16], n.offset, 8);
  Put(&bytes[24], n.counter, 4);
  Put(&bytes[28], n.amount, 4);
  return bytes;
}

Result<PutNote> DecodeNote(const std::array<std::byte, 32>& bytes, uint64_t size_bytes) {
  PutNote n;
  const auto kind = static_cast<int>(bytes[0]);
  if (kind < static_cast<int>(PutKind::kWrite) || kind > static_cast<int>(PutKind::kBarrier)) {
    return Malformed("kind " + std::to_string(kind));
  }
  n.kind = static_cast<PutKind>(kind);
  n.channel = static_cast<uint8_t>(Get(&bytes[1], 1));
  n.fifo = static_cast<uint16_t>(Get(&bytes[2], 2));
  n.number = static_cast<uint32_t>(Get(&bytes[4], 4));
  n.source = static_cast<uint32_t>(Get(&bytes[8], 4));
  n.destination = static_cast<uint32_t>(Get(&bytes[12], 4));
  n.offset = Get(&bytes[16], 8);
  n.counter = static_cast<uint32_t>(Get(&bytes[24], 4));
  n.amount = static_cast<uint32_t>(Get(&bytes[28], 4));
  if (n.channel > fifo::kMaxChannel) return Malformed("channel " + std::to_string(n.channel));
  const bool has_data = n.kind == PutKind::kWrite || n.kind == PutKind::kWriteCount;
  if (!has_data && (size_bytes != 0 || n.offset != 0)) {
    return Malformed("bytes of a kind that has none (" + std::to_string(kind) + ")");
  }
  const bool counts = n.kind == PutKind::kWriteCount || n.kind == PutKind::kCount;
  if (counts != (n.amount != 0)) return Malformed("amount " + std::to_string(n.amount));
  return n;
}

}  // namespace uccl::proxy
