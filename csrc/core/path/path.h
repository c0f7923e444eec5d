// What the sender knows about one path.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "csrc/base/types.h"
#include "csrc/core/path/reverse_delay.h"
#include "csrc/core/ring.h"
#include "csrc/core/rtt_estimator.h"

namespace uccl::core {

// Packets of one path rarely overtake each other; three later ones acknowledged mean loss (RFC 9002
// section 6.1.1). Raised to the extent of reordering that is seen (RFC 4737 section 4.2); beyond
// the limit the time rule alone decides.
inline constexpr uint64_t kInitialReorderThreshold = 3;
inline constexpr uint64_t kMaxReorderThreshold = 1024;
// A threshold is lowered when it was not needed for so many acknowledged packets: at least these,
// and this many times itself, so that a rare large displacement is seen again before it is
// forgotten. RFC 8985 section 6.2 keeps its window for 16 recoveries for the same reason.
inline constexpr uint64_t kReorderMemoryPackets = 256;
inline constexpr uint64_t kReorderMemoryFactor = 16;

//          enough losses, nothing acknowledged on it, others progress
//   up --------------------------------------------------------------> failed
//    ^                                                                 |
//    +-- anything sent later is acknowledged: a late packet, a probe --+
enum class PathHealth : uint8_t { kUp, kFailed };

struct PathState {
  struct Flight {
    uint64_t psn = 0, path_seq = 0;
  };
  RttEstimator rtt;
  Nanos rtt_taken{};               // when the newest sample was taken
  ReverseDelay reverse;            // of ACKs that came back on it
  uint64_t next_seq = 1;           // counts transmissions on this path
  uint64_t highest_acked_seq = 0;  // of transmissions whose ACK is unambiguous
  uint64_t reorder_threshold = kInitialReorderThreshold;
  Nanos newest_acked_sent{-1};  // when the newest acknowledged transmission was sent

  // An unambiguous ACK of the transmission `seq`: it came after `highest_acked_seq - seq` later
  // ones, or in order.
  void LearnOrder(uint64_t seq) {
    if (seq < highest_acked_seq) LearnReordering(highest_acked_seq - seq);
    highest_acked_seq = std::max(highest_acked_seq, seq);
    const uint64_t memory =
        std::max(kReorderMemoryPackets, kReorderMemoryFactor * reorder_threshold);
    if (++acked_since_review < memory) return;
    // Halfway to what was needed: one quiet time does not disprove a noisy one.
    const uint64_t needed = std::max(reordering_since_review + 1, kInitialReorderThreshold);
    reorder_threshold = std::max(needed, reorder_threshold / 2);
    reorder_threshold =
        std::clamp(reorder_threshold, kInitialReorderThreshold, kMaxReorderThreshold);
    acked_since_review = reordering_since_review = 0;
  }
  // A packet of this path arrived after `later` later ones.
  void LearnReordering(uint64_t later) {
    reordering_since_review = std::max(reordering_since_review, later);
    reorder_threshold = std::max(reorder_threshold, std::min(later + 1, kMaxReorderThreshold));
  }
  uint64_t acked_since_review = 0, reordering_since_review = 0;

  // Transmissions in the order they were made, from the oldest that may still be in flight. Entries
  // whose packet was acknowledged or sent again are dropped when they come to the front.
  Ring<Flight> flights;
  int64_t inflight_bytes = 0;

  // What congestion control says, if it has a controller for each path (congestion.h).
  int64_t window_bytes = std::numeric_limits<int64_t>::max();
  Nanos next_send{0};  // pacing
  // With nothing in flight one packet always goes, however small the window.
  bool WindowOpen() const { return inflight_bytes == 0 || inflight_bytes < window_bytes; }
  bool Open(Nanos now) const { return WindowOpen() && next_send <= now; }

  // Of path_health.h.
  PathHealth health = PathHealth::kUp;
  uint32_t losses_in_row = 0;  // sent after all that was acknowledged
  Nanos first_loss_sent{};     // of them
  Nanos next_probe = kNever, probe_interval{};
  bool failed() const { return health == PathHealth::kFailed; }

  uint16_t marks_echoed = 0;  // ECN marks that ACKs have told of, modulo 2^16
  // Of the current ACK, for congestion.h.
  int64_t acked_bytes_now = 0;
  uint32_t acked_packets_now = 0, marks_now = 0;
  Nanos rtt_now{0}, waited_now{0};

  uint64_t packets_sent = 0, packets_lost = 0, packets_marked = 0, failures = 0, probes = 0;
};

}  // namespace uccl::core
