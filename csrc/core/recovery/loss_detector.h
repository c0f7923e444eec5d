// Which packets in flight are lost. Two rules, both blind to reordering across paths:
//   count: enough later transmissions of the same path were acknowledged (RFC 9002 section 6.1.1,
//   per path); time:  a transmission sent more than the reordering window later, on any path, was
//   acknowledged (RACK,
//          RFC 8985 section 6.2). The window is the largest ordinary round trip of any path,
//          because that is how far a slow path may trail a fast one.
// Both are monotonic in the order in which a path's packets were sent, so each path's queue is
// looked at only up to its first packet that is not lost. PSNs play no part: after a timeout it is
// the lowest PSNs that are sent last. What neither rule sees (the last packets of a burst) is left
// to the retransmission timeout.
#pragma once

#include <span>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/core/path/path.h"
#include "csrc/core/recovery/sent_ledger.h"

namespace uccl::core {

// Appends the PSNs of packets that are lost by now, in ascending order, and takes them out of the
// paths' queues. `paths` must reflect the newest ACK. A path that has no round-trip sample yet gets
// at least `unknown_rtt`.
void DetectLosses(const SentLedger& ledger, std::span<PathState> paths, Nanos unknown_rtt,
                  std::vector<uint64_t>* lost);

}  // namespace uccl::core
