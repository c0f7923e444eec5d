// What controllers know of time: the smoothed round trip, the round trip without queue, and whether
// a new reduction is an answer to news. One per controller.
#pragma once

#include <algorithm>

#include "csrc/core/cc/limits.h"
#include "csrc/core/rtt_estimator.h"

namespace uccl::core {

// Base RTT: the smallest sample, if nobody gave a smaller one. Two things can be wrong with it.
// - Who starts while others keep a queue takes their queue for the route, aims too high and gets
// too
//   much; whoever came first starves. So a controller that depends on the base drains its own queue
//   now and then (Draining), as BBR's ProbeRTT does: the one with too much empties most of the
//   queue, and everybody sees the route.
// - The route may have become longer. If no sample came near for kExpiry, the smallest of those
//   takes over that were taken by a packet alone in flight, whose queue was not ours. Taking any
//   newer minimum, as a sliding window does, would mistake our own standing queue for the route.
class RoundTrip final {
 public:
  static constexpr Nanos kExpiry = FromMillis(10'000);
  // Draining: when the base was not seen for the longer of these, for kDrainRoundTrips: one until
  // what was in flight is gone, one to look. Costs at most 1 % of the time.
  static constexpr Nanos kDrainAfter = FromMillis(50);
  static constexpr int kDrainAfterRoundTrips = 200, kDrainRoundTrips = 2;
  static constexpr double kDrainWindowPackets = 4;  // as in BBR

  explicit RoundTrip(const CongestionParams& params)
      : given_base_(std::max(params.base_rtt, Nanos(0))) {}

  // False when the sample carries no RTT.
  bool OnAck(const AckSample& sample) {
    UpdateDraining(sample.now);
    if (sample.rtt <= Nanos(0)) return false;
    // Longer ones would say no more, and keep the arithmetic bounded.
    const bool first = !has_sample();
    smoothed_.Sample(std::min(sample.rtt, kLongest));
    const Nanos delay = std::min(sample.delay(), kLongest);
    if (first || delay < measured_base_) measured_base_ = delay;
    if (delay <= measured_base_ + measured_base_ / 16) {
      base_seen_ = sample.now;
      alone_base_ = kNever;
      return true;
    }
    if (sample.inflight_bytes == 0) alone_base_ = std::min(alone_base_, delay);
    if (sample.now - base_seen_ > kExpiry && alone_base_ != kNever) {
      measured_base_ = alone_base_;
      base_seen_ = sample.now;
      alone_base_ = kNever;
    }
    return true;
  }

  bool has_sample() const { return smoothed_.has_sample(); }
  Nanos srtt() const { return smoothed_.srtt(); }
  double srtt_s() const { return ToSeconds(srtt()); }
  // 0 when nothing is known.
  Nanos base() const {
    if (given_base_ == Nanos(0) || !has_sample()) return std::max(given_base_, measured_base_);
    return std::min(given_base_, measured_base_);
  }
  // The window should be kDrainWindowPackets at most.
  bool Draining() const { return draining_; }

 private:
  static constexpr Nanos kLongest = FromMillis(60'000);

  void UpdateDraining(Nanos now) {
    if (given_base_ != Nanos(0) || !has_sample()) return;
    if (draining_) {
      draining_ = now < drain_end_;
      return;
    }
    const Nanos after = std::max(kDrainAfter, kDrainAfterRoundTrips * srtt());
    if (now - std::max(base_seen_, drain_end_) < after) return;
    draining_ = true;
    drain_end_ = now + kDrainRoundTrips * srtt();
  }

  const Nanos given_base_;
  RttEstimator smoothed_;
  Nanos measured_base_{0}, base_seen_{0}, alone_base_ = kNever;
  bool draining_ = false;
  Nanos drain_end_{0};
};

// At most one reduction per round trip: until packets arrive that left after the last one, losses
// and marks are those that it answered.
class OncePerRoundTrip final {
 public:
  bool IsNews(Nanos now, Nanos sent, Nanos srtt) const {
    if (last_ == kNever) return true;
    return sent != kNever ? sent > last_ : now - last_ >= srtt;
  }
  void OnReduction(Nanos now) { last_ = now; }

 private:
  Nanos last_ = kNever;
};

}  // namespace uccl::core
