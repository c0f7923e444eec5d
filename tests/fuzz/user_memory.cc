// Contents out of one table, because a fuzzer compares more bytes than it does anything else. See
// user_memory.h.
#include "tests/fuzz/user_memory.h"

#include <array>
#include <cstring>

namespace uccl::fuzz {
namespace {

constexpr size_t kTableBytes = 1 << 16;

using Table = std::array<std::byte, kTableBytes>;

const Table& TheTable() {
  static const Table table = [] {
    Table t;
    for (size_t i = 0; i < t.size(); ++i) t[i] = static_cast<std::byte>(i * 7 + (i >> 8) * 13);
    return t;
  }();
  return table;
}

size_t Place(uint64_t tag, uint64_t offset) { return (tag * 4099 + offset) % kTableBytes; }

// Calls `visit(bytes of the table, their place in the message)` until all `size` are covered, or it
// returns false.
template <class Visit>
bool ForEachPiece(uint64_t tag, uint64_t offset, size_t size, Visit visit) {
  for (size_t done = 0; done < size;) {
    const Bytes table = TheTable();
    const Bytes rest = table.subspan(Place(tag, offset + done));
    const Bytes piece = rest.first(std::min(rest.size(), size - done));
    if (!visit(piece, done)) return false;
    done += piece.size();
  }
  return true;
}

}  // namespace

std::byte ContentAt(uint64_t tag, uint64_t offset) { return TheTable()[Place(tag, offset)]; }

void FillContent(uint64_t tag, uint64_t offset, MutableBytes out) {
  ForEachPiece(tag, offset, out.size(), [out](Bytes piece, size_t at) {
    std::memcpy(out.data() + at, piece.data(), piece.size());
    return true;
  });
}

bool IsContent(uint64_t tag, uint64_t offset, Bytes bytes) {
  return ForEachPiece(tag, offset, bytes.size(), [bytes](Bytes piece, size_t at) {
    return std::memcmp(bytes.data() + at, piece.data(), piece.size()) == 0;
  });
}

}  // namespace uccl::fuzz
