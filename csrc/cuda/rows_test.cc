// Rows by index with and without casts, on every launcher, against a naive version; and the bits of
// jax_uccl's quantize.
#include "csrc/cuda/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "csrc/cuda/float_formats.h"
#include "csrc/cuda/testing/launcher.h"

namespace uccl::cuda {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::byte kMark{0xa5};

// Memory that the kernel reaches, `offset` bytes off its alignment and with room behind it.
class Memory {
 public:
  Memory(Launcher* launcher, const Bytes& contents, size_t offset)
      : size_(contents.size()), offset_(offset), all_(launcher->Allocate(size_ + offset + kGuard)) {
    std::memset(all_.get(), static_cast<int>(kMark), size_ + offset + kGuard);
    std::copy(contents.begin(), contents.end(), data());
  }
  std::byte* data() const { return all_.get() + offset_; }
  Bytes contents() const { return Bytes(data(), data() + size_); }
  bool guards_whole() const {
    const std::byte* end = data() + size_;
    return std::all_of(all_.get(), data(), [](std::byte b) { return b == kMark; }) &&
           std::all_of(end, end + kGuard, [](std::byte b) { return b == kMark; });
  }

 private:
  static constexpr size_t kGuard = 64;
  size_t size_, offset_;
  std::shared_ptr<std::byte> all_;
};

// --- the naive version ---

float Decode(Element e, const std::byte* at) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, ElementBytes(e));
  if (e == Element::kF32) return std::bit_cast<float>(bits);
  return e == Element::kBF16 ? BFloat16ToFloat(static_cast<uint16_t>(bits))
                             : HalfToFloat(static_cast<uint16_t>(bits));
}
void Encode(Element e, float value, std::byte* at) {
  const uint32_t bits = e == Element::kF32    ? std::bit_cast<uint32_t>(value)
                        : e == Element::kBF16 ? FloatToBFloat16(value)
                                              : FloatToHalf(value);
  std::memcpy(at, &bits, ElementBytes(e));
}

void NaiveToFp8(const MoveRowsParams& p, const std::byte* from, std::byte* to) {
  for (uint64_t block = 0; block * kScaleBlock < p.channels; ++block) {
    const uint64_t last = std::min<uint64_t>((block + 1) * kScaleBlock, p.channels);
    float amax = 1e-4f;
    for (uint64_t c = block * kScaleBlock; c < last; ++c) {
      amax = std::max(amax, std::fabs(Decode(p.element, from + c * ElementBytes(p.element))));
    }
    float scale = amax * static_cast<float>(1.0 / 448.0);
    if (p.cast == RowCast::kToFp8PowerOf2) {
      int exponent;
      const double mantissa = std::frexp(static_cast<double>(amax) / 448.0, &exponent);
      scale = std::ldexp(1.0f, mantissa == 0.5 ? exponent - 1 : exponent);
    }
    for (uint64_t c = block * kScaleBlock; c < last; ++c) {
      const float value = Decode(p.element, from + c * ElementBytes(p.element));
      to[c] = static_cast<std::byte>(FloatToE4M3(value / scale));
    }
    std::memcpy(to + p.channels + 4 * block, &scale, 4);
  }
}
void NaiveFromFp8(const MoveRowsParams& p, const std::byte* from, std::byte* to) {
  for (uint64_t c = 0; c < p.channels; ++c) {
    float scale;
    std::memcpy(&scale, from + p.channels + 4 * (c / kScaleBlock), 4);
    Encode(p.element, E4M3ToFloat(static_cast<uint8_t>(from[c])) * scale,
           to + c * ElementBytes(p.element));
  }
}

