// Feeds one controller by hand, with the time and the window in the units of a test's arithmetic.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "csrc/core/cc/registry.h"

namespace uccl::core::testing {

class CongestionDriver final {
 public:
  static constexpr int64_t kMtu = 1000;

  CongestionDriver(const std::string& name, CongestionParams params)
      : controller_(std::move(MakeCongestionController(name, params).value())) {}

  // Time goes on, then an ACK of so many packets comes, from a sender that used its whole window.
  void Ack(Nanos after, double packets, Nanos rtt) { AckWith(after, packets, rtt, window()); }
  void AckWith(Nanos after, double packets, Nanos rtt, int64_t inflight_bytes) {
    now += after;
    controller_->OnAck({.now = now,
                        .rtt = rtt,
                        .acked_bytes = static_cast<int64_t>(packets * kMtu),
                        .inflight_bytes = inflight_bytes});
  }
  void Mark(Nanos after) {
    now += after;
    controller_->OnEcn({.now = now, .acked_bytes = kMtu, .inflight_bytes = window()});
  }
  void Lose(Nanos after, Nanos sent = kNever) {
    now += after;
    controller_->OnLoss({.now = now, .lost_bytes = kMtu, .inflight_bytes = window(), .sent = sent});
  }
  void Timeout(Nanos after) {
    now += after;
    controller_->OnTimeout(now);
  }
  void Sent(Nanos after, int64_t bytes) {
    now += after;
    controller_->OnSent(now, bytes);
  }

  int64_t window() const { return controller_->window_bytes(); }
  int64_t rate() const { return controller_->pacing_rate_bytes_per_s(); }
  // A number in the snapshot, `key=number`.
  double Value(const std::string& key) const {
    const std::string text = " " + controller_->Snapshot();
    const size_t at = text.find(" " + key + "=");
    if (at == std::string::npos) {
      ADD_FAILURE() << key << " is not in" << text;
      return 0;
    }
    return std::stod(text.substr(at + key.size() + 2));
  }
  const CongestionController& controller() const { return *controller_; }

  Nanos now = FromMillis(1000);

 private:
  std::unique_ptr<CongestionController> controller_;
};

}  // namespace uccl::core::testing
