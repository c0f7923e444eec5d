// Tests of csrc/collectives/reduce.h and dtype.h against a naive oracle: one element at a time, the
// tree by recursion, 16-bit floats by arithmetic in double instead of bit tricks.
#include "csrc/collectives/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace uccl::coll {
namespace {

constexpr DType kReducible[] = {DType::kPred, DType::kS8,  DType::kS16, DType::kS32, DType::kS64,
                                DType::kU8,   DType::kU16, DType::kU32, DType::kU64, DType::kF16,
                                DType::kBF16, DType::kF32, DType::kF64, DType::kC64, DType::kC128};
constexpr ReduceOp kOps[] = {ReduceOp::kSum,  ReduceOp::kMax, ReduceOp::kMin,
                             ReduceOp::kProd, ReduceOp::kAnd, ReduceOp::kOr};

// A 16-bit float format: bits of mantissa, and the exponent of the smallest normal number.
struct Format {
  int mantissa_bits, min_exponent;
};
constexpr Format kHalfFormat{10, -14}, kBFloatFormat{7, -126};

double FromBits(Format f, uint16_t bits) {
  const int exponent_bits = 15 - f.mantissa_bits;
  const int exponent = (bits >> f.mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << f.mantissa_bits) - 1);
  double magnitude = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    magnitude = mantissa ? std::numeric_limits<double>::quiet_NaN()
                         : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, f.min_exponent - f.mantissa_bits);
  } else {
    magnitude = std::ldexp(mantissa + (1 << f.mantissa_bits),
                           f.min_exponent + exponent - 1 - f.mantissa_bits);
  }
  return bits & 0x8000 ? -magnitude : magnitude;
}

// To nearest, ties to even: nearbyint of the value in units of its last place.
uint16_t ToBits(Format f, float value) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const int all_ones = (1 << (15 - f.mantissa_bits)) - 1;
  const auto infinity = static_cast<uint16_t>(sign | (all_ones << f.mantissa_bits));
  if (std::isnan(value)) return static_cast<uint16_t>(infinity | 1);  // any NaN; see Same
  if (std::isinf(value)) return infinity;
  if (value == 0) return sign;
  const double magnitude = std::fabs(static_cast<double>(value));
  const int exponent = std::max(std::ilogb(magnitude), f.min_exponent);
  const double units = std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent));
  // Units beyond the mantissa carry into the exponent field by themselves.
  const auto encoded = static_cast<uint32_t>(units) +
                       (static_cast<uint32_t>(exponent - f.min_exponent) << f.mantissa_bits);
  return encoded >= static_cast<uint32_t>(all_ones << f.mantissa_bits)
             ? infinity
             : static_cast<uint16_t>(sign | encoded);
}

// --- oracle for one element ---

template <class A>
A Fold(const std::vector<A>& v, size_t lo, size_t hi, const std::function<A(A, A)>& op) {
  if (hi - lo == 1) return v[lo];
  size_t width = 1;
  while (width * 2 < hi - lo) width *= 2;
  return op(Fold(v, lo, lo + width, op), Fold(v, lo + width, hi, op));
}

template <class A>
A ApplyFloat(ReduceOp op, A a, A b) {
  switch (op) {
    case ReduceOp::kSum:
      return a + b;
    case ReduceOp::kProd:
      return a * b;
    case ReduceOp::kMax:
      return std::isnan(a) || std::isnan(b) ? std::numeric_limits<A>::quiet_NaN() : a > b ? a : b;
    default:
      return std::isnan(a) || std::isnan(b) ? std::numeric_limits<A>::quiet_NaN() : a < b ? a : b;
  }
}
template <class T>
T ApplyInteger(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum:
      return static_cast<T>(static_cast<unsigned __int128>(a) + static_cast<unsigned __int128>(b));
    case ReduceOp::kProd:
      return static_cast<T>(static_cast<unsigned __int128>(a) * static_cast<unsigned __int128>(b));
    case ReduceOp::kMax:
      return a > b ? a : b;
    case ReduceOp::kMin:
      return a < b ? a : b;
    case ReduceOp::kAnd:
      return static_cast<T>(a & b);
    default:
      return static_cast<T>(a | b);
  }
}

