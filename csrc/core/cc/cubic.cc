// CUBIC (RFC 9438). Slow start, the cubic function, the Reno-friendly region, fast convergence, and
// one reduction per round trip are here; which packets are lost is decided elsewhere. Windows in
// bytes; a segment is one MTU.
//
//            ACK, cwnd < ssthresh            loss or mark             ACK
//   slow start ------------------> grows  ------------------>  congestion avoidance (an epoch)
//       ^                                                              |
//       +------------------------------ timeout -----------------------+
//
// Not here: HyStart++ (section 4.10 leaves it open) and the undoing of spurious reductions
// (section 4.9, optional).
#include "csrc/core/cc/cubic.h"

#include <cmath>
#include <limits>

#include "csrc/core/cc/limits.h"
#include "csrc/core/cc/round_trip.h"

namespace uccl::core {
namespace {

constexpr double kC = 0.4;     // segments per second cubed, section 5.1
constexpr double kBeta = 0.7;  // multiplicative decrease, section 4.6
// alpha_cubic, section 4.3: makes the Reno-friendly estimate as aggressive as Reno is with a
// decrease of 0.5.
constexpr double kRenoAlpha = 3 * (1 - kBeta) / (1 + kBeta);
constexpr double kMaxTargetGrowth = 1.5;  // per round trip, section 4.2
// Deviation: RFC 9438 does not pace. A burst of a window overruns a shallow queue, so packets are
// spread over the round trip with the factors that Linux TCP and RFC 9002 section 7.7 (1.25) use;
// the window stays what limits.
constexpr double kSlowStartPacing = 2, kPacing = 1.25;

class Cubic final : public CongestionController {
 public:
  explicit Cubic(const CongestionParams& params)
      : limits_(params), round_trip_(params), cwnd_(limits_.InitialWindow()) {}

  void OnSent(Nanos now, int64_t) override {
    // Silence is no growth (section 4.2: t leaves out the time in which the application was the
    // limit).
    if (!idle_) return;
    idle_ = false;
    if (now > last_ack_) epoch_start_ += now - last_ack_;
    last_ack_ = std::max(last_ack_, now);
  }

  void OnAck(const AckSample& sample) override {
    round_trip_.OnAck(sample);
    timeouts_in_row_ = 0;
    const Nanos since_last = std::max(sample.now - last_ack_, Nanos(0));
    last_ack_ = sample.now;
    idle_ = sample.inflight_bytes == 0;
    if (!limits_.WindowInUse(sample, cwnd_)) {
      epoch_start_ += since_last;
      return;
    }
    const auto acked = static_cast<double>(sample.acked_bytes);
    if (cwnd_ < ssthresh_) {
      cwnd_ = limits_.ClampWindow(
          std::min(cwnd_ + acked, ssthresh_));  // RFC 5681 section 3.1, in bytes
      return;
    }
    if (!in_epoch_) StartEpoch(sample.now);
    AvoidCongestion(sample.now, acked);
  }

  void OnLoss(const LossSample& sample) override { Reduce(sample.now, sample.sent); }
  // Section 4.6: a mark is answered like a loss.
  void OnEcn(const AckSample& sample) override { Reduce(sample.now, kNever); }

  void OnTimeout(Nanos now) override {
    // RFC 5681 section 3.1: repeated timeouts of the same data do not lower ssthresh again.
    if (timeouts_in_row_++ == 0) RememberReduction();
    cwnd_ = limits_.min_window;
    after_timeout_ = true;
    in_epoch_ = false;
    gate_.OnReduction(now);
  }

