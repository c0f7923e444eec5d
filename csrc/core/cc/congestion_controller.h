// How much may be in flight. One instance per connection for now; the interface holds for one per path as well.
// In-flight bytes, RTT and the ledger are shared code outside it, so a controller is only the decision.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "csrc/base/types.h"

namespace uccl::core {

struct AckSample {
  Nanos now{};
  PathId path{};
  Nanos rtt{};  // newest sample of the path; 0 when the ACK carried none
  int64_t acked_bytes = 0;
  int64_t inflight_bytes = 0;  // after the ACK
};
struct LossSample {
  Nanos now{};
  PathId path{};
  int64_t lost_bytes = 0;
  int64_t inflight_bytes = 0;
};

class CongestionController {
 public:
  virtual ~CongestionController() = default;
  virtual void OnSent(Nanos now, int64_t bytes) = 0;
  virtual void OnAck(const AckSample& sample) = 0;
  virtual void OnLoss(const LossSample& sample) = 0;
  // Packets that the network marked (ECN CE) among those acknowledged.
  virtual void OnEcn(const AckSample& sample) = 0;
  // A retransmission timeout: nothing was acknowledged for a while.
  virtual void OnTimeout(Nanos now) = 0;
  virtual int64_t window_bytes() const = 0;
  // Bytes per second; 0: unlimited, the window alone holds back.
  virtual int64_t pacing_rate_bytes_per_s() const = 0;
  // State in readable form, for traces.
  virtual std::string Snapshot() const = 0;
};

struct CongestionParams {
  int64_t window_bytes = 0;
  int64_t mtu_bytes = 0;
};

}  // namespace uccl::core
