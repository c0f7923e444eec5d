// Which packets in flight are lost. Two rules, both blind to reordering across paths:
//   count: enough later transmissions of the same path were acknowledged (RFC 9002 section 6.1.1, per path);
//   time:  a transmission sent more than the reordering window later, on any path, was acknowledged (RACK,
//          RFC 8985 section 6.2). The window is the largest ordinary round trip of any path, because that is how
//          far a slow path may trail a fast one.
// What neither rule sees (the last packets of a burst) is left to the retransmission timeout.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "csrc/core/path/path.h"
#include "csrc/core/recovery/sent_ledger.h"

namespace uccl::core {

// Appends the PSNs of packets in flight below `end` that are lost by now. `paths` must reflect the newest ACK.
void DetectLosses(const SentLedger& ledger, std::span<const PathState> paths, uint64_t end,
                  std::vector<uint64_t>* lost);

}  // namespace uccl::core
