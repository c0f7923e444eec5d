// Bytes of a note. See put_note.h.
#include "csrc/proxy/put_note.h"

#include <string>

#include "csrc/base/little_endian.h"
#include "csrc/fifo/command.h"

namespace uccl::proxy {
namespace {

Status Malformed(const std::string& what) {
  return Status::Error(StatusCode::kProtocol, "a put with " + what);
}

}  // namespace

std::array<std::byte, 32> EncodeNote(const PutNote& n) {
  std::array<std::byte, 32> bytes{};
  bytes[0] = static_cast<std::byte>(n.kind);
  bytes[1] = static_cast<std::byte>(n.channel);
  StoreLittleEndian(n.fifo, &bytes[2]);
  StoreLittleEndian(n.number, &bytes[4]);
  StoreLittleEndian(n.source, &bytes[8]);
  StoreLittleEndian(n.destination, &bytes[12]);
  StoreLittleEndian(n.offset, &bytes[16]);
  StoreLittleEndian(n.counter, &bytes[24]);
  StoreLittleEndian(n.amount, &bytes[28]);
  return bytes;
}

Result<PutNote> DecodeNote(const std::array<std::byte, 32>& bytes, uint64_t size_bytes) {
  PutNote n;
  const auto kind = static_cast<int>(bytes[0]);
  if (kind < static_cast<int>(PutKind::kWrite) || kind > static_cast<int>(PutKind::kBarrier)) {
    return Malformed("kind " + std::to_string(kind));
  }
  n.kind = static_cast<PutKind>(kind);
  n.channel = static_cast<uint8_t>(bytes[1]);
  n.fifo = LoadLittleEndian<uint16_t>(&bytes[2]);
  n.number = LoadLittleEndian<uint32_t>(&bytes[4]);
  n.source = LoadLittleEndian<uint32_t>(&bytes[8]);
  n.destination = LoadLittleEndian<uint32_t>(&bytes[12]);
  n.offset = LoadLittleEndian<uint64_t>(&bytes[16]);
  n.counter = LoadLittleEndian<uint32_t>(&bytes[24]);
  n.amount = LoadLittleEndian<uint32_t>(&bytes[28]);
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
