// Which path the next packet takes. The rules that hold for every policy are here: failed paths are
// avoided, a retransmission avoids the path on which it was lost, a path whose own window or pace
// is used up takes nothing. A policy picks among those that are left.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/core/path/path.h"

namespace uccl::core {

struct PathRequest {
  std::span<const PathState> paths;  // not empty
  Nanos now{};
  std::optional<PathId> avoid;  // where it was lost; taken again only if there is no other
  bool urgent = false;          // windows and paces do not count
};

// The paths among which a policy picks.
struct PathFilter {
  const PathRequest* request;
  bool healthy = true, elsewhere = true;
  bool operator()(size_t i) const {
    const PathState& path = request->paths[i];
    if (healthy && path.failed()) return false;
    if (elsewhere && request->avoid && ToInt(*request->avoid) == i) return false;
    return request->urgent || path.Open(request->now);
  }
  // The first that passes, from `start` on and around.
  std::optional<size_t> From(size_t start) const {
    const size_t count = request->paths.size();
    for (size_t i = 0; i < count; ++i) {
      const size_t at = (start + i) % count;
      if ((*this)(at)) return at;
    }
    return std::nullopt;
  }
};

class PathSelector {
 public:
  virtual ~PathSelector() = default;
  // Nothing when the packet has to wait: every path that works has used up its window or pace. Of
  // an urgent one, always a path.
  virtual std::optional<PathId> Select(const PathRequest& request);
  // Packets of a path were acknowledged, `marked` of them by way of a congested queue (ECN). Most
  // policies read what they need in PathState; this is for those that are clocked by ACKs.
  virtual void OnAcked(PathId path, uint32_t packets, uint32_t marked);

 protected:
  // One of those that pass `filter`, or nothing if none does.
  virtual std::optional<size_t> Pick(const PathRequest& request, const PathFilter& filter) = 0;
};

struct PathSelectorRow {
  const char* name;
  std::unique_ptr<PathSelector> (*make)(uint64_t seed);
  bool single_path;  // all packets take one path: its share of buffers is all there is
  const char* summary;
};
// To add a policy: a class and a row in registry.cc.
std::span<const PathSelectorRow> PathSelectors();
// kInvalidArgument with the known names for an unknown one.
Result<std::unique_ptr<PathSelector>> MakePathSelector(const std::string& name, uint64_t seed);
// False for an unknown name.
bool UsesSinglePath(const std::string& name);

}  // namespace uccl::core
