// Recycled entropies (Bonato et al., "REPS: Recycled Entropy Packet Spraying for Adaptive Load
// Balancing and Failure Mitigation", 2024, section 3): a path that returned a packet without an ECN
// mark has room for one more, and takes one. Where nothing came back the paths are tried in turn,
// which is how the sender begins, and how it replaces paths that mark.
//
// So a path's share follows what it returns, packet by packet, without measuring any round trip; a
// few hundred paths of which each carries a packet now and then cannot be measured in time.
//
// Deviation: every kExploreEvery-th packet takes the next path in turn all the same. A window that
// only circulates would never find a path that healed, or one whose queue has gone.
// Deviation: the paper draws fresh entropies at random from 2^16; here they are the connection's
// paths. Deviation: it keeps the 8 newest and reuses them after a timeout ("freezing"). Here failed
// paths are known (path_health.h), and as many are kept as a window may hold.
#include "csrc/core/path/reps.h"

#include "csrc/core/ring.h"

namespace uccl::core {
namespace {

// Beyond it the oldest are forgotten: the application was the limit, and they tell of the past.
constexpr size_t kMaxKept = 1024;
constexpr uint32_t kExploreEvery = 32;

class Reps final : public PathSelector {
 public:
  // The seed spreads connections that start together over the paths.
  explicit Reps(uint64_t seed) : next_(seed) {}

  void OnAcked(PathId path, uint32_t packets, uint32_t marked) override {
    for (uint32_t i = marked; i < packets; ++i) {
      if (good_.size() == kMaxKept) good_.pop_front();
      good_.push_back(ToInt(path));
    }
  }

 private:
  std::optional<size_t> Pick(const PathRequest& request, const PathFilter& filter) override {
    const bool explore = ++picks_ % kExploreEvery == 0;
    while (!explore && !good_.empty()) {
      const size_t path = good_.front();
      good_.pop_front();
      if (filter(path)) return path;
    }
    const auto pick = filter.From(next_ % request.paths.size());
    if (pick) next_ = *pick + 1;
    return pick;
  }

  Ring<uint16_t> good_;
  uint64_t next_;
  uint32_t picks_ = 0;
};

}  // namespace

std::unique_ptr<PathSelector> MakeReps(uint64_t seed) { return std::make_unique<Reps>(seed); }

}  // namespace uccl::core