using Buffer = std::vector<std::byte>;

template <class T>
T Read(const Buffer& b, size_t i) {
  T v;
  std::memcpy(&v, b.data() + i * sizeof(T), sizeof(T));
  return v;
}
template <class T>
void Write(Buffer* b, size_t i, T v) {
  std::memcpy(b->data() + i * sizeof(T), &v, sizeof(T));
}

template <class T>
Buffer ReduceWith(const std::vector<Buffer>& in, size_t count, const std::function<T(T, T)>& op) {
  Buffer out(count * sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    std::vector<T> values;
    for (const Buffer& b : in) values.push_back(Read<T>(b, i));
    Write(&out, i, Fold<T>(values, 0, values.size(), op));
  }
  return out;
}

Buffer ReduceSmallFloat(const std::vector<Buffer>& in, size_t count, ReduceOp op, Format format) {
  Buffer out(count * 2);
  for (size_t i = 0; i < count; ++i) {
    std::vector<float> values;
    for (const Buffer& b : in)
      values.push_back(static_cast<float>(FromBits(format, Read<uint16_t>(b, i))));
    const float sum = Fold<float>(values, 0, values.size(),
                                  [op](float a, float b) { return ApplyFloat(op, a, b); });
    Write(&out, i, ToBits(format, sum));
  }
  return out;
}

Buffer Oracle(DType dtype, ReduceOp op, const std::vector<Buffer>& in, size_t count) {
  const auto integer = [&]<class T>(T) {
    return ReduceWith<T>(in, count, [op](T a, T b) { return ApplyInteger(op, a, b); });
  };
  const auto real = [&]<class T>(T) {
    return ReduceWith<T>(in, count, [op](T a, T b) { return ApplyFloat(op, a, b); });
  };
  const auto complex = [&]<class T>(T) {
    return ReduceWith<T>(in, count,
                         [op](T a, T b) { return op == ReduceOp::kSum ? a + b : a * b; });
  };
  switch (dtype) {
    case DType::kPred:
      return integer(uint8_t{});
    case DType::kS8:
      return integer(int8_t{});
    case DType::kS16:
      return integer(int16_t{});
    case DType::kS32:
      return integer(int32_t{});
    case DType::kS64:
      return integer(int64_t{});
    case DType::kU8:
      return integer(uint8_t{});
    case DType::kU16:
      return integer(uint16_t{});
    case DType::kU32:
      return integer(uint32_t{});
    case DType::kU64:
      return integer(uint64_t{});
    case DType::kF16:
      return ReduceSmallFloat(in, count, op, kHalfFormat);
    case DType::kBF16:
      return ReduceSmallFloat(in, count, op, kBFloatFormat);
    case DType::kF32:
      return real(float{});
    case DType::kF64:
      return real(double{});
    case DType::kC64:
      return complex(std::complex<float>{});
    case DType::kC128:
      return complex(std::complex<double>{});
    default:
      ADD_FAILURE() << "no oracle";
      return {};
  }
}

// Equal bits, or both NaN: which NaN comes out of a sum of two is the processor's choice.
bool Same(DType dtype, const Buffer& a, const Buffer& b, size_t i) {
  const size_t size = DTypeBytes(dtype);
  if (std::memcmp(a.data() + i * size, b.data() + i * size, size) == 0) return true;
  const auto both_nan = [&]<class T>(T, size_t parts) {
    for (size_t k = i * parts; k < (i + 1) * parts; ++k) {
      const T x = Read<T>(a, k), y = Read<T>(b, k);
      if (std::memcmp(&x, &y, sizeof(T)) != 0 && !(std::isnan(x) && std::isnan(y))) return false;
    }
    return true;
  };
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16: {
      const Format f = dtype == DType::kF16 ? kHalfFormat : kBFloatFormat;
      return std::isnan(FromBits(f, Read<uint16_t>(a, i))) &&
             std::isnan(FromBits(f, Read<uint16_t>(b, i)));
    }
    case DType::kF32:
      return both_nan(float{}, 1);
    case DType::kF64:
      return both_nan(double{}, 1);
    case DType::kC64:
      return both_nan(float{}, 2);
    case DType::kC128:
      return both_nan(double{}, 2);
    default:
      return false;
  }
}