// The result and the first fault.
uint64_t NaiveMoveRows(const MoveRowsParams& p, const std::byte* from, Bytes* to) {
  uint64_t fault = kNoFault;
  for (uint64_t n = 0; n < p.moves; ++n) {
    int64_t source = p.from_index ? p.from_index[n / p.repeat] : static_cast<int64_t>(n / p.repeat);
    int64_t target = p.to_index ? p.to_index[n] : static_cast<int64_t>(n);
    for (auto [row, rows] : {std::pair{&source, p.from_rows}, {&target, p.to_rows}}) {
      if (*row < static_cast<int64_t>(rows)) continue;
      fault = std::min(fault, n);
      *row = -1;
    }
    if (target < 0 || (source < 0 && !p.fill_missing)) continue;
    std::byte* row = to->data() + static_cast<uint64_t>(target) * p.to_stride;
    if (source < 0) {
      std::fill_n(row, ToRowBytes(p), std::byte{0});
      continue;
    }
    const std::byte* given = from + static_cast<uint64_t>(source) * p.from_stride;
    if (p.cast == RowCast::kNone) std::copy_n(given, WideRowBytes(p), row);
    if (p.cast == RowCast::kFromFp8) NaiveFromFp8(p, given, row);
    if (p.cast == RowCast::kToFp8 || p.cast == RowCast::kToFp8PowerOf2) NaiveToFp8(p, given, row);
  }
  return fault;
}

// --- inputs ---

void Fill(Element e, std::byte* row, uint64_t channels, std::mt19937* rng) {
  std::normal_distribution<float> normal;
  const int scale = static_cast<int>((*rng)() % 30) - 15;
  for (uint64_t c = 0; c < channels; ++c) {
    Encode(e, std::ldexp(normal(*rng), scale), row + c * ElementBytes(e));
  }
}

std::vector<int32_t> RandomIndex(size_t n, size_t rows, bool distinct, std::mt19937* rng) {
  std::vector<int32_t> index(std::max(n, rows));
  for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int32_t>(i);
  std::shuffle(index.begin(), index.end(), *rng);
  index.resize(n);
  for (int32_t& i : index) {
    if (!distinct)
      i = static_cast<int32_t>((*rng)() % (rows + 1));  // one past the end now and then
    if ((*rng)() % 5 == 0) i = -1 - static_cast<int32_t>((*rng)() % 3);
  }
  return index;
}

struct Case {
  Element element;
  RowCast cast;
  uint64_t channels;
  size_t from_offset, to_offset, padding;
};

void Check(Launcher* launcher, const Case& c, std::mt19937* rng) {
  SCOPED_TRACE(launcher->name() + " element " + std::to_string(static_cast<int>(c.element)) +
               " cast " + std::to_string(static_cast<int>(c.cast)) + " channels " +
               std::to_string(c.channels));
  const size_t from_rows = (*rng)() % 7, to_rows = 1 + (*rng)() % 9,
               moves = (*rng)() % (to_rows + 1);
  MoveRowsParams p;
  p.element = c.element, p.cast = c.cast, p.channels = c.channels, p.moves = moves;
  p.from_rows = from_rows, p.to_rows = to_rows, p.fill_missing = (*rng)() % 2 == 0;
  p.repeat = 1 + (*rng)() % 3;
  const bool from_fp8 = c.cast == RowCast::kFromFp8;
  p.from_stride = (from_fp8 ? Fp8RowBytes(c.channels) : WideRowBytes(p)) + c.padding;
  p.to_stride = ToRowBytes(p) + c.padding;

  Bytes given(from_rows * p.from_stride);
  for (size_t r = 0; r < from_rows; ++r) {
    std::byte* row = given.data() + r * p.from_stride;
    if (c.cast == RowCast::kNone) {
      for (size_t b = 0; b < WideRowBytes(p); ++b) row[b] = static_cast<std::byte>((*rng)());
    } else if (from_fp8) {
      for (size_t b = 0; b < c.channels; ++b) row[b] = static_cast<std::byte>((*rng)() % 0x7f);
      for (size_t b = 0; b < ScalesOf(c.channels); ++b) {
        const float scale = std::ldexp(1.0f + static_cast<float>((*rng)() % 100) / 128.0f,
                                       static_cast<int>((*rng)() % 20) - 15);
        std::memcpy(row + c.channels + 4 * b, &scale, 4);
      }
    } else {
      Fill(c.element, row, c.channels, rng);
    }
  }
  const Memory from(launcher, given, c.from_offset);
  const Memory to(launcher, Bytes(to_rows * p.to_stride, std::byte{0x3c}), c.to_offset);
  const auto from_index = RandomIndex(moves, from_rows, false, rng);
  const auto to_index = RandomIndex(moves, to_rows, true, rng);
  const auto fault = launcher->Allocate(8), indices = launcher->Allocate(8 * moves + 8);
  auto* in_reach = reinterpret_cast<int32_t*>(indices.get());
  std::copy(from_index.begin(), from_index.end(), in_reach);
  std::copy(to_index.begin(), to_index.end(), in_reach + moves);
  if ((*rng)() % 4 != 0) p.from_index = in_reach;
  if ((*rng)() % 4 != 0) p.to_index = in_reach + moves;
  p.from = from.data(), p.to = to.data(), p.fault = reinterpret_cast<uint64_t*>(fault.get());
  *p.fault = kNoFault;

  Bytes want = to.contents();
  const uint64_t want_fault = NaiveMoveRows(p, given.data(), &want);
  const Status status = launcher->Run(p);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(*p.fault, want_fault);
  ASSERT_EQ(to.contents(), want);
  EXPECT_TRUE(to.guards_whole());
}

