// What the sender knows about one path.
#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/core/ring.h"
#include "csrc/core/rtt_estimator.h"

namespace uccl::core {

// Packets of one path rarely overtake each other; three later ones acknowledged mean loss (RFC 9002
// section 6.1.1). Raised to the extent of reordering that is seen (RFC 4737 section 4.2); beyond
// the limit the time rule alone decides.
inline constexpr uint64_t kInitialReorderThreshold = 3;
inline constexpr uint64_t kMaxReorderThreshold = 1024;

struct PathState {
  struct Flight {
    uint64_t psn = 0, path_seq = 0;
  };
  RttEstimator rtt;
  uint64_t next_seq = 1;           // counts transmissions on this path
  uint64_t highest_acked_seq = 0;  // of transmissions whose ACK is unambiguous
  uint64_t reorder_threshold = kInitialReorderThreshold;
  Nanos newest_acked_sent{-1};  // when the newest acknowledged transmission was sent
  // A packet of this path arrived after `later` later ones.
  void LearnReordering(uint64_t later) {
    reorder_threshold = std::max(reorder_threshold, std::min(later + 1, kMaxReorderThreshold));
  }

  // Transmissions in the order they were made, from the oldest that may still be in flight. Entries
  // whose packet was acknowledged or sent again are dropped when they come to the front.
  Ring<Flight> flights;
  uint64_t packets_sent = 0, packets_lost = 0;
};

}  // namespace uccl::core
