// Tests that the kernels of reduce_kernels.h give the same bits with all vector instructions that
// this machine has, for any bits that come in. Whether they are the right bits is reduce_test.cc's
// business.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "csrc/base/copy.h"
#include "csrc/collectives/reduce.h"

namespace uccl::coll {
namespace {

using Buffer = std::vector<std::byte>;

constexpr DType kReducible[] = {DType::kPred, DType::kS8,  DType::kS16, DType::kS32, DType::kS64,
                                DType::kU8,   DType::kU16, DType::kU32, DType::kU64, DType::kF16,
                                DType::kBF16, DType::kF32, DType::kF64, DType::kC64, DType::kC128};
constexpr ReduceOp kOps[] = {ReduceOp::kSum,  ReduceOp::kMax, ReduceOp::kMin,
                             ReduceOp::kProd, ReduceOp::kAnd, ReduceOp::kOr};

// Bytes of one real number; 0 for integers.
size_t FloatBytes(DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF32:
    case DType::kC64:
      return 4;
    case DType::kF64:
    case DType::kC128:
      return 8;
    default:
      return 0;
  }
}

// Random bits; of floats every fourth is zero, infinite, not a number (quiet or not) or subnormal.
Buffer RandomBits(DType dtype, size_t bytes, std::mt19937_64* random) {
  Buffer b(bytes);
  const size_t size = FloatBytes(dtype);
  for (size_t i = 0; i < bytes; ++i) b[i] = static_cast<std::byte>((*random)());
  if (size == 0) return b;
  for (size_t i = 0; i + size <= bytes; i += size) {
    if ((*random)() % 4 != 0) continue;
    uint64_t bits = 0;
    std::memcpy(&bits, &b[i], size);
    const int mantissa_bits = dtype == DType::kBF16 ? 7 : size == 2 ? 10 : size == 4 ? 23 : 52;
    const uint64_t mantissa = (uint64_t{1} << mantissa_bits) - 1;
    const uint64_t sign = uint64_t{1} << (8 * size - 1);
    switch ((*random)() % 4) {
      case 0:
        bits &= sign;
        break;
      case 1:
        bits = (bits & sign) | (sign - 1 - mantissa);
        break;
      case 2:
        bits |= sign - 1 - mantissa;
        break;
      default:
        bits &= sign | mantissa;
    }
    std::memcpy(&b[i], &bits, size);
  }
  return b;
}

// The first output of `outputs`; all must be equal. Everything starts `shift` elements past a place
// that is aligned as memory from the allocator is.
Buffer ReduceAt(VectorLevel level, DType dtype, ReduceOp op, const std::vector<Buffer>& in,
                size_t outputs, size_t count, size_t shift) {
  const size_t skip = shift * DTypeBytes(dtype);
  std::vector<const std::byte*> from;
  for (const Buffer& b : in) from.push_back(b.data() + skip);
  std::vector<Buffer> out(outputs, Buffer(skip + count * DTypeBytes(dtype)));
  std::vector<std::byte*> to;
  for (Buffer& b : out) to.push_back(b.data() + skip);
  ReduceElementsAt(level, dtype, op, from, to, count);
  for (size_t k = 1; k < outputs; ++k) EXPECT_EQ(out[k], out[0]) << "output " << k;
  return out[0];
}

void ExpectSameAtAllLevels(DType dtype, ReduceOp op, size_t n, size_t outputs, size_t count,
                           size_t shift, std::mt19937_64* random) {
  SCOPED_TRACE(std::string(ReduceOpName(op)) + " " + DTypeName(dtype) + " n=" + std::to_string(n) +
               " count=" + std::to_string(count));
  std::vector<Buffer> in;
  for (size_t i = 0; i < n; ++i)
    in.push_back(RandomBits(dtype, (shift + count) * DTypeBytes(dtype), random));
  const Buffer want = ReduceAt(VectorLevel::kBaseline, dtype, op, in, outputs, count, shift);
  for (VectorLevel level : VectorLevels()) {
    const Buffer got = ReduceAt(level, dtype, op, in, outputs, count, shift);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], want[i]) << VectorLevelName(level) << ", element " << i / DTypeBytes(dtype);
    }
  }
}

