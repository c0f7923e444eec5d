// Smoothed round-trip time and retransmission timeout, RFC 6298 section 2 (alpha 1/8, beta 1/4, K
// 4). Samples come from echoed timestamps, so retransmissions need no special care (Karn's rule).
#pragma once

#include <algorithm>

#include "csrc/base/types.h"

namespace uccl::core {

class RttEstimator {
 public:
  void Sample(Nanos rtt) {
    rtt = std::max(rtt, Nanos(1));
    min_rtt_ = has_sample_ ? std::min(min_rtt_, rtt) : rtt;
    if (!has_sample_) {
      srtt_ = rtt;
      rttvar_ = rtt / 2;
      has_sample_ = true;
      return;
    }
    const Nanos error = srtt_ > rtt ? srtt_ - rtt : rtt - srtt_;
    rttvar_ += (error - rttvar_) / 4;
    srtt_ += (rtt - srtt_) / 8;
  }
  bool has_sample() const { return has_sample_; }
  Nanos srtt() const { return srtt_; }
  Nanos rttvar() const { return rttvar_; }
  Nanos min_rtt() const { return min_rtt_; }
  // Longest round trip that is still ordinary.
  Nanos Bound() const { return srtt_ + 4 * rttvar_; }
  // Before the first sample: twice the minimum, as nothing is known about the path.
  Nanos Rto(Nanos min_rto, Nanos max_rto) const {
    return std::clamp(has_sample_ ? Bound() : 2 * min_rto, min_rto, std::max(min_rto, max_rto));
  }

 private:
  bool has_sample_ = false;
  Nanos srtt_{0}, rttvar_{0}, min_rtt_{0};
};

}  // namespace uccl::core
