// Which paths are dead, and when they come back. A path fails when kLossesToFail packets in a row
// were lost on it, none sent since has been acknowledged, and another path delivers what was sent
// later; without the last condition a slow peer would fail every path. While the connection has
// something to send, a failed path is probed: at once, because a probe that returns repairs a wrong
// judgement in one round trip, then at doubling intervals up to kMaxPathProbeInterval, which bounds
// how long a healed path stays unused. Any answer from a path, to a probe or to a packet that was
// only late, brings it back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "csrc/base/types.h"
#include "csrc/core/path/path.h"
#include "csrc/core/ring.h"

namespace uccl::core {

// Losses that a later packet of the same path overtook do not count, so congestion rarely makes
// even two in a row.
inline constexpr uint32_t kLossesToFail = 3;
inline constexpr Nanos kMinPathProbeInterval = FromMillis(2);
inline constexpr Nanos kMaxPathProbeInterval = FromMillis(200);

class PathMonitor final {
 public:
  explicit PathMonitor(std::span<PathState> paths) : paths_(paths) {}

  // Something sent on the path at `sent` has been acknowledged.
  void OnAlive(PathState* path, Nanos sent);
  void OnLoss(PathState* path, Nanos sent);
  // To be called after the losses and answers of one ACK or timeout. Returns how many paths failed
  // by it; `on_failed` is called for each.
  template <class OnFailed>
  void Judge(Nanos now, OnFailed on_failed);

  // Probes. All paths at once when nothing is acknowledged on any of them.
  Nanos NextProbe() const;
  void QueueDueProbes(Nanos now);
  void QueueProbesOfSilentPaths(Nanos since);
  std::optional<PathId> TakeProbe();
  bool any_failed() const { return failed_count_ > 0; }
  void Clear() { queue_.clear(); }

 private:
  void Fail(PathState* path, Nanos now);
  Nanos NewestDelivered() const;

  const std::span<PathState> paths_;
  size_t failed_count_ = 0;
  bool suspicion_ = false;  // some path has enough losses
  Ring<PathId> queue_;      // to probe
};

template <class OnFailed>
void PathMonitor::Judge(Nanos now, OnFailed on_failed) {
  if (!suspicion_) return;
  suspicion_ = false;
  const Nanos newest = NewestDelivered();
  for (size_t i = 0; i < paths_.size(); ++i) {
    PathState& path = paths_[i];
    if (path.failed() || path.losses_in_row < kLossesToFail) continue;
    // Later than a loss of this path, so it went over another one.
    if (newest <= path.first_loss_sent) {
      suspicion_ = true;
      continue;
    }
    Fail(&path, now);
    on_failed(i);
  }
}

}  // namespace uccl::core
