// Takes numbers off the front of a fuzzer's input. Past its end everything is 0, so that any prefix
// of an input means something.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "csrc/base/types.h"

namespace uccl::fuzz {

class Input final {
 public:
  explicit Input(Bytes bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  Bytes Take(size_t count) {
    const Bytes taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  template <class Integer>
  Integer Get() {
    uint64_t value = 0;
    size_t shift = 0;
    for (const std::byte b : Take(sizeof(Integer))) {
      value |= static_cast<uint64_t>(b) << shift;
      shift += 8;
    }
    return static_cast<Integer>(value);
  }
  uint8_t Byte() { return Get<uint8_t>(); }
  // One of a few values.
  template <class Choices>
  auto Pick(const Choices& choices) {
    return *(std::begin(choices) + Byte() % std::size(choices));
  }
  // Every order of magnitude is one byte away: 2^0 to 2^max_exponent.
  uint64_t Power(unsigned max_exponent) { return uint64_t{1} << (Byte() % (max_exponent + 1)); }

 private:
  Bytes rest_;
};

}  // namespace uccl::fuzz
