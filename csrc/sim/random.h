// Seeded randomness of a run: small, fast, and equal on every platform (the distributions of
// <random> are not). SplitMix64 (Steele, Lea, Flood, OOPSLA'14).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/base/hash.h"

namespace uccl::sim {

class Random final {
 public:
  explicit Random(uint64_t seed) : state_(Mix64(seed ^ 0x5851f42d4c957f2dull)) {}
  uint64_t Next() { return Mix64(state_ += 0x9e3779b97f4a7c15ull); }
  // In [0, n); n is not 0. The bias is below 2^-32 for the small n of a simulation.
  uint64_t Below(uint64_t n) { return Next() % n; }
  // In [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  bool Chance(double probability) { return probability > 0 && Unit() < probability; }
  // Fisher-Yates.
  template <class T>
  void Shuffle(std::vector<T>* items) {
    for (size_t i = items->size(); i > 1; --i) std::swap((*items)[i - 1], (*items)[Below(i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace uccl::sim
