// Tests of csrc/collectives/wide_reduce.h: partial results that are kept wide give the bits of one
// reduction over everything.
#include "csrc/collectives/wide_reduce.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "csrc/collectives/reduce.h"

namespace uccl::coll {
namespace {

using Vector = std::vector<std::byte>;

// Every 16-bit pattern, so every NaN, infinity, subnormal and both zeros.
std::vector<Vector> AllPatterns(size_t n, std::mt19937* random) {
  std::vector<Vector> all;
  for (size_t r = 0; r < n; ++r) {
    Vector v(2 * 65536);
    const uint32_t mask = (*random)();
    for (uint32_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<uint16_t>(r == 0 ? i : (i * 40503u) ^ mask);
      std::memcpy(&v[2 * size_t{i}], &bits, 2);
    }
    all.push_back(std::move(v));
  }
  return all;
}

bool IsNan(DType dtype, uint16_t bits) {
  return (bits & 0x7fff) > (dtype == DType::kF16 ? 0x7c00 : 0x7f80);
}
uint16_t At(const Vector& v, size_t i) {
  uint16_t bits = 0;
  std::memcpy(&bits, &v[2 * i], 2);
  return bits;
}
// The first element that differs, or the size. NaNs are alike.
size_t FirstDifference(DType dtype, const Vector& a, const Vector& b) {
  size_t i = 0;
  for (; i < a.size() / 2; ++i) {
    if (At(a, i) != At(b, i) && !(IsNan(dtype, At(a, i)) && IsNan(dtype, At(b, i)))) break;
  }
  return i;
}

TEST(WideReduce, OneRankWidenedAndNarrowed_IsItself) {
  std::mt19937 random(3);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const Vector in = AllPatterns(1, &random)[0];
    Vector wide(4 * 65536), out(in.size());
    const WideInput narrow_in{in.data(), false}, wide_in{wide.data(), true};
    const WideOutput wide_out{wide.data(), true}, narrow_out{out.data(), false};
    ReduceWide(dtype, ReduceOp::kSum, std::span(&narrow_in, 1), std::span(&wide_out, 1), 65536);
    ReduceWide(dtype, ReduceOp::kSum, std::span(&wide_in, 1), std::span(&narrow_out, 1), 65536);
    EXPECT_EQ(FirstDifference(dtype, in, out), 65536u);
  }
}

// ((0 1) (2 3)) 4, with (0 1), (2 3) or all four formed elsewhere.
TEST(WideReduce, PartialResults_GiveTheBitsOfAll) {
  std::mt19937 random(4);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd}) {
      const std::vector<Vector> in = AllPatterns(5, &random);
      const size_t count = 65536;
      Vector want(2 * count), got(2 * count), left(4 * count), right(4 * count), four(4 * count);
      std::vector<const std::byte*> all;
      for (const Vector& v : in) all.push_back(v.data());
      std::byte* const want_at = want.data();
      ReduceElements(dtype, op, all, std::span(&want_at, 1), count);

      const auto reduce = [&](const std::vector<WideInput>& from, const WideOutput& to) {
        ReduceWide(dtype, op, from, std::span(&to, 1), count);
      };
      const auto raw = [&](size_t r) { return WideInput{in[r].data(), false}; };
      reduce({raw(0), raw(1)}, {left.data(), true});
      reduce({raw(2), raw(3)}, {right.data(), true});
      reduce({{left.data(), true}, {right.data(), true}}, {four.data(), true});
      reduce({{four.data(), true}, raw(4)}, {got.data(), false});
      EXPECT_EQ(FirstDifference(dtype, got, want), count)
          << DTypeName(dtype) << " " << ReduceOpName(op);
    }
  }
}

// What this file is for: with a partial result that was rounded the sum would be another one.
TEST(WideReduce, RoundedOnTheWay_IsAnotherResult) {
  // 2048 + 1 is no float16, and 1 + 1 is enough to reach the next one.
  const std::vector<uint16_t> values = {0x6800, 0x3c00, 0x3c00};  // 2048, 1, 1
  const auto raw = [&](size_t r) {
    return WideInput{reinterpret_cast<const std::byte*>(&values[r]), false};
  };
  float wide = 0;
  uint16_t narrow = 0, from_wide = 0, from_narrow = 0;
  const auto reduce = [&](const std::vector<WideInput>& from, void* to, bool to_wide) {
    const WideOutput out{static_cast<std::byte*>(to), to_wide};
    ReduceWide(DType::kF16, ReduceOp::kSum, from, std::span(&out, 1), 1);
  };
  reduce({raw(0), raw(1)}, &wide, true);
  reduce({{reinterpret_cast<const std::byte*>(&wide), true}, raw(2)}, &from_wide, false);
  reduce({raw(0), raw(1)}, &narrow, false);
  reduce({{reinterpret_cast<const std::byte*>(&narrow), false}, raw(2)}, &from_narrow, false);
  EXPECT_EQ(from_wide, 0x6801);    // 2050
  EXPECT_EQ(from_narrow, 0x6800);  // 2048
}

TEST(WideReduce, NothingWide_IsReduceElements) {
  const std::vector<int32_t> a = {1, 2, 3}, b = {10, 20, 30};
  std::vector<int32_t> sum(3);
  const std::vector<WideInput> from = {{reinterpret_cast<const std::byte*>(a.data()), false},
                                       {reinterpret_cast<const std::byte*>(b.data()), false}};
  const WideOutput to{reinterpret_cast<std::byte*>(sum.data()), false};
  ReduceWide(DType::kS32, ReduceOp::kSum, from, std::span(&to, 1), 3);
  EXPECT_EQ(sum, (std::vector<int32_t>{11, 22, 33}));
}

}  // namespace
}  // namespace uccl::coll