// Random elements of moderate size, and now and then a special one.
Buffer RandomElements(DType dtype, size_t count, std::mt19937_64* random) {
  Buffer b(count * DTypeBytes(dtype));
  const auto real = [&]<class T>(T) {
    const T special[] = {T(0),
                         -T(0),
                         std::numeric_limits<T>::infinity(),
                         -std::numeric_limits<T>::infinity(),
                         std::numeric_limits<T>::quiet_NaN(),
                         std::numeric_limits<T>::max(),
                         std::numeric_limits<T>::denorm_min()};
    std::normal_distribution<T> normal;
    for (size_t i = 0; i < b.size() / sizeof(T); ++i) {
      Write(&b, i,
            (*random)() % 16 == 0 ? special[(*random)() % std::size(special)] : normal(*random));
    }
  };
  switch (dtype) {
    case DType::kF32:
    case DType::kC64:
      real(float{});
      break;
    case DType::kF64:
    case DType::kC128:
      real(double{});
      break;
    case DType::kPred:
      for (auto& x : b) x = static_cast<std::byte>((*random)() & 1);
      break;
    default:  // integers and 16-bit floats: all bit patterns
      for (auto& x : b) x = static_cast<std::byte>((*random)());
  }
  return b;
}

std::vector<const std::byte*> Pointers(const std::vector<Buffer>& buffers) {
  std::vector<const std::byte*> p;
  for (const Buffer& b : buffers) p.push_back(b.data());
  return p;
}

Buffer Reduce(DType dtype, ReduceOp op, const std::vector<Buffer>& in, size_t count) {
  Buffer out(count * DTypeBytes(dtype));
  std::byte* to[] = {out.data()};
  ReduceElements(dtype, op, Pointers(in), to, count);
  return out;
}

// Three results, each followed by bytes that must not change.
void CheckOnce(DType dtype, ReduceOp op, size_t n, size_t count, std::mt19937_64* random) {
  constexpr size_t kGuard = 64;
  constexpr std::byte kMark{0xa5};
  const size_t bytes = count * DTypeBytes(dtype);
  std::vector<Buffer> in;
  for (size_t r = 0; r < n; ++r) in.push_back(RandomElements(dtype, count, random));
  const Buffer want = Oracle(dtype, op, in, count);
  for (VectorLevel level : VectorLevels()) {
    SCOPED_TRACE(VectorLevelName(level));
    std::vector<Buffer> out(3, Buffer(bytes + kGuard, kMark));
    std::vector<std::byte*> to;
    for (Buffer& b : out) to.push_back(b.data());
    ReduceElementsAt(level, dtype, op, Pointers(in), to, count);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_TRUE(Same(dtype, out[0], want, i)) << "element " << i;
    }
    for (const Buffer& b : out) {
      ASSERT_EQ(b, out[0]);
      for (size_t i = bytes; i < b.size(); ++i)
        ASSERT_EQ(b[i], kMark) << "past the end by " << i - bytes;
    }
  }
}

