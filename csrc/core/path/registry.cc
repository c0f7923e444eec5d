// The path policies that exist, and those that need no state worth a file.
#include <array>

#include "csrc/core/path/path_selector.h"
#include "csrc/core/path/power_of_two.h"
#include "csrc/core/path/reps.h"

namespace uccl::core {
namespace {

// Everything on path 0; retransmissions too, as there is no reason to trust another one more.
class Single final : public PathSelector {
 public:
  std::optional<PathId> Select(const PathRequest& request) override {
    if (!request.urgent && !request.paths[0].Open(request.now)) return std::nullopt;
    return PathId{0};
  }

 private:
  std::optional<size_t> Pick(const PathRequest&, const PathFilter&) override { return 0; }
};

class RoundRobin final : public PathSelector {
 public:
  // The seed spreads connections that start together over the paths.
  explicit RoundRobin(uint64_t seed) : next_(seed) {}

 private:
  std::optional<size_t> Pick(const PathRequest& request, const PathFilter& filter) override {
    const auto pick = filter.From(next_ % request.paths.size());
    if (pick) next_ = *pick + 1;
    return pick;
  }
  uint64_t next_;
};

// Bytes in flight are rate times delay: a path that is slower, longer queued or dead keeps its
// bytes and gets no new ones until it returns them. Equal ones take turns.
class LeastLoaded final : public PathSelector {
 public:
  explicit LeastLoaded(uint64_t seed) : next_(seed) {}

 private:
  std::optional<size_t> Pick(const PathRequest& request, const PathFilter& filter) override {
    const size_t count = request.paths.size(), start = next_ % count;
    std::optional<size_t> best;
    for (size_t i = 0; i < count; ++i) {
      const size_t at = (start + i) % count;
      if (!filter(at)) continue;
      if (!best || request.paths[at].inflight_bytes < request.paths[*best].inflight_bytes)
        best = at;
      if (request.paths[*best].inflight_bytes == 0) break;
    }
    if (best) next_ = *best + 1;
    return best;
  }
  uint64_t next_;
};

template <class Policy>
std::unique_ptr<PathSelector> Make(uint64_t seed) {
  return std::make_unique<Policy>(seed);
}

constexpr std::array kRows = {
    PathSelectorRow{
        "single",
        [](uint64_t) -> std::unique_ptr<PathSelector> { return std::make_unique<Single>(); }, true,
        "all packets on the first path"},
    PathSelectorRow{"round_robin", &Make<RoundRobin>, false, "packets take the paths in turn"},
    PathSelectorRow{"power_of_two", &MakePowerOfTwo, false,
                    "of two random paths the one with the lower smoothed round trip"},
    PathSelectorRow{"least_loaded", &Make<LeastLoaded>, false,
                    "the path with the fewest bytes in flight"},
    PathSelectorRow{"reps", &MakeReps, false,
                    "paths whose packets came back without a mark, in that order; else the next"},
};

const PathSelectorRow* Find(const std::string& name) {
  for (const PathSelectorRow& row : kRows) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

}  // namespace

std::span<const PathSelectorRow> PathSelectors() { return kRows; }

Result<std::unique_ptr<PathSelector>> MakePathSelector(const std::string& name, uint64_t seed) {
  if (const PathSelectorRow* row = Find(name)) return row->make(seed);
  std::string known;
  for (const PathSelectorRow& row : kRows) {
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return Status::Error(StatusCode::kInvalidArgument,
                       "unknown path_policy `" + name + "`; known: " + known);
}

bool UsesSinglePath(const std::string& name) {
  const PathSelectorRow* row = Find(name);
  return row != nullptr && row->single_path;
}

}  // namespace uccl::core
