// See congestion.h.
#include "csrc/core/congestion.h"

#include <algorithm>
#include <utility>

#include "csrc/core/cc/registry.h"
#include "csrc/core/connection.h"
#include "csrc/core/pacer.h"

namespace uccl::core {

Result<Controllers> MakeControllers(const ConnectionConfig& config) {
  const bool per_path = config.cc_scope == "path";
  if (!per_path && config.cc_scope != "connection") {
    return Status::Error(StatusCode::kInvalidArgument,
                         "unknown cc_scope `" + config.cc_scope + "`; known: connection, path");
  }
  CongestionParams params;
  params.window_bytes = config.window_bytes;
  params.mtu_bytes = static_cast<int64_t>(config.max_datagram_bytes);
  params.line_rate_bytes_per_s = config.line_rate_bytes_per_s;
  params.base_rtt = config.base_rtt;
  params.queue_budget = config.queue_budget;
  if (per_path && config.path_window_bytes > 0)
    params.window_bytes = std::min(params.window_bytes, config.path_window_bytes);
  Controllers controllers;
  for (size_t i = 0; i < (per_path ? config.num_paths : 1u); ++i) {
    auto made = MakeCongestionController(config.congestion_control, params);
    if (!made.ok()) return made.status();
    controllers.push_back(std::move(made.value()));
  }
  return controllers;
}

Congestion::Congestion(Controllers controllers, const ConnectionConfig& config,
                       std::span<PathState> paths)
    : controllers_(std::move(controllers)),
      tolerances_(controllers_.size(),
                  LossTolerance(config.loss_tolerance_permille,
                                static_cast<int64_t>(config.max_datagram_bytes))),
      per_path_(controllers_.size() > 1),
      window_bytes_(config.window_bytes),
      paths_(paths) {
  for (size_t i = 0; i < paths_.size(); ++i) Refresh(i);
}

// One path with a controller of its own is the same as a connection with one.
void Congestion::Refresh(size_t path) {
  if (per_path_) paths_[path].window_bytes = controllers_[path]->window_bytes();
}

bool Congestion::WindowOpen(int64_t inflight_bytes) const {
  // With nothing in flight one packet always goes, however small the window.
  return inflight_bytes == 0 ||
         inflight_bytes <
             (per_path_ ? window_bytes_ : std::min(window_bytes_, controllers_[0]->window_bytes()));
}

void Congestion::OnSent(Nanos now, PathId path, int64_t bytes) {
  CongestionController& controller = of(ToInt(path));
  Nanos& next = per_path_ ? paths_[ToInt(path)].next_send : next_send_;
  next = NextSend(next, now, bytes, controller.pacing_rate_bytes_per_s());
  controller.OnSent(now, bytes);
  Refresh(ToInt(path));
}

void Congestion::OnAck(AckSample all) {
  int64_t marked_bytes = 0;
  for (size_t i = 0; i < paths_.size(); ++i) {
    PathState& path = paths_[i];
    // An ACK has room for the echoes of a few paths and acknowledges packets of all; what the next
    // one tells of the others waits for their next packets.
    if (path.acked_packets_now == 0) continue;
    const int64_t acked = std::exchange(path.acked_bytes_now, 0);
    const auto packets = static_cast<int64_t>(std::exchange(path.acked_packets_now, 0));
    const auto marks = static_cast<int64_t>(std::exchange(path.marks_now, 0));
    const Nanos rtt = std::exchange(path.rtt_now, Nanos(0));
    const Nanos waited = std::exchange(path.waited_now, Nanos(0));
    // Marks are counted in packets and controllers reckon in bytes: the mean packet stands for all.
    // More marks than acknowledged packets come from ACKs that were lost before.
    const int64_t marked = acked * std::min(marks, packets) / packets;
    marked_bytes += marked;
    if (!per_path_) continue;
    AckSample sample{.now = all.now,
                     .path = static_cast<PathId>(i),
                     .rtt = rtt,
                     .acked_bytes = marked,
                     .inflight_bytes = path.inflight_bytes,
                     .waited = waited};
    if (marked > 0) controllers_[i]->OnEcn(sample);
    sample.acked_bytes = acked;
    tolerances_[i].OnAcked(acked);
    controllers_[i]->OnAck(sample);
    Refresh(i);
  }
  if (per_path_) return;
  const int64_t acked_bytes = std::exchange(all.acked_bytes, marked_bytes);
  if (marked_bytes > 0) controllers_[0]->OnEcn(all);
  if (acked_bytes == 0) return;
  all.acked_bytes = acked_bytes;
  tolerances_[0].OnAcked(acked_bytes);
  controllers_[0]->OnAck(all);
}

void Congestion::OnLoss(LossSample sample) {
  const size_t path = ToInt(sample.path);
  if (tolerances_[per_path_ ? path : 0].Excuses(sample.lost_bytes)) return;
  if (per_path_) sample.inflight_bytes = paths_[path].inflight_bytes;
  of(path).OnLoss(sample);
  Refresh(path);
}

void Congestion::OnTimeout(Nanos now) {
  if (!per_path_) return controllers_[0]->OnTimeout(now);
  for (size_t i = 0; i < paths_.size(); ++i) {
    if (paths_[i].inflight_bytes == 0) continue;  // it is not this one's fault
    controllers_[i]->OnTimeout(now);
    Refresh(i);
  }
}

void Congestion::OnPathFailed(Nanos now, size_t path) {
  if (!per_path_) return;
  controllers_[path]->OnTimeout(now);
  Refresh(path);
}

int64_t Congestion::window_bytes() const {
  if (!per_path_) return std::min(window_bytes_, controllers_[0]->window_bytes());
  int64_t sum = 0;
  for (const auto& controller : controllers_)
    sum = std::min(window_bytes_, sum + controller->window_bytes());
  return sum;
}

}  // namespace uccl::core
