// Rows against a naive version: every kind of index, odd widths, guards, NaN and signed zeros.
#include "csrc/moe/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace uccl::moe {
namespace {

float FromBFloat(uint16_t v) { return std::bit_cast<float>(static_cast<uint32_t>(v) << 16); }

// By comparing the distance to both neighbours, unlike the code under test.
uint16_t NearestBFloat(float f) {
  const auto down = static_cast<uint16_t>(std::bit_cast<uint32_t>(f) >> 16);
  if (std::isnan(f)) return static_cast<uint16_t>(down | 0x40u);
  if (std::isinf(f)) return down;
  const auto up = static_cast<uint16_t>(down + 1);
  const double below = std::fabs(static_cast<double>(f) - FromBFloat(down));
  double above = std::fabs(static_cast<double>(FromBFloat(up)) - static_cast<double>(f));
  if (std::isinf(FromBFloat(up))) above = std::ldexp(1.0, 128) - std::fabs(static_cast<double>(f));
  if (below != above) return below < above ? down : up;
  return (down & 1) == 0 ? down : up;
}

TEST(Rows, FindOutsideNamesTheFirst) {
  const std::vector<int32_t> index = {-1, 0, 3, -7, 4, 9};
  EXPECT_EQ(FindOutside(index, 10), std::nullopt);
  EXPECT_EQ(FindOutside(index, 4), 4u);
  EXPECT_EQ(FindOutside(index, 0), 1u);
  EXPECT_EQ(FindOutside({}, 0), std::nullopt);
}

TEST(Rows, CountBeforeNumbersEachKey) {
  std::mt19937 rng(3);
  for (size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{300}}) {
    constexpr size_t kKeys = 5;
    std::vector<int32_t> keys(size), before(size + 1, 77), seen(kKeys, 99);
    for (auto& key : keys) key = static_cast<int32_t>(rng() % (kKeys + 2)) - 2;
    CountBefore(keys, seen, {before.data(), size});
    for (size_t n = 0; n < size; ++n) {
      const auto here = keys.begin() + static_cast<std::ptrdiff_t>(n);
      const auto want = keys[n] < 0 ? -1 : std::count(keys.begin(), here, keys[n]);
      EXPECT_EQ(before[n], want) << n;
    }
    EXPECT_EQ(before[size], 77);
    for (size_t key = 0; key < kKeys; ++key)
      EXPECT_EQ(seen[key], std::count(keys.begin(), keys.end(), static_cast<int32_t>(key)));
  }
}

TEST(Rows, TakeCopiesRunsAndFillsGaps) {
  std::mt19937 rng(1);
  for (size_t row_bytes : {size_t{1}, size_t{3}, size_t{64}, size_t{1000}}) {
    std::vector<std::byte> from(20 * row_bytes);
    for (auto& b : from) b = static_cast<std::byte>(rng());
    for (int turn = 0; turn < 50; ++turn) {
      std::vector<int32_t> index(rng() % 40);
      for (size_t n = 0; n < index.size(); ++n) {
        const bool follows = n > 0 && rng() % 2 == 0 && index[n - 1] < 19;
        index[n] = follows ? index[n - 1] + 1 : static_cast<int32_t>(rng() % 25) - 5;
        if (index[n] >= 20) index[n] = -1;
      }
      std::vector<std::byte> to(index.size() * row_bytes + 8, std::byte{0x5a});
      const bool fill = turn % 2 == 0;
      TakeRows(from.data(), row_bytes, index, fill, /*stream=*/turn % 3 == 0, to.data());
      for (size_t n = 0; n < index.size(); ++n) {
        for (size_t b = 0; b < row_bytes; ++b) {
          const auto nothing = fill ? std::byte{0} : std::byte{0x5a};
          const auto want =
              index[n] < 0 ? nothing : from[static_cast<size_t>(index[n]) * row_bytes + b];
          ASSERT_EQ(to[n * row_bytes + b], want) << n;
        }
      }
      for (size_t b = index.size() * row_bytes; b < to.size(); ++b)
        ASSERT_EQ(to[b], std::byte{0x5a});
    }
  }
}

