// What the bytes of every message are: a window into one block of random bytes, at a place that
// depends on the message. So sending needs no memory of its own, a thousand hosts send gigabytes,
// and comparing is one memcmp. The block is small enough to stay in the processor's cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "csrc/base/hash.h"
#include "csrc/base/types.h"
#include "csrc/sim/random.h"

namespace uccl::sim {

struct MessageId {
  uint32_t flow = 0, segment = 0;
};

class Contents final {
 public:
  Contents(uint64_t seed, uint64_t largest_message)
      : seed_(seed), block_(kPlaces + largest_message) {
    Random random(seed);
    for (size_t i = 0; i < block_.size(); i += sizeof(uint64_t)) {
      const uint64_t word = random.Next();
      std::memcpy(block_.data() + i, &word, std::min(sizeof(word), block_.size() - i));
    }
  }
  Bytes Of(MessageId id, uint64_t size) const {
    return Bytes(block_).subspan(HashWords({id.flow, id.segment}, seed_) % kPlaces, size);
  }
  // Whether `bytes` is part of the block, which never moves.
  bool Owns(Bytes bytes) const {
    return bytes.data() >= block_.data() &&
           bytes.data() + bytes.size() <= block_.data() + block_.size();
  }

 private:
  static constexpr uint64_t kPlaces = 256 << 10;
  uint64_t seed_;
  std::vector<std::byte> block_;
};

}  // namespace uccl::sim
