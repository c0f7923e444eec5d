// Tests of csrc/base/copy.h: every size and alignment that takes another way, with each level of
// vector instructions, and bytes around the destination that must not change.
#include "csrc/base/copy.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace uccl {
namespace {

constexpr size_t kGuard = 64;
constexpr std::byte kMark{0xa5};

std::vector<std::byte> Contents(size_t bytes) {
  std::vector<std::byte> contents(bytes);
  uint64_t x = 1;
  for (std::byte& b : contents) {
    x = x * 6364136223846793005ull + 1442695040888963407ull;
    b = static_cast<std::byte>(x >> 56);
  }
  return contents;
}

struct NamedCopy {
  std::string name;
  CopyFunction copy;
};
std::vector<NamedCopy> AllCopies() {
  std::vector<NamedCopy> all = {{"CopyBytes", &CopyBytes}, {"StreamBytes", &StreamBytes}};
  for (VectorLevel level : VectorLevels()) {
    all.push_back({std::string("copy ") + VectorLevelName(level), CopyBytesAt(level)});
    all.push_back({std::string("stream ") + VectorLevelName(level), StreamBytesAt(level)});
  }
  return all;
}

// `to_at` and `from_at` are offsets from a 64-byte boundary.
class Place final {
 public:
  explicit Place(size_t most)
      : from_(Contents(most + 2 * kGuard)), to_(most + 4 * kGuard, kMark), clean_(to_) {}

  // Empty if right.
  std::string Check(CopyFunction copy, size_t bytes, size_t to_at, size_t from_at) {
    std::byte* const to = Aligned(to_.data() + kGuard) + to_at;
    const std::byte* const from = Aligned(from_.data()) + from_at;
    copy(to, from, bytes);
    StreamFence();
    std::string wrong;
    if (std::memcmp(to, from, bytes) != 0) wrong = "wrong bytes";
    std::memset(to, static_cast<int>(kMark), bytes);
    // What is changed now was changed outside.
    if (wrong.empty() && std::memcmp(to_.data(), clean_.data(), to_.size()) != 0)
      wrong = "wrote outside of its destination";
    return wrong;
  }

 private:
  template <class T>
  static T* Aligned(T* p) {
    return p + -reinterpret_cast<uintptr_t>(p) % 64;
  }
  std::vector<std::byte> from_, to_, clean_;
};

TEST(Copy, EverySize) {
  Place place(9000);
  for (const NamedCopy& c : AllCopies()) {
    for (size_t bytes = 0; bytes <= 8600; ++bytes) {
      const std::string wrong = place.Check(c.copy, bytes, bytes * 7 % 64, bytes * 11 % 64);
      ASSERT_EQ(wrong, "") << c.name << ", " << bytes << " bytes";
    }
  }
}

TEST(Copy, EveryAlignment) {
  Place place(9000);
  for (const NamedCopy& c : AllCopies()) {
    for (size_t to_at = 0; to_at < 64; ++to_at) {
      for (size_t from_at = 0; from_at < 64; ++from_at) {
        for (size_t bytes : {63, 4096, 4351, 8192 + 63}) {
          const std::string wrong = place.Check(c.copy, bytes, to_at, from_at);
          ASSERT_EQ(wrong, "") << c.name << ", " << bytes << " bytes from " << from_at << " to "
                               << to_at;
        }
      }
    }
  }
}

TEST(Copy, LargeOnes) {
  Place place(3 * kStreamBytes);
  for (const NamedCopy& c : AllCopies()) {
    for (size_t bytes : {kStreamBytes - 1, kStreamBytes, kStreamBytes + 1, 2 * kStreamBytes + 77}) {
      const std::string wrong = place.Check(c.copy, bytes, 1, 33);
      ASSERT_EQ(wrong, "") << c.name << ", " << bytes << " bytes";
    }
  }
}

TEST(Copy, NothingFromNowhere) {
  for (const NamedCopy& c : AllCopies()) c.copy(nullptr, nullptr, 0);
}

TEST(VectorLevel, Levels_AreNamedAndEndWithTheBaseline) {
  ASSERT_FALSE(VectorLevels().empty());
  EXPECT_EQ(VectorLevels().back(), VectorLevel::kBaseline);
  EXPECT_EQ(VectorLevels().front(), BestVectorLevel());
  for (VectorLevel level : VectorLevels()) EXPECT_STRNE(VectorLevelName(level), "unknown");
  EXPECT_STREQ(VectorLevelName(static_cast<VectorLevel>(99)), "unknown");
}

}  // namespace
}  // namespace uccl
