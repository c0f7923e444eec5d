// Messages of tests: contents from a seed, receive buffers between guards, descriptions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/core/message.h"
#include "csrc/core/testing/random.h"

namespace uccl::core::testing {

inline std::vector<std::byte> Pattern(size_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  Random random(seed);
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = random.Next();
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, size - i));
  }
  return bytes;
}

inline MessageInfo Describe(uint64_t tag, uint64_t size, uint64_t digest = 7) {
  MessageInfo info;
  info.tag = {tag * 0x9e3779b97f4a7c15ull, tag};
  info.digest = digest;
  info.size_bytes = size;
  std::memcpy(info.note.data(), &tag, sizeof(tag));
  return info;
}

inline bool Same(const MessageInfo& a, const MessageInfo& b) {
  return a.tag == b.tag && a.digest == b.digest && a.size_bytes == b.size_bytes && a.note == b.note;
}

// Memory to receive into, with bytes before and after that nobody may touch.
class GuardedBuffer final {
 public:
  static constexpr size_t kGuard = 64;
  explicit GuardedBuffer(size_t size) : bytes_(size + 2 * kGuard, std::byte{0xa5}) { Clear(); }
  MutableBytes body() { return MutableBytes(bytes_).subspan(kGuard, bytes_.size() - 2 * kGuard); }
  void Clear() { std::ranges::fill(body(), std::byte{0xcc}); }
  bool IsClear() {
    return std::ranges::all_of(body(), [](std::byte b) { return b == std::byte{0xcc}; });
  }
  bool Holds(Bytes expected) { return std::ranges::equal(body(), expected); }
  bool GuardsIntact() const {
    const auto intact = [](std::byte b) { return b == std::byte{0xa5}; };
    return std::all_of(bytes_.begin(), bytes_.begin() + kGuard, intact) &&
           std::all_of(bytes_.end() - kGuard, bytes_.end(), intact);
  }

 private:
  std::vector<std::byte> bytes_;
};

// A message with its contents and the memory it is received into; its tag is its token.
struct TestMessage {
  TestMessage(uint64_t token_in, size_t size, uint64_t digest = 7)
      : token(token_in),
        info(Describe(token_in, size, digest)),
        contents(Pattern(size, token_in)),
        target(size) {}
  // All there, and nothing beside it.
  bool Arrived() { return target.Holds(contents) && target.GuardsIntact(); }
  bool Untouched() { return target.IsClear() && target.GuardsIntact(); }

  uint64_t token;
  MessageInfo info;
  std::vector<std::byte> contents;
  GuardedBuffer target;
};

}  // namespace uccl::core::testing
