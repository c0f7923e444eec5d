// Swift (Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the
// Datacenter", SIGCOMM'20), section 3. The window is counted in packets and may be a fraction;
// below one packet, pacing carries it (3.4).
//
// Deviation: the paper keeps one window for the fabric and one for the receiving host and uses the
// smaller (3.3). Our ACKs do not carry the host's share of the delay, so there is one window
// against the whole round trip. Deviation: the paper sets a base target for a known data centre,
// propagation included. Here it is the measured base RTT plus a budget for queueing, so that one
// setting serves loopback and campus alike.
#include "csrc/core/cc/swift.h"

#include <cmath>

#include "csrc/core/cc/limits.h"
#include "csrc/core/cc/round_trip.h"

namespace uccl::core {
namespace {

// The paper names the parameters of algorithm 1 and publishes few of their values; those without a
// section are ours.
constexpr double kAdditiveIncrease = 1.0;  // ai: packets per round trip
constexpr double kBeta = 0.8;              // multiplicative decrease per relative excess of delay
constexpr double kMaxDecrease = 0.5;       // max_mdf: the most that one round trip takes off
constexpr int kRetxResetThreshold = 5;     // timeouts in a row after which only min_cwnd is left
constexpr double kMinCwnd = 0.001;         // packets, section 3.4 (pacing of very large incasts)
constexpr double kFlowScalingMinCwnd =
    0.1;  // fs_min_cwnd, section 3.5: full extra target at and below
constexpr double kFlowScalingMaxCwnd = 100;  // fs_max_cwnd, section 3.5: none at and above
constexpr double kQueueBudgetSeconds =
    25e-6;  // queueing that a few flows may cause, in the base target; unless given
constexpr double kQueueBudgetPackets =
    4;  // or the time of so many packets at line rate, if that is longer
constexpr double kQueueBudgetOfBase =
    0.25;  // or this part of a long round trip, whose jitter grows with it
constexpr double kFlowScalingRange = 4;  // fs_range, in queue budgets
constexpr double kPerHopSeconds = 1e-6;  // h-bar, section 3.5

class Swift final : public CongestionController {
 public:
  explicit Swift(const CongestionParams& params)
      : limits_(params),
        hops_(std::max(params.hops, 0)),
        queue_budget_s_(params.queue_budget > Nanos(0) ? ToSeconds(params.queue_budget)
                                                       : kQueueBudgetSeconds),
        round_trip_(params),
        max_cwnd_(limits_.max_window / limits_.mtu),
        min_cwnd_(std::min(kMinCwnd, max_cwnd_)),
        cwnd_(limits_.InitialWindow() / limits_.mtu) {}

  void OnSent(Nanos, int64_t) override {}

  // Algorithm 1, OnACK.
  void OnAck(const AckSample& sample) override {
    retransmit_count_ = 0;
    if (!round_trip_.OnAck(sample)) return;
    const double delay_s = ToSeconds(sample.delay());
    const double target_s = TargetDelaySeconds();
    if (delay_s < target_s) {
      // What draining shows is not what the window causes.
      if (round_trip_.Draining()) return;
      // Deviation: an unused window does not grow (the paper's senders are never idle for long).
      if (!limits_.WindowInUse(sample, cwnd_ * limits_.mtu)) return;
      const double acked = static_cast<double>(sample.acked_bytes) / limits_.mtu;
      // Deviation: until the first sign of congestion the window doubles each round trip. The paper
      // only adds, from a window that suits its network; from 10 packets that takes hundreds of
      // round trips on a link of 100 Gbit/s.
      const double step = starting_ ? 1 : kAdditiveIncrease / std::max(cwnd_, 1.0);
      SetCwnd(cwnd_ + step * acked);
    } else {
      Decrease(sample.now, kNever,
               std::max(1 - kBeta * (delay_s - target_s) / delay_s, 1 - kMaxDecrease));
    }
  }

