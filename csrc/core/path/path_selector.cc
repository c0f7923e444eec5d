// The order in which requirements are given up when no path meets them all. See path_selector.h.
#include "csrc/core/path/path_selector.h"

#include <algorithm>

namespace uccl::core {

std::optional<PathId> PathSelector::Select(const PathRequest& request) {
  const auto pick = [&](bool healthy) -> std::optional<PathId> {
    for (const bool elsewhere : {true, false}) {
      if (!elsewhere && !request.avoid) break;  // the same again
      const auto at = Pick(request, PathFilter{&request, healthy, elsewhere});
      if (at) return static_cast<PathId>(*at);
    }
    return std::nullopt;
  };
  if (const auto path = pick(true)) return path;
  // Waiting for a path that works beats sending into one that does not. Where none works, all are
  // tried: that is how the first to come back is found.
  if (!std::ranges::all_of(request.paths, &PathState::failed)) return std::nullopt;
  return pick(false);
}

void PathSelector::OnAcked(PathId, uint32_t, uint32_t) {}

}  // namespace uccl::core
