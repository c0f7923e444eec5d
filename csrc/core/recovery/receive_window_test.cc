// The bitmap ring against a set of 64-bit numbers.
#include "csrc/core/recovery/receive_window.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "csrc/core/testing/random.h"

namespace uccl::core {
namespace {

using Verdict = ReceiveWindow::Verdict;
constexpr uint64_t kTurn = uint64_t{1} << 32;

// What ReceiveWindow must do, the simple way.
class NaiveWindow final {
 public:
  explicit NaiveWindow(uint64_t first) : next_(first) {}
  Verdict Check(uint64_t psn) const {
    if (psn < next_ || received_.contains(psn)) return Verdict::kDuplicate;
    return psn >= next_ + kReceiveWindowPackets ? Verdict::kOutside : Verdict::kNew;
  }
  void Record(uint64_t psn) {
    received_.insert(psn);
    while (received_.erase(next_) > 0) ++next_;
  }
  uint64_t next() const { return next_; }
  bool Has(uint64_t psn) const { return received_.contains(psn); }
  size_t BitmapBytes() const {
    return received_.empty() ? 0 : static_cast<size_t>((*received_.rbegin() - next_ + 7) / 8);
  }

 private:
  uint64_t next_;
  std::set<uint64_t> received_;  // beyond next_
};

void ExpectSameBitmap(const ReceiveWindow& window, const NaiveWindow& naive, size_t limit) {
  std::array<std::byte, 2048> out;
  out.fill(std::byte{0xee});
  const size_t bytes = window.FillBitmap(out.data(), limit);
  ASSERT_EQ(bytes, std::min(naive.BitmapBytes(), limit));
  for (size_t bit = 0; bit < bytes * 8; ++bit) {
    const bool set = (out[bit / 8] & static_cast<std::byte>(1u << (bit % 8))) != std::byte{0};
    ASSERT_EQ(set, naive.Has(naive.next() + 1 + bit)) << "bit " << bit;
  }
  ASSERT_EQ(out[bytes], std::byte{0xee}) << "writes beyond its size";
}

// Random arrivals, near and far, from `first` on.
void Compare(uint32_t first, uint64_t seed) {
  testing::Random random(seed);
  ReceiveWindow window(first);
  NaiveWindow naive(kTurn + first);
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t spread =
        random.Chance(0.05) ? kReceiveWindowPackets + 10 : random.Magnitude(1, 300);
    const uint64_t psn =
        random.Chance(0.4) ? naive.next() : naive.next() + random.Below(spread) - random.Below(5);
    const auto wire = static_cast<uint32_t>(psn);
    const Verdict verdict = window.Check(wire);
    ASSERT_EQ(verdict, naive.Check(psn)) << "step " << i;
    if (verdict == Verdict::kNew) {
      window.Record(wire);
      naive.Record(psn);
    }
    ASSERT_EQ(window.next(), static_cast<uint32_t>(naive.next()));
    if (i % 50 == 0) ExpectSameBitmap(window, naive, i % 100 == 0 ? 1024 : random.Below(100));
  }
}

TEST(ReceiveWindow, EqualsNaiveModel) {
  Compare(0, 1);
  Compare(12'345, 2);
}
TEST(ReceiveWindow, EqualsNaiveModelAcrossTheWrap) {
  Compare(0xffff'ff00, 3);
  Compare(0xffff'ffff, 4);
}

TEST(ReceiveWindow, FullToTheBrim) {
  for (const uint32_t first : {0u, 5u, 0xffff'f000u}) {
    ReceiveWindow window(first);
    NaiveWindow naive(kTurn + first);
    // All but the first, the newest ones last: the ring is full and its end lies within a byte.
    for (uint64_t i = 1; i < kReceiveWindowPackets; ++i) {
      window.Record(static_cast<uint32_t>(first + i));
      naive.Record(kTurn + first + i);
    }
    ExpectSameBitmap(window, naive, 1024);
    EXPECT_EQ(window.Check(static_cast<uint32_t>(first + kReceiveWindowPackets)),
              Verdict::kOutside);
    window.Record(first);
    EXPECT_EQ(window.next(), static_cast<uint32_t>(first + kReceiveWindowPackets));
    std::array<std::byte, 8> out;
    EXPECT_EQ(window.FillBitmap(out.data(), out.size()), 0u);
    EXPECT_EQ(window.Check(static_cast<uint32_t>(first + 17)), Verdict::kDuplicate);
    EXPECT_EQ(window.Check(static_cast<uint32_t>(first + kReceiveWindowPackets)), Verdict::kNew);
  }
}

TEST(ReceiveWindow, NumbersBeforeTheFirstAreDuplicates) {
  ReceiveWindow window(0);
  EXPECT_EQ(window.Check(0xffff'ffff), Verdict::kDuplicate);
  EXPECT_EQ(window.Check(0x8000'0000), Verdict::kDuplicate) << "half a turn away";
  EXPECT_EQ(window.Check(0x7fff'ffff), Verdict::kOutside);
}

}  // namespace
}  // namespace uccl::core
