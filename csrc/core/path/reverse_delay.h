// How long an acknowledgement waited on its way back: what of a round trip is not the doing of the
// packets that it acknowledges. Traffic the other way fills queues that ACKs go through, and a busy
// host reads them late; a controller that takes that for congestion leaves the forward path empty.
// TIMELY (SIGCOMM'15, section 3) sends ACKs at a higher priority for this reason, which UDP on
// somebody else's network cannot.
//
// ACKs carry the clock of who sent them. Arrival minus that is the way back plus the difference of
// both clocks; the excess over the smallest of late is waiting. `Of late` bounds what clocks that
// run apart can do: at 50 ppm, 0.1 ms in two seconds. A queue that never empties for so long counts
// as the way itself, and the controller sees it as it would without all this.
#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/base/types.h"

namespace uccl::core {

class ReverseDelay final {
 public:
  static constexpr Nanos kPeriod = FromMillis(1000);  // the minimum is that of one to two of them

  // An ACK that was sent at `timestamp` (microseconds of the sender's clock, modulo 2^32) is here.
  // Returns how long it waited.
  Nanos Sample(Nanos now, uint32_t timestamp) {
    const uint32_t difference = static_cast<uint32_t>(ToMicros(now)) - timestamp;
    if (!has_sample_) reference_ = difference;
    const auto way = static_cast<int32_t>(difference - reference_);
    if (!has_sample_ || now - period_start_ >= 2 * kPeriod) {
      older_ = newer_ = way;
      period_start_ = now;
    } else if (now - period_start_ >= kPeriod) {
      older_ = newer_;
      newer_ = way;
      period_start_ = now;
    }
    has_sample_ = true;
    newer_ = std::min(newer_, way);
    return FromMicros(int64_t{way} - std::min(older_, newer_));
  }

 private:
  bool has_sample_ = false;
  uint32_t reference_ = 0;         // keeps the numbers small, whatever the clocks say
  int32_t older_ = 0, newer_ = 0;  // smallest of the period before and of this one, us
  Nanos period_start_{};
};

}  // namespace uccl::core
