// Mixing hash over words and bytes, for matching keys, connection keys and digests.
//
// The value depends only on what is fed in and in which order: bytes are gathered little-endian by
// shifts, so machines of either endianness and any compiler agree. The hash must therefore never
// change between two processes of one job; `hash_test.cc` pins known values. It separates honest
// inputs, it is not a defence against somebody who searches for collisions.
//
// Construction: two 64-bit lanes. Each word goes through the SplitMix64 finaliser (Steele, Lea,
// Flood, "Fast splittable pseudorandom number generators", OOPSLA'14 section 3) in both lanes, with
// different odd multipliers and a cross feed, so a collision must happen in 128 bits of state at
// once. Every text or byte string is preceded by its length, so ("ab", "c") and ("a", "bc") differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "csrc/base/types.h"

namespace uccl {

// A bijection of 64-bit words in which every input bit moves about half of the output bits.
constexpr uint64_t Mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  x ^= x >> 31;
  return x;
}

struct Hash128 {
  uint64_t hi = 0, lo = 0;
  constexpr bool operator==(const Hash128&) const = default;
};

// Feed with Word / Text / Data, read with Finish*. Reading does not change the state.
class Hasher {
 public:
  constexpr explicit Hasher(uint64_t seed = 0)
      : a_(Mix64(seed + kGamma)), b_(Mix64(~seed + 0x632be59bd9b4e019ull)) {}

  constexpr Hasher& Word(uint64_t w) {
    const uint64_t a = Mix64((a_ + kGamma) ^ w);
    b_ = Mix64(b_ * 0xd6e8feb86659fd93ull + w + (a_ >> 32));
    a_ = a;
    return *this;
  }
  constexpr Hasher& Text(std::string_view text) {
    return Gather(text.size(), [&](size_t i) { return static_cast<unsigned char>(text[i]); });
  }
  constexpr Hasher& Data(Bytes bytes) {
    return Gather(bytes.size(), [&](size_t i) { return static_cast<unsigned char>(bytes[i]); });
  }

  constexpr Hash128 Finish128() const {
    return {Mix64(a_ ^ (b_ * kGamma)), Mix64(b_ + Mix64(a_ + kGamma))};
  }
  constexpr uint64_t Finish64() const { return Finish128().hi; }

 private:
  static constexpr uint64_t kGamma = 0x9e3779b97f4a7c15ull;  // odd, near 2^64 / golden ratio

  template <class At>
  constexpr Hasher& Gather(size_t size, At at) {
    Word(size);
    for (size_t i = 0; i < size; i += 8) {
      uint64_t w = 0;
      for (size_t k = 0; k < 8 && i + k < size; ++k) w |= uint64_t{at(i + k)} << (8 * k);
      Word(w);
    }
    return *this;
  }

  uint64_t a_, b_;
};

constexpr uint64_t HashWords(std::initializer_list<uint64_t> words, uint64_t seed = 0) {
  Hasher h(seed);
  for (uint64_t w : words) h.Word(w);
  return h.Finish64();
}

}  // namespace uccl