TEST(Reduce, EveryPair_EqualsOracle) {
  std::mt19937_64 random(1);
  for (DType dtype : kReducible) {
    for (ReduceOp op : kOps) {
      if (!ReduceSupported(dtype, op)) continue;
      for (size_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17}) {
        for (size_t count : {0, 1, 37}) {
          SCOPED_TRACE(std::string(ReduceOpName(op)) + " " + DTypeName(dtype) +
                       " n=" + std::to_string(n) + " count=" + std::to_string(count));
          CheckOnce(dtype, op, n, count, &random);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Reduce, BlockEdges_EqualOracle) {
  std::mt19937_64 random(2);
  for (DType dtype : {DType::kU8, DType::kBF16, DType::kF32, DType::kC128}) {
    for (size_t n : {1, 2, 3, 7, 17}) {
      for (size_t count : {1023, 1024, 1025, 2047, 2048, 2049, 5000}) {
        SCOPED_TRACE(std::string(DTypeName(dtype)) + " n=" + std::to_string(n) +
                     " count=" + std::to_string(count));
        CheckOnce(dtype, ReduceOp::kSum, n, count, &random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Reduce, Supported_IsExactlyTheDocumentedTable) {
  for (int d = 0; d <= static_cast<int>(DType::kU4) + 1; ++d) {
    const auto dtype = static_cast<DType>(d);
    const bool boolean = dtype == DType::kPred;
    const bool integer = dtype >= DType::kS8 && dtype <= DType::kU64;
    const bool real = dtype >= DType::kF16 && dtype <= DType::kF64;
    const bool complex = dtype == DType::kC64 || dtype == DType::kC128;
    EXPECT_FALSE(ReduceSupported(dtype, ReduceOp::kNone)) << d;
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd}) {
      EXPECT_EQ(ReduceSupported(dtype, op), integer || real || complex) << d;
    }
    for (ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
      EXPECT_EQ(ReduceSupported(dtype, op), integer || real || boolean) << d;
    }
    for (ReduceOp op : {ReduceOp::kAnd, ReduceOp::kOr}) {
      EXPECT_EQ(ReduceSupported(dtype, op), integer || boolean) << d;
    }
  }
}

// One rank: every 16-bit pattern goes to float32 and back unchanged.
TEST(Reduce, SmallFloats_EveryPatternSurvivesTheRoundTrip) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    Buffer all(65536 * 2);
    for (uint32_t i = 0; i < 65536; ++i) Write(&all, i, static_cast<uint16_t>(i));
    const Buffer out = Reduce(dtype, ReduceOp::kMax, {all}, 65536);
    for (uint32_t i = 0; i < 65536; ++i) {
      ASSERT_TRUE(Same(dtype, out, all, i)) << DTypeName(dtype) << " pattern " << i;
    }
  }
}

// Every pattern plus every power of two of the format: all kinds of ties, carries, subnormals and
// overflows.
TEST(Reduce, SmallFloats_SumsRoundToNearestEven) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const Format f = dtype == DType::kF16 ? kHalfFormat : kBFloatFormat;
    Buffer all(65536 * 2), other(65536 * 2);
    for (uint32_t i = 0; i < 65536; ++i) Write(&all, i, static_cast<uint16_t>(i));
    const int lowest = f.min_exponent - f.mantissa_bits, highest = dtype == DType::kF16 ? 15 : 127;
    // Steps of 3 keep bfloat16's many exponents affordable; 1 for float16.
    for (int e = lowest; e <= highest; e += dtype == DType::kF16 ? 1 : 3) {
      for (float sign : {1.0f, -1.0f}) {
        const uint16_t power = ToBits(f, std::ldexp(sign, e));
        for (uint32_t i = 0; i < 65536; ++i) Write(&other, i, power);
        const Buffer out = Reduce(dtype, ReduceOp::kSum, {all, other}, 65536);
        for (uint32_t i = 0; i < 65536; ++i) {
          const float sum = static_cast<float>(FromBits(f, static_cast<uint16_t>(i))) +
                            static_cast<float>(FromBits(f, power));
          const uint16_t want = ToBits(f, sum), got = Read<uint16_t>(out, i);
          if (got == want) continue;
          ASSERT_TRUE(std::isnan(sum) && std::isnan(FromBits(f, got)))
              << DTypeName(dtype) << " " << i << " + 2^" << e << ": got " << got << ", want "
              << want;
        }
      }
    }
  }
}

TEST(Reduce, SmallFloats_AccumulateInFloat32) {
  // 2048 + 1 is a tie in float16 that rounds back to 2048; in float32 the ones add up.
  Buffer big(2), one(2);
  Write(&big, 0, ToBits(kHalfFormat, 2048.0f));
  Write(&one, 0, ToBits(kHalfFormat, 1.0f));
  const Buffer out = Reduce(DType::kF16, ReduceOp::kSum, {big, one, one, one}, 1);
  EXPECT_EQ(FromBits(kHalfFormat, Read<uint16_t>(out, 0)), 2052.0);  // 2051 rounds to even
}

TEST(Reduce, Integers_Wrap) {
  Buffer a(4), b(4);
  Write(&a, 0, std::numeric_limits<int32_t>::max());
  Write(&b, 0, int32_t{1});
  EXPECT_EQ(Read<int32_t>(Reduce(DType::kS32, ReduceOp::kSum, {a, b}, 1), 0),
            std::numeric_limits<int32_t>::min());
  Write(&b, 0, int32_t{2});
  EXPECT_EQ(Read<int32_t>(Reduce(DType::kS32, ReduceOp::kProd, {a, b}, 1), 0), -2);
}

TEST(Reduce, MaxMin_NanOnAnyRankWins) {
  for (ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
    for (size_t bad = 0; bad < 5; ++bad) {
      std::vector<Buffer> in(5, Buffer(4));
      for (size_t r = 0; r < 5; ++r)
        Write(&in[r], 0, r == bad ? std::nanf("") : static_cast<float>(r));
      EXPECT_TRUE(std::isnan(Read<float>(Reduce(DType::kF32, op, in, 1), 0))) << "rank " << bad;
    }
  }
}

#if defined(__SSE2__)
// XLA's threads flush subnormals; the same reduction on another thread would give other bits.
TEST(Reduce, Subnormals_DoNotDependOnTheThreadsFloatMode) {
  constexpr unsigned kFlushModes = 0x8040;  // FTZ and DAZ of MXCSR
  const float tiny = std::numeric_limits<float>::denorm_min();
  Buffer a(4);
  Write(&a, 0, tiny);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kFlushModes);
  const Buffer out = Reduce(DType::kF32, ReduceOp::kSum, {a, a}, 1);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(std::bit_cast<uint32_t>(Read<float>(out, 0)), 2u);
  EXPECT_EQ(after & kFlushModes, kFlushModes) << "the caller's mode was not restored";
}
#endif

