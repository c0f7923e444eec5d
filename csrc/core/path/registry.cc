// The path policies that exist, and the two that need no state worth a file.
#include <array>

#include "csrc/core/path/path_selector.h"

namespace uccl::core {
namespace {

// Everything on path 0; retransmissions too, as there is no reason to trust another one more.
class Single final : public PathSelector {
 public:
  PathId Select(std::span<const PathState>, std::optional<PathId>) override { return PathId{0}; }
};

class RoundRobin final : public PathSelector {
 public:
  // The seed spreads connections that start together over the paths.
  explicit RoundRobin(uint64_t seed) : next_(seed) {}
  PathId Select(std::span<const PathState> paths, std::optional<PathId> avoid) override {
    uint64_t pick = next_++ % paths.size();
    if (avoid && pick == ToInt(*avoid)) pick = next_++ % paths.size();
    return static_cast<PathId>(pick);
  }

 private:
  uint64_t next_;
};

constexpr std::array kRows = {
    PathSelectorRow{
        "single",
        [](uint64_t) -> std::unique_ptr<PathSelector> { return std::make_unique<Single>(); },
        "all packets on the first path"},
    PathSelectorRow{"round_robin",
                    [](uint64_t seed) -> std::unique_ptr<PathSelector> {
                      return std::make_unique<RoundRobin>(seed);
                    },
                    "packets take the paths in turn"},
};

}  // namespace

std::span<const PathSelectorRow> PathSelectors() { return kRows; }

Result<std::unique_ptr<PathSelector>> MakePathSelector(const std::string& name, uint64_t seed) {
  std::string known;
  for (const PathSelectorRow& row : kRows) {
    if (name == row.name) return row.make(seed);
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return Status::Error(StatusCode::kInvalidArgument,
                       "unknown path_policy `" + name + "`; known: " + known);
}

}  // namespace uccl::core