TEST(ReduceLevels, AnyBits_GiveTheSameBits) {
  std::mt19937_64 random(1);
  for (DType dtype : kReducible) {
    for (ReduceOp op : kOps) {
      if (!ReduceSupported(dtype, op)) continue;
      for (size_t n : {2, 3, 4, 5, 8, 13}) {
        for (size_t count : {1, 7, 32, 333}) {
          ExpectSameAtAllLevels(dtype, op, n, 2, count, count % 3, &random);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Where results are streamed to memory, and where a block ends within a tail.
TEST(ReduceLevels, LargeResults_GiveTheSameBits) {
  std::mt19937_64 random(2);
  for (DType dtype : {DType::kF16, DType::kF32, DType::kU8}) {
    const size_t count = kStreamBytes / 3 / DTypeBytes(dtype) + 5;
    ExpectSameAtAllLevels(dtype, ReduceOp::kSum, 3, 3, count, 1, &random);
    if (HasFatalFailure()) return;
  }
}

// The same element in the middle of a vector, in the tail, and alone.
TEST(ReduceLevels, Place_DoesNotChangeAnElement) {
  std::mt19937_64 random(3);
  constexpr size_t kCount = 75;
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kC64}) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd}) {
      const size_t size = DTypeBytes(dtype);
      std::vector<Buffer> in;
      for (size_t i = 0; i < 6; ++i) in.push_back(RandomBits(dtype, kCount * size, &random));
      for (VectorLevel level : VectorLevels()) {
        const Buffer all = ReduceAt(level, dtype, op, in, 1, kCount, 0);
        for (size_t e = 0; e < kCount; ++e) {
          std::vector<Buffer> one;
          for (const Buffer& b : in) {
            one.emplace_back(b.begin() + static_cast<std::ptrdiff_t>(e * size),
                             b.begin() + static_cast<std::ptrdiff_t>((e + 1) * size));
          }
          const Buffer alone = ReduceAt(level, dtype, op, one, 1, 1, 0);
          ASSERT_EQ(std::memcmp(alone.data(), all.data() + e * size, size), 0)
              << VectorLevelName(level) << " " << DTypeName(dtype) << " element " << e;
        }
      }
    }
  }
}

TEST(ReduceLevels, Nan_IsTheQuietPositiveOne) {
  const float nan = std::numeric_limits<float>::signaling_NaN();
  const float values[] = {-nan, nan, std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()};
  const uint32_t want = 0x7fc00000;
  for (VectorLevel level : VectorLevels()) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProd}) {
      for (float first : values) {
        Buffer a(4), b(4);
        std::memcpy(a.data(), &first, 4);
        std::memcpy(b.data(), &values[0], 4);
        EXPECT_EQ(std::memcmp(ReduceAt(level, DType::kF32, op, {a, b}, 1, 1, 0).data(), &want, 4),
                  0);
        EXPECT_EQ(std::memcmp(ReduceAt(level, DType::kF32, op, {b, a}, 1, 1, 0).data(), &want, 4),
                  0);
      }
    }
  }
}

// One input is not computed with: even a signalling NaN stays what it is.
TEST(ReduceLevels, SingleInput_IsCopied) {
  std::mt19937_64 random(4);
  for (DType dtype : {DType::kF16, DType::kF32, DType::kC128}) {
    const Buffer in = RandomBits(dtype, 999 * DTypeBytes(dtype), &random);
    for (VectorLevel level : VectorLevels())
      EXPECT_EQ(ReduceAt(level, dtype, ReduceOp::kSum, {in}, 3, 999, 0), in);
  }
}

}  // namespace
}  // namespace uccl::coll
