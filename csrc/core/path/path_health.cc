// See path_health.h.
#include "csrc/core/path/path_health.h"

#include <algorithm>

namespace uccl::core {

void PathMonitor::OnAlive(PathState* path, Nanos sent) {
  if (sent <= path->newest_acked_sent) return;
  path->newest_acked_sent = sent;
  path->losses_in_row = 0;
  if (!path->failed()) return;
  path->health = PathHealth::kUp;
  path->next_probe = kNever;
  --failed_count_;
}

void PathMonitor::OnLoss(PathState* path, Nanos sent) {
  if (sent <= path->newest_acked_sent) return;  // the path worked later
  if (path->losses_in_row++ == 0) path->first_loss_sent = sent;
  path->first_loss_sent = std::min(path->first_loss_sent, sent);
  suspicion_ |= path->losses_in_row >= kLossesToFail;
}

void PathMonitor::Fail(PathState* path, Nanos now) {
  path->health = PathHealth::kFailed;
  ++path->failures;
  ++failed_count_;
  path->next_probe = now;
  path->probe_interval =
      std::clamp(path->rtt.Bound(), kMinPathProbeInterval, kMaxPathProbeInterval);
}

Nanos PathMonitor::NewestDelivered() const {
  Nanos newest{-1};
  for (const PathState& path : paths_) newest = std::max(newest, path.newest_acked_sent);
  return newest;
}

Nanos PathMonitor::NextProbe() const {
  Nanos next = kNever;
  if (failed_count_ == 0) return next;
  for (const PathState& path : paths_) next = std::min(next, path.next_probe);
  return next;
}

void PathMonitor::QueueDueProbes(Nanos now) {
  if (failed_count_ == 0) return;
  for (size_t i = 0; i < paths_.size(); ++i) {
    PathState& path = paths_[i];
    if (path.next_probe > now) continue;
    queue_.push_back(static_cast<PathId>(i));
    path.next_probe = now + path.probe_interval;
    path.probe_interval = std::min(2 * path.probe_interval, kMaxPathProbeInterval);
  }
}

void PathMonitor::QueueProbesOfSilentPaths(Nanos since) {
  if (!queue_.empty()) return;  // the last ones have not even left
  for (size_t i = 0; i < paths_.size(); ++i) {
    if (!paths_[i].failed() && paths_[i].newest_acked_sent < since)
      queue_.push_back(static_cast<PathId>(i));
  }
}

std::optional<PathId> PathMonitor::TakeProbe() {
  if (queue_.empty()) return std::nullopt;
  const PathId path = queue_.front();
  queue_.pop_front();
  ++paths_[ToInt(path)].probes;
  return path;
}

}  // namespace uccl::core