TEST(MoveRows, EqualsTheNaiveVersion) {
  std::mt19937 rng(7);
  for (Launcher* launcher : Launchers()) {
    for (uint64_t channels : {1, 7, 8, 127, 128, 129, 300, 1024, 1003}) {
      for (Element element : {Element::kF16, Element::kBF16, Element::kF32}) {
        const size_t bytes = ElementBytes(element);
        for (RowCast cast : {RowCast::kToFp8, RowCast::kToFp8PowerOf2, RowCast::kFromFp8}) {
          const size_t off = rng() % 3 * bytes;
          const bool narrows = cast != RowCast::kFromFp8;
          Check(launcher,
                {element, cast, channels, narrows ? off : rng() % 4, narrows ? rng() % 4 : off,
                 narrows ? rng() % 3 * bytes : rng() % 3 * bytes},
                &rng);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
      for (Element element : {Element::kU8, Element::kBF16, Element::kF32, Element::kF64}) {
        Check(launcher, {element, RowCast::kNone, channels, rng() % 33, rng() % 33, rng() % 20},
              &rng);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(MoveRows, CutsLongRowsIntoSegments) {
  std::mt19937 rng(8);
  for (Launcher* launcher : Launchers()) {
    for (uint64_t channels : {16383, 16384, 16385, 40000}) {
      Check(launcher, {Element::kBF16, RowCast::kToFp8, channels, 0, 0, 0}, &rng);
      Check(launcher, {Element::kBF16, RowCast::kFromFp8, channels, 0, 0, 0}, &rng);
      Check(launcher, {Element::kU16, RowCast::kNone, channels, 2, 18, 0}, &rng);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(MoveRows, NotFiniteValuesStayInTheirBlock) {
  for (Launcher* launcher : Launchers()) {
    MoveRowsParams p;
    p.element = Element::kF32, p.cast = RowCast::kToFp8, p.channels = 3 * kScaleBlock;
    p.moves = p.from_rows = p.to_rows = 1;
    p.from_stride = WideRowBytes(p), p.to_stride = ToRowBytes(p);
    const auto from = launcher->Allocate(p.from_stride), to = launcher->Allocate(p.to_stride);
    auto* values = reinterpret_cast<float*>(from.get());
    std::fill_n(values, p.channels, -448.0f);
    values[5] = NAN;
    values[kScaleBlock + 5] = -INFINITY;
    p.from = from.get(), p.to = to.get();
    ASSERT_TRUE(launcher->Run(p).ok());
    const auto at = [&](uint64_t c) { return static_cast<int>(to.get()[c]); };
    float scales[3];
    std::memcpy(scales, to.get() + p.channels, sizeof(scales));
    EXPECT_EQ(std::bit_cast<uint32_t>(scales[0]), kNanBits);
    EXPECT_EQ(at(0), kNanE4M3);
    EXPECT_EQ(scales[1], INFINITY);
    EXPECT_EQ(at(kScaleBlock), 0x80);  // -448 / inf
    EXPECT_EQ(at(kScaleBlock + 5), kNanE4M3);
    EXPECT_EQ(at(2 * kScaleBlock), 0xfe);
  }
}

// --- the bits of jax_uccl/_src/moe/quantize.py ---

// tests/test_quantize_bits.py makes the same rows and finds the same hashes with JAX.
struct Golden {
  Element element;
  RowCast cast;
  uint64_t rows, channels;
  uint64_t hash;
};
constexpr Golden kGolden[] = {
#define UCCL_QUANTIZE_BITS(dtype, element, cast, rows, channels, hash) \
  {Element::element, RowCast::cast, rows, channels, hash},
#include "csrc/cuda/testing/quantize_bits.inc"
#undef UCCL_QUANTIZE_BITS
};

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Element i: exponents over a wide range; every row its own seventh of it, the first row zeros.
void GoldenElement(Element e, uint64_t row, uint64_t i, std::byte* at) {
  const uint64_t h = Mix(i);
  uint32_t bits = 0;
  if (e == Element::kF16) {
    bits = static_cast<uint32_t>((h & 1) << 15 | ((h >> 1) + row) % 31 << 10 | (h >> 8 & 0x3ff));
  } else {
    bits = static_cast<uint32_t>((h & 1) << 31 | (100 + row % 7 * 4 + (h >> 1) % 16) << 23 |
                                 (h >> 8 & 0x7fffff));
    if (e == Element::kBF16) bits >>= 16;
  }
  if (row == 0) bits = 0;
  std::memcpy(at, &bits, ElementBytes(e));
}

TEST(MoveRows, HasTheBitsOfQuantize) {
  for (Launcher* launcher : Launchers()) {
    SCOPED_TRACE(launcher->name());
    for (const Golden& g : kGolden) {
      MoveRowsParams p;
      p.element = g.element, p.cast = g.cast, p.channels = g.channels;
      p.moves = p.from_rows = p.to_rows = g.rows;
      p.from_stride = WideRowBytes(p), p.to_stride = ToRowBytes(p);
      const auto from = launcher->Allocate(g.rows * p.from_stride);
      const auto to = launcher->Allocate(g.rows * p.to_stride);
      for (uint64_t i = 0; i < g.rows * g.channels; ++i) {
        GoldenElement(g.element, i / g.channels, i, from.get() + i * ElementBytes(g.element));
      }
      p.from = from.get(), p.to = to.get();
      ASSERT_TRUE(launcher->Run(p).ok());
      uint64_t hash = 0;
      for (uint64_t i = 0; i < g.rows * p.to_stride; ++i) {
        hash = Mix(hash ^ static_cast<uint64_t>(to.get()[i]));
      }
      EXPECT_EQ(hash, g.hash) << "element " << static_cast<int>(g.element) << " cast "
                              << static_cast<int>(g.cast) << " channels " << g.channels;
    }
  }
}

TEST(MoveRows, RefusesWhatNoKernelCanDo) {
  MoveRowsParams good;
  std::byte memory[1024] = {};
  good.from = good.to = memory;
  good.moves = good.from_rows = good.to_rows = 2;
  good.channels = 8, good.element = Element::kBF16, good.cast = RowCast::kToFp8;
  good.from_stride = 16, good.to_stride = 12;
  EXPECT_TRUE(CheckParams(good).ok());
  const auto refused = [&](auto change, const std::string& word) {
    MoveRowsParams p = good;
    change(&p);
    const Status status = CheckParams(p);
    EXPECT_EQ(status.code, StatusCode::kInvalidArgument) << word;
    EXPECT_NE(status.detail.find(word), std::string::npos) << status.detail;
  };
  refused([](auto* p) { p->element = Element::kS16; }, "casts are between");
  refused([](auto* p) { p->from_stride = 14; }, "14 and 12 bytes for rows of 16 and 12");
  refused([](auto* p) { p->to_stride = 11; }, "16 and 11 bytes");
  refused([](auto* p) { p->from = nullptr; }, "without an address");
  refused([&](auto* p) { p->from = memory + 1; }, "aligned");
  refused([](auto* p) { p->from_stride = 17; }, "aligned");
  refused([](auto* p) { p->repeat = 0; }, "repeated no times");
  refused([](auto* p) { p->moves = uint64_t{1} << 41; }, "at most 2^40");
}

}  // namespace
}  // namespace uccl::cuda
