// Congestion control of a connection: one controller for all paths or one for each, the pace, and
// which events reach which controller. The controllers themselves are in cc/.
//
// For all paths: one window, one pace; the sample of an ACK is the newest round trip in it, of
// whichever path. For each path: the path's own window, pace, round trips, marks and losses; its
// limits stand in PathState, where path selection sees them. The window of the connection
// (window_bytes of the settings, what the receiver can bear) holds in both cases. Losses reach a
// controller when they are more than chance would explain (loss_tolerance.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/core/cc/congestion_controller.h"
#include "csrc/core/loss_tolerance.h"
#include "csrc/core/path/path.h"

namespace uccl::core {

struct ConnectionConfig;

using Controllers = std::vector<std::unique_ptr<CongestionController>>;

// One controller, or one for each path. kInvalidArgument for an unknown name or scope.
Result<Controllers> MakeControllers(const ConnectionConfig& config);

class Congestion final {
 public:
  // `paths` and the controllers belong together: one controller, or as many as paths.
  Congestion(Controllers controllers, const ConnectionConfig& config, std::span<PathState> paths);

  // The connection's own limits; those of a path are PathState::Open.
  bool WindowOpen(int64_t inflight_bytes) const;
  Nanos next_send() const { return next_send_; }

  void OnSent(Nanos now, PathId path, int64_t bytes);
  // What one ACK said: `all` of the connection, *_now of each path, which is reset for those of
  // which it acknowledged packets.
  void OnAck(AckSample all);
  // `sample.inflight_bytes` is that of the connection.
  void OnLoss(LossSample sample);
  // Nothing was acknowledged for a while, on any path.
  void OnTimeout(Nanos now);
  // A path was given up. Its own controller starts again from little.
  void OnPathFailed(Nanos now, size_t path);

  int64_t window_bytes() const;
  std::string Snapshot() const { return controllers_.front()->Snapshot(); }

 private:
  CongestionController& of(size_t path) { return *controllers_[per_path_ ? path : 0]; }
  void Refresh(size_t path);

  const Controllers controllers_;
  std::vector<LossTolerance> tolerances_;  // one for each controller
  const bool per_path_;
  const int64_t window_bytes_;
  const std::span<PathState> paths_;
  Nanos next_send_{0};  // for all paths together
};

}  // namespace uccl::core