  // Algorithm 1, on fast recovery.
  void OnLoss(const LossSample& sample) override {
    retransmit_count_ = 0;
    Decrease(sample.now, sample.sent, 1 - kMaxDecrease);
  }
  // Delay is the signal; a marking queue shows in it.
  void OnEcn(const AckSample&) override {}

  // Algorithm 1, on retransmit timeout.
  void OnTimeout(Nanos now) override {
    if (++retransmit_count_ >= kRetxResetThreshold) {
      starting_ = false;
      SetCwnd(min_cwnd_);
      gate_.OnReduction(now);
    } else {
      Decrease(now, kNever, 1 - kMaxDecrease);
    }
  }

  int64_t window_bytes() const override {
    const double packets =
        round_trip_.Draining() ? std::min(cwnd_, RoundTrip::kDrainWindowPackets) : cwnd_;
    return limits_.ToWindowBytes(packets * limits_.mtu);
  }
  int64_t pacing_rate_bytes_per_s() const override {
    if (cwnd_ >= 1 || !round_trip_.has_sample()) return 0;  // clocked by ACKs
    // Section 3.4: pacing delay = rtt / cwnd, between packets.
    return ToPacingRate(std::max(cwnd_ * limits_.mtu / round_trip_.srtt_s(), limits_.min_rate));
  }
  std::string Snapshot() const override {
    return "cwnd_packets=" + std::to_string(cwnd_) +
           " target_ns=" + std::to_string(static_cast<int64_t>(TargetDelaySeconds() * 1e9)) +
           " base_rtt_ns=" + std::to_string(round_trip_.base().count()) +
           " srtt_ns=" + std::to_string(round_trip_.srtt().count()) +
           " timeouts=" + std::to_string(retransmit_count_);
  }

 private:
  // Section 3.5: base + hops * h-bar + max(0, min(alpha / sqrt(cwnd) + beta, fs_range)), with alpha
  // and beta such that the last term falls from fs_range at fs_min_cwnd to 0 at fs_max_cwnd. Small
  // windows, that is many flows, get a larger target, as their queue fluctuates with the square
  // root of their number; it also makes them equal.
  double TargetDelaySeconds() const {
    const double base_s = ToSeconds(round_trip_.base());
    double budget_s = std::max(queue_budget_s_, kQueueBudgetOfBase * base_s);
    if (limits_.line_rate_known) {
      budget_s = std::max(budget_s, kQueueBudgetPackets * limits_.mtu / limits_.max_rate);
    }
    const double range_s = kFlowScalingRange * budget_s;
    const double alpha =
        range_s / (1 / std::sqrt(kFlowScalingMinCwnd) - 1 / std::sqrt(kFlowScalingMaxCwnd));
    const double beta = -alpha / std::sqrt(kFlowScalingMaxCwnd);
    const double scaling_s = std::clamp(alpha / std::sqrt(cwnd_) + beta, 0.0, range_s);
    return base_s + budget_s + hops_ * kPerHopSeconds + scaling_s;
  }

  void SetCwnd(double cwnd) { cwnd_ = std::clamp(cwnd, min_cwnd_, max_cwnd_); }

  void Decrease(Nanos now, Nanos sent, double factor) {
    starting_ = false;
    if (!gate_.IsNews(now, sent, round_trip_.srtt())) return;
    gate_.OnReduction(now);
    SetCwnd(cwnd_ * factor);
  }

  const Limits limits_;
  const int32_t hops_;
  const double queue_budget_s_;
  RoundTrip round_trip_;
  OncePerRoundTrip gate_;
  const double max_cwnd_, min_cwnd_;
  double cwnd_;  // packets
  int retransmit_count_ = 0;
  bool starting_ = true;
};

}  // namespace

std::unique_ptr<CongestionController> MakeSwift(const CongestionParams& params) {
  return std::make_unique<Swift>(params);
}

}  // namespace uccl::core