TEST(DType, NamesAndSizes) {
  EXPECT_STREQ(DTypeName(DType::kBF16), "bfloat16");
  EXPECT_STREQ(DTypeName(DType::kPred), "bool");
  EXPECT_STREQ(DTypeName(DType::kU4), "uint4");
  EXPECT_STREQ(DTypeName(static_cast<DType>(200)), "invalid");
  EXPECT_EQ(DTypeBytes(DType::kC128), 16u);
  EXPECT_EQ(DTypeBytes(DType::kS4), 1u);
  EXPECT_EQ(DTypeBytes(static_cast<DType>(200)), 0u);
  // Values travel between processes, so they never change.
  EXPECT_EQ(static_cast<int>(DType::kF32), 12);
  EXPECT_EQ(static_cast<int>(DType::kU4), 28);
}

TEST(ReduceOp, NamesRoundTrip) {
  for (ReduceOp op : kOps) EXPECT_EQ(ParseReduceOp(ReduceOpName(op)), op);
  EXPECT_EQ(ParseReduceOp("none"), std::nullopt);
  EXPECT_EQ(ParseReduceOp("mean"), std::nullopt);
  EXPECT_STREQ(ReduceOpName(static_cast<ReduceOp>(99)), "unknown");
}

}  // namespace
}  // namespace uccl::coll