TEST(Rows, FoldAddsInOrder) {
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  for (size_t elements : {size_t{1}, size_t{7}, size_t{1023}, size_t{1024}, size_t{2500}}) {
    constexpr size_t kFrom = 12, kTo = 9;
    std::vector<float> wide(kFrom * elements);
    for (float& v : wide) v = std::ldexp(normal(rng), static_cast<int>(rng() % 30) - 15);
    std::vector<uint16_t> narrow(wide.size());
    for (size_t i = 0; i < wide.size(); ++i) narrow[i] = NearestBFloat(wide[i]);
    for (size_t width : {size_t{1}, size_t{2}, size_t{8}}) {
      std::vector<int32_t> table(kTo * width);
      for (int32_t& v : table) v = static_cast<int32_t>(rng() % (kFrom + 4)) - 4;
      for (RowType from : {RowType::kF32, RowType::kBF16}) {
        for (RowType to : {RowType::kF32, RowType::kBF16}) {
          const void* source = from == RowType::kF32 ? static_cast<const void*>(wide.data())
                                                     : static_cast<const void*>(narrow.data());
          std::vector<std::byte> out(kTo * elements * RowTypeBytes(to) + 4, std::byte{0x5a});
          FoldRows(from, static_cast<const std::byte*>(source), elements, table, width, to,
                   out.data());
          for (size_t t = 0; t < kTo; ++t) {
            for (size_t i = 0; i < elements; ++i) {
              float want = 0;
              for (size_t j = 0; j < width; ++j) {
                const int32_t row = table[t * width + j];
                if (row < 0) continue;
                const size_t at = static_cast<size_t>(row) * elements + i;
                want += from == RowType::kF32 ? wide[at] : FromBFloat(narrow[at]);
              }
              const size_t at = t * elements + i;
              if (to == RowType::kF32) {
                float got;
                std::memcpy(&got, out.data() + at * 4, 4);
                ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want));
              } else {
                uint16_t got;
                std::memcpy(&got, out.data() + at * 2, 2);
                ASSERT_EQ(got, NearestBFloat(want));
              }
            }
          }
          EXPECT_EQ(out.back(), std::byte{0x5a});
        }
      }
    }
  }
}

TEST(Rows, EveryLevelGivesTheSameSums) {
  std::mt19937 rng(4);
  constexpr size_t kElements = 333, kRows = 9;
  // Any bits, but NaN only as the one that sums make.
  std::vector<std::vector<uint32_t>> words(kRows, std::vector<uint32_t>(kElements));
  for (auto& row : words) {
    for (uint32_t& w : row) {
      w = static_cast<uint32_t>(rng());
      const auto is_nan = [](uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; };
      if (is_nan(w) || is_nan(w << 16)) w = 0x7fc07fc0u;
    }
  }
  for (RowType from : {RowType::kF32, RowType::kBF16}) {
    for (RowType to : {RowType::kF32, RowType::kBF16}) {
      for (size_t elements : {size_t{1}, size_t{15}, size_t{16}, size_t{130}, kElements}) {
        for (size_t count = 0; count <= kRows; ++count) {
          std::vector<const std::byte*> rows;
          for (size_t j = 0; j < count; ++j)
            rows.push_back(reinterpret_cast<const std::byte*>(words[j].data()));
          const size_t bytes = elements * RowTypeBytes(to);
          std::vector<std::byte> want(bytes + 4, std::byte{0x5a});
          SumRowsAt(VectorLevel::kBaseline, from, rows, elements, to, want.data());
          for (const VectorLevel level : VectorLevels()) {
            std::vector<std::byte> got(bytes + 4, std::byte{0x5a});
            SumRowsAt(level, from, rows, elements, to, got.data());
            EXPECT_EQ(got, want) << VectorLevelName(level) << " " << elements << " " << count;
            EXPECT_EQ(got.back(), std::byte{0x5a});
          }
        }
      }
    }
  }
}

TEST(Rows, FoldKeepsSpecialValues) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // -0 alone gives +0, since sums begin there; the poison in row 1 is not read.
  const std::vector<float> rows = {-0.0f, inf, 3.0f, nan, nan, nan, 1.0f, -inf, -3.0f};
  const std::vector<int32_t> table = {0, -1, -1, 0, 2, -1, 1, 0, -1, -1, -1, -1};
  float out[12];
  FoldRows(RowType::kF32, reinterpret_cast<const std::byte*>(rows.data()), 3, table, 3,
           RowType::kF32, reinterpret_cast<std::byte*>(out));
  EXPECT_EQ(std::bit_cast<uint32_t>(out[0]), 0u);
  EXPECT_EQ(out[1], inf);
  EXPECT_EQ(out[3], 1.0f);
  EXPECT_TRUE(std::isnan(out[4]));
  EXPECT_EQ(out[5], 0.0f);
  EXPECT_TRUE(std::isnan(out[6]));
  for (int i = 9; i < 12; ++i) EXPECT_EQ(out[i], 0.0f);
  uint16_t narrow[12];
  FoldRows(RowType::kF32, reinterpret_cast<const std::byte*>(rows.data()), 3, table, 3,
           RowType::kBF16, reinterpret_cast<std::byte*>(narrow));
  EXPECT_EQ(narrow[1], 0x7f80);
  EXPECT_TRUE(std::isnan(FromBFloat(narrow[4])));
}

TEST(Rows, EmptyBuffers) {
  TakeRows(nullptr, 4, {}, true, true, nullptr);
  FoldRows(RowType::kF32, nullptr, 5, {}, 3, RowType::kF32, nullptr);
  FoldRows(RowType::kF32, nullptr, 0, {}, 0, RowType::kBF16, nullptr);
}

}  // namespace
}  // namespace uccl::moe
