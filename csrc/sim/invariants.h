// Limits and sums that hold at any moment, or at the end, of every run: worked out from what a
// connection reports of itself and from what the network counted, by nobody who has a part in it.
#pragma once

#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/core/connection.h"
#include "csrc/sim/checker.h"
#include "csrc/sim/network.h"

namespace uccl::sim {

struct ConnectionLimits {
  int64_t window_bytes = 0, eager_buffer_bytes = 0;
  int64_t datagram_bytes = 0;  // largest
};

// Bounded memory: what a connection may have in flight and what it may keep for its peer.
void CheckBounds(Nanos now, const core::ConnectionStats& stats, const ConnectionLimits& limits,
                 Checker* checker);

// Conservation of receiver-driven credit, as both ends of a connection report it; what is on the
// wire is credit_checker.h's.
struct CreditLimits {
  int64_t initial_bytes = 0;   // granted before any request
  int64_t datagram_bytes = 0;  // of a tail-loss probe, which needs no credit
};
void CheckCredit(Nanos now, const core::ConnectionStats& sender,
                 const core::ConnectionStats& receiver, const CreditLimits& limits,
                 Checker* checker);

// What all connections said at the end, against what the hosts did to them.
struct Refusals {
  uint64_t corrupted = 0;  // datagrams handed over with a flipped bit
  uint64_t refused = 0;    // datagrams that connections took for damaged
  uint64_t wrong_key = 0;  // datagrams of another connection that one met
};
void CheckIntegrity(Nanos now, const Refusals& refusals, Checker* checker);

// Every packet is accounted for, and no queue was longer than it may be.
void CheckNetwork(Nanos now, const Network& network, int64_t queue_bytes, int64_t datagram_bytes,
                  Checker* checker);

}  // namespace uccl::sim
