// See loss_detector.h.
#include "csrc/core/recovery/loss_detector.h"

#include <algorithm>

namespace uccl::core {
namespace {

// The entry's packet was acknowledged or sent again since.
bool IsStale(const SentLedger& ledger, const PathState::Flight& flight, size_t path) {
  if (flight.psn < ledger.base()) return true;
  const SentPacket& packet = ledger.at(flight.psn);
  return packet.state != SentState::kInFlight || packet.path_seq != flight.path_seq ||
         ToInt(packet.path) != path;
}

}  // namespace

void DetectLosses(const SentLedger& ledger, std::span<PathState> paths, Nanos unknown_rtt,
                  std::vector<uint64_t>* lost) {
  Nanos window{0}, newest{-1};
  for (const PathState& path : paths) {
    window = std::max(window, path.rtt.Bound());
    newest = std::max(newest, path.newest_acked_sent);
  }
  const size_t first = lost->size();
  for (size_t i = 0; i < paths.size(); ++i) {
    PathState& path = paths[i];
    const Nanos limit = path.rtt.has_sample() ? window : std::max(window, unknown_rtt);
    for (; !path.flights.empty(); path.flights.pop_front()) {
      const PathState::Flight& flight = path.flights.front();
      if (IsStale(ledger, flight, i)) continue;
      const bool overtaken = path.highest_acked_seq >= flight.path_seq + path.reorder_threshold;
      const bool late = newest - ledger.at(flight.psn).sent > limit;
      if (!overtaken && !late) break;
      lost->push_back(flight.psn);
    }
  }
  std::sort(lost->begin() + static_cast<ptrdiff_t>(first), lost->end());
}

}  // namespace uccl::core
