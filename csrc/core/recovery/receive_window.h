// Which packets of the peer have arrived: the first missing one and a bitmap behind it. Because a
// PSN names one content for ever, accepting each PSN once is what makes delivery exactly-once.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/core/sequence.h"

namespace uccl::core {

// Most packets between the first missing one and the newest. A sender never has more in flight.
inline constexpr uint64_t kReceiveWindowPackets = 8192;

class ReceiveWindow {
 public:
  enum class Verdict : uint8_t { kNew, kDuplicate, kOutside };

  explicit ReceiveWindow(uint32_t initial_psn) : next_(kOrigin + initial_psn), highest_(next_) {}

  // Classifies without recording, so that a packet that cannot be taken is not acknowledged.
  Verdict Check(uint32_t wire_psn) const {
    const uint64_t psn = ExpandSequence(wire_psn, next_);
    if (psn < next_) return Verdict::kDuplicate;
    if (psn >= next_ + kReceiveWindowPackets) return Verdict::kOutside;
    return Test(psn) ? Verdict::kDuplicate : Verdict::kNew;
  }
  // Records a packet that Check called new.
  void Record(uint32_t wire_psn) {
    const uint64_t psn = ExpandSequence(wire_psn, next_);
    highest_ = std::max(highest_, psn + 1);
    words_[Word(psn)] |= Bit(psn);
    while (Test(next_)) {
      words_[Word(next_)] &= ~Bit(next_);
      ++next_;
    }
  }
  uint32_t next() const { return static_cast<uint32_t>(next_); }
  // Writes the bitmap of the packets after the first missing one, at most `limit` bytes; returns
  // its size.
  size_t FillBitmap(std::byte* out, size_t limit) const {
    if (highest_ <= next_ + 1) return 0;
    const size_t bytes = std::min<size_t>((highest_ - next_ - 1 + 7) / 8, limit);
    for (size_t i = 0; i < bytes; i += 8) {
      const uint64_t value = Bits(next_ + 1 + i * 8);
      for (size_t k = 0; k < std::min<size_t>(8, bytes - i); ++k)
        out[i + k] = static_cast<std::byte>(value >> (8 * k));
    }
    // The ring ends within the last byte when the window is full to the brim; what follows is its
    // beginning.
    const uint64_t covered = bytes * 8, known = highest_ - next_ - 1;
    if (covered > known) out[bytes - 1] &= static_cast<std::byte>(0xff >> (covered - known));
    return bytes;
  }

 private:
  // Keeps the expansion of numbers just below the first one positive.
  static constexpr uint64_t kOrigin = uint64_t{1} << 32;
  static size_t Word(uint64_t psn) { return (psn % kReceiveWindowPackets) / 64; }
  static uint64_t Bit(uint64_t psn) { return uint64_t{1} << (psn % 64); }
  // The 64 bits from `psn` on.
  uint64_t Bits(uint64_t psn) const {
    const uint64_t shift = psn % 64;
    const uint64_t low = words_[Word(psn)] >> shift;
    return shift == 0 ? low : low | words_[Word(psn + 64)] << (64 - shift);
  }
  bool Test(uint64_t psn) const { return (words_[Word(psn)] & Bit(psn)) != 0; }

  uint64_t next_;     // first missing
  uint64_t highest_;  // one past the newest received
  std::array<uint64_t, kReceiveWindowPackets / 64> words_{};
};

}  // namespace uccl::core
