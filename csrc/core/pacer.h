// When the next packet may leave at a given rate: a packet takes the time that its bytes need at
// the rate, and the next one waits for its end. Time that nobody used is lost but for kSlack, which
// makes up for timers that fire late.
#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/base/types.h"

namespace uccl::core {

inline constexpr Nanos kPacingSlack = std::chrono::microseconds(100);

// `next_send` before this packet, and the result after it. A rate of 0 is no limit.
inline Nanos NextSend(Nanos next_send, Nanos now, int64_t bytes, int64_t rate_bytes_per_s) {
  if (rate_bytes_per_s <= 0) return Nanos(0);
  const double wait_ns = static_cast<double>(bytes) * 1e9 / static_cast<double>(rate_bytes_per_s);
  return std::max(next_send, now - kPacingSlack) + Nanos(static_cast<int64_t>(wait_ns));
}

}  // namespace uccl::core
