// How much may be in flight, and how fast it may leave. One instance per connection or one per
// path: a controller sees samples and does not know which. In-flight bytes, the ledger and the
// pacer are shared code outside it, so a controller is only the decision. It has no timer: what
// elapses is worked out from the `now` of the next event. Units: bytes, bytes per second,
// nanoseconds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "csrc/base/types.h"

namespace uccl::core {

// The last members of both samples may be left alone by a caller that does not know them.
struct AckSample {
  Nanos now{};
  PathId path{};
  Nanos rtt{};  // newest sample of the path; 0 when the ACK carried none
  int64_t acked_bytes = 0;
  int64_t inflight_bytes = 0;  // after the ACK
  // The application, not the window, held the sender back; such an ACK says nothing about a larger
  // window. Controllers also work it out from inflight_bytes (limits.h).
  bool app_limited = false;
  // Of `rtt`, how long the ACK waited on its way back (path/reverse_delay.h): time that is part of
  // the round trip, but no queue that the acknowledged packets stood in.
  Nanos waited{};
  // The delay that congestion of the way there explains.
  Nanos delay() const { return rtt - waited; }
};
struct LossSample {
  Nanos now{};
  PathId path{};
  int64_t lost_bytes = 0;
  int64_t inflight_bytes = 0;
  // When the lost packet left. Tells the losses of one congested moment, which are answered once,
  // from a new one. kNever: unknown; then all within a round trip of the answer count as the same
  // moment.
  Nanos sent = kNever;
};

class CongestionController {
 public:
  virtual ~CongestionController() = default;
  virtual void OnSent(Nanos now, int64_t bytes) = 0;
  virtual void OnAck(const AckSample& sample) = 0;
  virtual void OnLoss(const LossSample& sample) = 0;
  // Packets that the network marked (ECN CE) among those acknowledged; `acked_bytes` is that of the
  // marked ones. Comes before OnAck of the same acknowledgement, which counts them as well.
  virtual void OnEcn(const AckSample& sample) = 0;
  // A retransmission timeout: nothing was acknowledged for a while.
  virtual void OnTimeout(Nanos now) = 0;
  // A sender goes on while less than this is in flight; with nothing in flight it may always send
  // one packet.
  virtual int64_t window_bytes() const = 0;
  // Bytes per second; 0: unlimited, the window alone holds back. A pacer that is asked again at
  // each packet suffices.
  virtual int64_t pacing_rate_bytes_per_s() const = 0;
  // State in readable form, for traces.
  virtual std::string Snapshot() const = 0;
};

struct CongestionParams {
  int64_t window_bytes = 0;  // largest window ever
  int64_t mtu_bytes = 0;     // wire bytes of a full packet
  // What the sender could reach alone: the upper bound of a rate, and the scale of additive steps.
  // 0: unknown.
  int64_t line_rate_bytes_per_s = 0;
  // Round trip without any queue. 0: unknown, the smallest sample stands for it (round_trip.h).
  Nanos base_rtt{};
  // Delay above the base RTT that is no congestion: queues that a few flows cause, and what busy
  // hosts add to the round trip. 0: unknown, what the controller's paper suggests for hosts with
  // hardware timestamps.
  Nanos queue_budget{};
  // Switches on the path, for what scales with the topology. 0: unknown.
  int32_t hops = 0;
};

}  // namespace uccl::core
