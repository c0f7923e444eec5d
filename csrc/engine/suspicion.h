// When to believe the network that a peer is gone. A port-unreachable message is a strong hint, not
// a proof: it may be forged, or stem from a firewall rule that comes and goes. Pure: time is an
// argument.
//
//   trusted --fault, heard before--> suspected --kFaults faults, the last kSpan after the first-->
//   condemned
//      ^                                 |
//      +------- datagram arrives --------+
//
// A peer never heard from stays trusted; the connection's silence timer judges it.
#pragma once

#include "csrc/base/types.h"

namespace uccl::engine {

class Suspicion final {
 public:
  // A host whose process died answers every probe; three over a fifth of a second are beyond
  // coincidence, and still far below the seconds that silence alone needs.
  static constexpr int kFaults = 3;
  static constexpr Nanos kSpan = std::chrono::milliseconds(200);

  void OnHeard() {
    heard_ = true;
    faults_ = 0;
  }
  // Returns true when this fault begins a suspicion: the caller should then send the peer something
  // that it would answer.
  bool OnFault(Nanos now) {
    if (!heard_) return false;
    if (faults_ == 0) first_fault_ = now;
    ++faults_;
    last_fault_ = now;
    return faults_ == 1;
  }
  bool suspected() const { return faults_ > 0; }
  bool condemned() const { return faults_ >= kFaults && last_fault_ - first_fault_ >= kSpan; }

 private:
  bool heard_ = false;
  int faults_ = 0;
  Nanos first_fault_{}, last_fault_{};
};

}  // namespace uccl::engine
