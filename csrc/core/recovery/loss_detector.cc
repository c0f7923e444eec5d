#include "csrc/core/recovery/loss_detector.h"

#include <algorithm>

namespace uccl::core {

void DetectLosses(const SentLedger& ledger, std::span<const PathState> paths, uint64_t end,
                  std::vector<uint64_t>* lost) {
  Nanos window{0}, newest{-1};
  for (const PathState& path : paths) {
    window = std::max(window, path.rtt.Bound());
    newest = std::max(newest, path.newest_acked_sent);
  }
  for (uint64_t psn = ledger.base(); psn < end; ++psn) {
    const SentPacket& packet = ledger.at(psn);
    if (packet.state != SentState::kInFlight) continue;
    const PathState& path = paths[ToInt(packet.path)];
    const bool overtaken = path.highest_acked_seq >= packet.path_seq + path.reorder_threshold;
    const bool late = newest - packet.sent > window;
    if (overtaken || late) lost->push_back(psn);
  }
}

}  // namespace uccl::core
