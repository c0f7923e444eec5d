// Seeded random numbers of tests: small, fast, and the same on every platform (the distributions of
// <random> are not).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>

namespace uccl::core::testing {

// SplitMix64 (Steele, Lea, Flood, OOPSLA'14).
class Random final {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // In [0, n); n is not 0. The bias is below 2^-32 for the small n of tests.
  uint64_t Below(uint64_t n) { return Next() % n; }
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  bool Chance(double probability) { return Unit() < probability; }
  template <class T>
  T OneOf(std::initializer_list<T> choices) {
    return *(choices.begin() + Below(choices.size()));
  }
  // Every order of magnitude in [low, high] is equally likely; low is at least 1.
  uint64_t Magnitude(uint64_t low, uint64_t high) {
    const uint64_t ratio_bits = static_cast<uint64_t>(std::bit_width(high / low));
    const uint64_t bottom = low << Below(ratio_bits);
    return Between(bottom, std::min(high, bottom * 2));
  }

 private:
  uint64_t state_;
};

}  // namespace uccl::core::testing
