// Tests of csrc/wire/crc32c.h: every implementation against published values and against one bit at
// a time.
#include "csrc/wire/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace uccl::wire {
namespace {

uint32_t Bitwise(uint32_t crc, Bytes bytes) {
  uint32_t r = ~crc;
  for (std::byte b : bytes) {
    r ^= static_cast<uint8_t>(b);
    for (int bit = 0; bit < 8; ++bit) r = (r >> 1) ^ ((r & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~r;
}

Bytes Text(std::string_view text) { return std::as_bytes(std::span(text)); }

std::vector<std::byte> RandomBytes(std::mt19937_64& rng, size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
  return bytes;
}

class Crc32c : public testing::TestWithParam<Crc32cImplementation> {
 protected:
  uint32_t Extend(uint32_t crc, Bytes bytes) const { return GetParam().extend(crc, bytes); }
};

TEST_P(Crc32c, Extend_PublishedValues) {
  EXPECT_EQ(Extend(0, {}), 0u);
  EXPECT_EQ(Extend(0, Text("a")), 0xc1d04330u);
  EXPECT_EQ(Extend(0, Text("123456789")), 0xe3069283u);
  // RFC 3720 appendix B.4.
  std::vector<std::byte> bytes(32, std::byte{0});
  EXPECT_EQ(Extend(0, bytes), 0x8a9136aau);
  bytes.assign(32, std::byte{0xff});
  EXPECT_EQ(Extend(0, bytes), 0x62a8ab43u);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(Extend(0, bytes), 0x46dd794eu);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(31 - i);
  EXPECT_EQ(Extend(0, bytes), 0x113fdb5cu);
}

TEST_P(Crc32c, Extend_EqualsBitwiseAtEveryLengthAndAlignment) {
  std::mt19937_64 rng(1);
  for (size_t size = 0; size <= 1300; ++size) {
    const size_t shift = size % 8 + rng() % 8;
    // Exactly as long as needed, so that a read past the end is seen by the address sanitizer.
    const std::vector<std::byte> bytes = RandomBytes(rng, shift + size);
    const auto before = static_cast<uint32_t>(rng());
    const Bytes view = Bytes(bytes).subspan(shift);
    ASSERT_EQ(Extend(before, view), Bitwise(before, view)) << "size " << size << " at " << shift;
  }
}

// Around the multiples of three blocks, where the streams are joined, and of groups of vectors.
TEST_P(Crc32c, Extend_EqualsBitwiseAroundBlocks) {
  std::mt19937_64 rng(2);
  const std::vector<std::byte> bytes = RandomBytes(rng, 1 << 15);
  for (size_t block : {3 * 128, 3 * 1360, 256, 832}) {
    for (size_t size = block; size + 9 < bytes.size(); size += block) {
      for (size_t more : {-9, -8, -1, 0, 1, 8, 9}) {
        const Bytes view = Bytes(bytes).first(size + more);
        ASSERT_EQ(Extend(0, view), Bitwise(0, view)) << "size " << view.size();
      }
    }
  }
}

TEST_P(Crc32c, Extend_OfPartsEqualsExtendOfWhole) {
  std::mt19937_64 rng(3);
  for (int round = 0; round < 500; ++round) {
    const std::vector<std::byte> bytes = RandomBytes(rng, rng() % 10000);
    const uint32_t whole = Extend(0, bytes);
    uint32_t crc = 0;
    for (Bytes left = bytes; !left.empty();) {
      const size_t part = rng() % (left.size() + 1);
      crc = Extend(crc, left.first(part));
      left = left.subspan(part);
    }
    ASSERT_EQ(crc, whole) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Crc32c, testing::ValuesIn(Crc32cImplementations()),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::erase(name, '.');
                           return name;
                         });

TEST(ExtendCrc32c, ExtendCrc32c_EqualsEveryImplementation) {
  std::mt19937_64 rng(4);
  for (int round = 0; round < 500; ++round) {
    const std::vector<std::byte> bytes = RandomBytes(rng, rng() % 40000);
    const auto before = static_cast<uint32_t>(rng());
    const uint32_t crc = ExtendCrc32c(before, bytes);
    for (const Crc32cImplementation& implementation : Crc32cImplementations()) {
      ASSERT_EQ(implementation.extend(before, bytes), crc) << implementation.name;
    }
  }
}

TEST(ExtendCrc32c, Crc32cImplementations_TakesTheInstructionWhereThereIsOne) {
  const std::span<const Crc32cImplementation> all = Crc32cImplementations();
  ASSERT_FALSE(all.empty());
  EXPECT_STREQ(all.back().name, "tables");
#if defined(__x86_64__)
  const auto has = [&all](const char* name) {
    return std::any_of(all.begin(), all.end(), [name](const Crc32cImplementation& i) {
      return std::strcmp(i.name, name) == 0;
    });
  };
  EXPECT_EQ(has("sse4.2"), __builtin_cpu_supports("sse4.2") != 0);
  EXPECT_EQ(has("vpclmulqdq"),
            __builtin_cpu_supports("vpclmulqdq") != 0 && __builtin_cpu_supports("avx512f") != 0);
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
  EXPECT_STREQ(all.front().name, "armv8");
#else
  EXPECT_EQ(all.size(), 1u);
#endif
}

}  // namespace
}  // namespace uccl::wire