  int64_t window_bytes() const override { return limits_.ToWindowBytes(cwnd_); }
  int64_t pacing_rate_bytes_per_s() const override {
    if (!round_trip_.has_sample()) return 0;
    const double gain = cwnd_ < ssthresh_ ? kSlowStartPacing : kPacing;
    return ToPacingRate(std::max(gain * cwnd_ / round_trip_.srtt_s(), limits_.min_rate));
  }
  std::string Snapshot() const override {
    return "cwnd=" + std::to_string(window_bytes()) + " ssthresh=" +
           (std::isinf(ssthresh_) ? "inf" : std::to_string(static_cast<int64_t>(ssthresh_))) +
           " w_max=" + std::to_string(static_cast<int64_t>(w_max_)) +
           " k_s=" + std::to_string(k_s_) +
           " w_est=" + std::to_string(static_cast<int64_t>(w_est_)) +
           " srtt_ns=" + std::to_string(round_trip_.srtt().count());
  }

 private:
  // Section 4.2, figures 1 and 2.
  double WCubic(double t_s) const { return kC * limits_.mtu * std::pow(t_s - k_s_, 3) + w_max_; }

  void StartEpoch(Nanos now) {
    in_epoch_ = true;
    epoch_start_ = now;
    // After a timeout, section 4.8: K is 0 and W_max the window of now. Likewise when growth has
    // passed W_max already.
    if (after_timeout_ || w_max_ <= cwnd_) {
      w_max_ = cwnd_;
      k_s_ = 0;
    } else {
      k_s_ = std::cbrt((w_max_ - cwnd_) / (kC * limits_.mtu));
    }
    w_est_ = cwnd_;
    after_timeout_ = false;
  }

  void AvoidCongestion(Nanos now, double acked) {
    const double t_s = ToSeconds(std::max(now - epoch_start_, Nanos(0)));
    // Section 4.3, figure 4; beyond the window before the reduction at Reno's own pace.
    w_est_ += (w_est_ >= cwnd_prior_ ? 1 : kRenoAlpha) * limits_.mtu * acked / cwnd_;
    // Growth stops at the largest window, or it would be far above it when a loss brings it down.
    w_est_ = std::min(w_est_, limits_.max_window);
    if (WCubic(t_s) < w_est_) {
      // Unlike the RFC's plain assignment this never shrinks the window on an ACK; the two differ
      // by less than what one round trip adds.
      cwnd_ = limits_.ClampWindow(std::max(cwnd_, w_est_));
      return;
    }
    const double target =
        std::clamp(WCubic(t_s + round_trip_.srtt_s()), cwnd_, kMaxTargetGrowth * cwnd_);
    cwnd_ = limits_.ClampWindow(std::min(cwnd_ + (target - cwnd_) * acked / cwnd_, target));
  }

  void Reduce(Nanos now, Nanos sent) {
    if (!gate_.IsNews(now, sent, round_trip_.srtt())) return;
    gate_.OnReduction(now);
    RememberReduction();
    cwnd_ = limits_.ClampWindow(ssthresh_);
    after_timeout_ = false;
    in_epoch_ = false;
  }

  // Sections 4.6 and 4.7. `cwnd` stands for the flight size: a window that is not used does not
  // grow.
  void RememberReduction() {
    cwnd_prior_ = cwnd_;
    // Fast convergence: who could not regain the last maximum leaves more to newcomers.
    w_max_ = cwnd_ < w_max_ ? cwnd_ * (1 + kBeta) / 2 : cwnd_;
    ssthresh_ = std::max(cwnd_ * kBeta, 2 * limits_.mtu);
  }

  const Limits limits_;
  RoundTrip round_trip_;
  OncePerRoundTrip gate_;
  double cwnd_;
  double ssthresh_ = std::numeric_limits<double>::infinity();
  double w_max_ = 0, k_s_ = 0;  // of the cubic function
  double w_est_ = 0;            // what Reno would have
  double cwnd_prior_ = 0;       // before the last reduction
  bool in_epoch_ = false, after_timeout_ = false, idle_ = false;
  int timeouts_in_row_ = 0;
  Nanos epoch_start_{0}, last_ack_{0};
};

}  // namespace

std::unique_ptr<CongestionController> MakeCubic(const CongestionParams& params) {
  return std::make_unique<Cubic>(params);
}

}  // namespace uccl::core
