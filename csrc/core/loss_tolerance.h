// Which losses a congestion controller hears of. Every published loss-based controller takes each
// loss for a full queue; over links that also lose by chance, and over many paths whose windows are
// a few packets, that keeps the windows at their smallest. BBR
// (draft-cardwell-iccrg-bbr-congestion- control, BBRLossThresh) reacts once more than 2 % of what
// was in flight is lost; this is the same idea for windows of any size, where a share of one round
// trip is too coarse: a budget that acknowledged bytes fill, a share of each, and lost bytes empty.
// A loss that finds enough in it is excused: repaired like any other, but not told. A queue that
// overflows drops many packets in a round trip, and all but the first kDepthPackets are told.
//
// Losses by chance at half of the share overrun a depth of 8 packets about once in 3 * 10^5 losses
// (the waiting time of a D/M/1 queue at load 1/2: sigma = exp(-(1 - sigma) * 2) = 0.203, to the
// power of 8).
#pragma once

#include <algorithm>
#include <cstdint>

namespace uccl::core {

class LossTolerance final {
 public:
  static constexpr int64_t kDepthPackets = 8;

  // `permille` of the acknowledged bytes; 0: every loss is told.
  LossTolerance(int64_t permille, int64_t packet_bytes)
      : permille_(permille),
        depth_(permille > 0 ? kDepthPackets * packet_bytes * kScale : 0),
        budget_(depth_) {}

  void OnAcked(int64_t bytes) { budget_ = std::min(depth_, budget_ + permille_ * bytes); }
  // True when the loss is excused.
  bool Excuses(int64_t bytes) {
    if (budget_ < bytes * kScale) return false;
    budget_ -= bytes * kScale;
    return permille_ > 0;
  }

 private:
  static constexpr int64_t kScale = 1000;  // the budget is counted in thousandths of a byte
  int64_t permille_, depth_, budget_;
};

}  // namespace uccl::core
