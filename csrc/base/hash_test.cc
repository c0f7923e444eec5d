// Tests of csrc/base/hash.h: pinned values (the hash is part of what processes agree on), framing,
// mixing.
#include "csrc/base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <set>
#include <string>
#include <utility>

namespace uccl {
namespace {

TEST(Hash, KnownValues) {
  // Changing these breaks agreement between processes of different builds; bump the wire version
  // with them.
  EXPECT_EQ(Mix64(1), 0x5692161d100b05e5ull);
  EXPECT_EQ(Hasher().Finish64(), 0xbe3f206cfa2bf2f4ull);
  EXPECT_EQ(HashWords({1, 2, 3}), 0x62a7a0cf7366bcb4ull);
  EXPECT_EQ(Hasher().Text("all_to_all").Finish128(),
            (Hash128{0xa5b0655f3cc0f68eull, 0xc89b0d82bad2e678ull}));
}

TEST(Hash, IsUsableAtCompileTime) {
  static_assert(HashWords({1, 2}) != HashWords({2, 1}));
  static_assert(Hasher(1).Text("a").Finish64() != Hasher(2).Text("a").Finish64());
}

TEST(Hash, StringsAreFramed) {
  EXPECT_NE(Hasher().Text("ab").Text("c").Finish128(), Hasher().Text("a").Text("bc").Finish128());
  EXPECT_NE(Hasher().Text("").Finish128(), Hasher().Finish128());
  EXPECT_NE(Hasher().Text(std::string(1, '\0')).Finish128(), Hasher().Text("").Finish128());
  EXPECT_NE(Hasher().Text(std::string(8, '\0')).Finish128(),
            Hasher().Text(std::string(9, '\0')).Finish128());
}

TEST(Hash, DataEqualsTextOfTheSameBytes) {
  const std::string text = "exactly these bytes \xff\x80";
  const Bytes bytes = std::as_bytes(std::span(text));
  EXPECT_EQ(Hasher().Text(text).Finish128(), Hasher().Data(bytes).Finish128());
}

TEST(Hash, SmallInputsDoNotCollide) {
  std::set<std::pair<uint64_t, uint64_t>> seen;
  std::set<uint64_t> high, low;
  size_t count = 0;
  for (uint64_t a = 0; a < 64; ++a) {
    for (uint64_t b = 0; b < 64; ++b) {
      for (uint64_t c = 0; c < 16; ++c) {
        const Hash128 h = Hasher().Word(a).Word(b).Word(c).Finish128();
        seen.insert({h.hi, h.lo});
        high.insert(h.hi);
        low.insert(h.lo);
        ++count;
      }
    }
  }
  EXPECT_EQ(seen.size(), count);
  EXPECT_EQ(high.size(), count);
  EXPECT_EQ(low.size(), count);
}

TEST(Hash, EveryInputBitMovesAboutHalfOfTheOutput) {
  // Averaged over 256 words, each of the 64 input bits must flip 128-bit outputs by 64 +- 3 bits:
  // five standard deviations of the mean (sqrt(128)/2/16 = 0.35) leave room, a lazy mix does not
  // pass.
  for (int bit = 0; bit < 64; ++bit) {
    int flips = 0;
    for (uint64_t i = 0; i < 256; ++i) {
      const Hash128 a = Hasher().Word(i).Word(77).Finish128();
      const Hash128 b = Hasher().Word(i ^ (1ull << bit)).Word(77).Finish128();
      flips += std::popcount(a.hi ^ b.hi) + std::popcount(a.lo ^ b.lo);
    }
    EXPECT_NEAR(flips / 256.0, 64.0, 3.0) << "input bit " << bit;
  }
}

}  // namespace
}  // namespace uccl
