// See invariants.h.
#include "csrc/sim/invariants.h"

#include <algorithm>
#include <string>

#include "csrc/sim/packet.h"

namespace uccl::sim {
namespace {

// Requests, grants and control messages are not held back by the window, nor are probes of the last
// packet in flight.
constexpr int64_t kControlSlack = 1 << 20;

}  // namespace

void CheckBounds(Nanos now, const core::ConnectionStats& stats, const ConnectionLimits& limits,
                 Checker* checker) {
  checker->Require(now, stats.inflight_bytes >= 0, "bytes in flight are negative");
  checker->AtMost(now, stats.inflight_bytes,
                  limits.window_bytes + limits.datagram_bytes + kControlSlack,
                  "bytes in flight of a connection");
  checker->AtMost(now, static_cast<int64_t>(stats.eager_bytes_buffered), limits.eager_buffer_bytes,
                  "early bytes that a connection keeps");
}

void CheckCredit(Nanos now, const core::ConnectionStats& sender,
                 const core::ConnectionStats& receiver, const CreditLimits& limits,
                 Checker* checker) {
  checker->AtMost(now, sender.credit_received_bytes, receiver.credit_granted_bytes,
                  "credit that a sender received");
  checker->AtMost(now, sender.credit_used_bytes,
                  sender.credit_received_bytes +
                      static_cast<int64_t>(sender.tail_probes) * limits.datagram_bytes,
                  "credit that a sender used");
  checker->AtMost(now, receiver.credit_granted_bytes,
                  sender.credit_wanted_bytes + limits.initial_bytes,
                  "credit that a receiver granted");
}

void CheckIntegrity(Nanos now, const Refusals& refusals, Checker* checker) {
  checker->Require(now, refusals.refused == refusals.corrupted,
                   std::to_string(refusals.corrupted) + " datagrams were corrupted, but " +
                       std::to_string(refusals.refused) + " were refused");
  checker->Require(now, refusals.wrong_key == 0, "a connection met packets of another");
}

void CheckNetwork(Nanos now, const Network& network, int64_t queue_bytes, int64_t datagram_bytes,
                  Checker* checker) {
  checker->Require(now, network.Conserved(), "packets sent are not those delivered and dropped");
  int64_t deepest = 0;
  for (const Link& link : network.links()) {
    deepest = std::max(deepest, link.stats().peak_queue_bytes);
  }
  // An idle link takes any packet.
  checker->AtMost(now, deepest, std::max(queue_bytes, datagram_bytes + kFramingBytes), "a queue");
}

}  // namespace uccl::sim
