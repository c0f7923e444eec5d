// DCQCN: "Congestion Control for Large-Scale RDMA Deployments", Zhu et al., SIGCOMM'15,
// section 3.1: the reaction point. The notification point (at most one CNP per 50 us) is folded in:
// ACKs carry the marks, and marks within the window of one CNP count as one. The hyper increase is
// QCN's (IEEE 802.1Qau), to which the paper refers.
//
//   mark: Rt = Rc, Rc *= 1 - alpha/2, alpha = (1-g) alpha + g; T = BC = 0
//   else: T counts timer periods, BC counts bytes; each step is
//         max(T, BC) < F: fast recovery      Rc = (Rt + Rc) / 2
//         min(T, BC) > F: hyper increase     Rt += (min(T, BC) - F) R_HAI, then as above
//         otherwise:      additive increase  Rt += R_AI, then as above
//
// Timers are driven by the `now` of the next event.
//
// Deviation: rate-based senders count on a hardware pacer; the window here is rate times round
// trip, so that the rate holds without one. Deviation: the paper's time constants suit round trips
// below 50 us. Where it is longer, all three are stretched by srtt / 50 us, or one congested moment
// would be answered many times before the first answer can be felt. Deviation: DCQCN presumes a
// network without loss. Here a loss is answered by Rc /= 2 (a mark with alpha = 1), once per round
// trip; a timeout likewise.
#include "csrc/core/cc/dcqcn.h"

#include <cmath>

#include "csrc/core/cc/limits.h"
#include "csrc/core/cc/round_trip.h"

namespace uccl::core {
namespace {

constexpr double kG = 1.0 / 256;              // gain of alpha, section 5.2
constexpr double kCnpSeconds = 50e-6;         // N: marks within count once, section 3.1
constexpr double kAlphaTimerSeconds = 55e-6;  // K, section 3.1 (larger than N)
constexpr double kRateTimerSeconds = 55e-6;   // T's period, section 5.2
constexpr double kByteCounter = 10e6;         // BC's period, section 5.2
constexpr int kFastRecoverySteps = 5;         // F, section 3.1
constexpr double kAddRate = 40e6 / 8;         // R_AI = 40 Mbit/s, the paper's links have 40 Gbit/s
constexpr double kAddOfLineRate = 1e-3;       // the same relation for a link whose rate is known
constexpr double kHyperOfAdd = 10;            // R_HAI / R_AI, as 50 to 5 Mbit/s in QCN
// After an idle time no more periods than this are made up for: 56 ms, in which the target has
// risen by the line rate.
constexpr int64_t kMaxStepsAtOnce = 1024;
constexpr int kMaxCount = 1 << 20;  // of T and BC, far beyond where they matter

class Dcqcn final : public CongestionController {
 public:
  explicit Dcqcn(const CongestionParams& params)
      : limits_(params),
        round_trip_(params),
        add_rate_(limits_.line_rate_known ? kAddOfLineRate * limits_.max_rate : kAddRate),
        current_(limits_.max_rate),
        target_(limits_.max_rate) {}  // section 3.1: no slow start, line rate at once

  void OnSent(Nanos now, int64_t bytes) override {
    AdvanceTimers(now);
    sent_bytes_ += static_cast<double>(bytes);
    for (; sent_bytes_ >= kByteCounter; sent_bytes_ -= kByteCounter) {
      byte_steps_ = std::min(byte_steps_ + 1, kMaxCount);
      Increase();
    }
  }

  void OnAck(const AckSample& sample) override {
    if (silent_) alpha_start_ = rate_start_ = sample.now;
    silent_ = false;
    round_trip_.OnAck(sample);
    AdvanceTimers(sample.now);
  }

  void OnEcn(const AckSample& sample) override {
    AdvanceTimers(sample.now);
    if (last_cnp_ != kNever && ToSeconds(sample.now - last_cnp_) < kCnpSeconds * Stretch()) return;
    last_cnp_ = sample.now;
    Cut(sample.now, 1 - alpha_ / 2);  // equation 1
    alpha_ = (1 - kG) * alpha_ + kG;
  }

  void OnLoss(const LossSample& sample) override {
    AdvanceTimers(sample.now);
    if (loss_gate_.IsNews(sample.now, sample.sent, round_trip_.srtt())) CutForLoss(sample.now);
  }
  void OnTimeout(Nanos now) override {
    AdvanceTimers(now);
    CutForLoss(now);
    // Without ACKs the timers would bring the rate back before the next timeout: into a path that
    // may be dark the target falls as well, and the timers wait for the first sign of life.
    target_ = current_;
    silent_ = true;
  }

  int64_t window_bytes() const override {
    return round_trip_.has_sample() ? limits_.WindowOfRate(current_, round_trip_.srtt_s())
                                    : limits_.ToWindowBytes(initial_window_);
  }
  int64_t pacing_rate_bytes_per_s() const override { return ToPacingRate(current_); }
  std::string Snapshot() const override {
    return "rate_bytes_per_s=" + std::to_string(pacing_rate_bytes_per_s()) +
           " target_bytes_per_s=" + std::to_string(ToPacingRate(target_)) +
           " alpha=" + std::to_string(alpha_) + " timer_steps=" + std::to_string(timer_steps_) +
           " byte_steps=" + std::to_string(byte_steps_) +
           " srtt_ns=" + std::to_string(round_trip_.srtt().count());
  }

 private:
  double Stretch() const { return std::max(1.0, round_trip_.srtt_s() / kCnpSeconds); }

  // Whole periods since `*start`, which moves on by them.
  static int64_t Elapse(Nanos now, Nanos period, Nanos* start) {
    if (now < *start) return 0;
    const int64_t periods = (now - *start) / period;
    *start += periods * period;
    return periods;
  }

  void AdvanceTimers(Nanos now) {
    if (silent_) return;
    if (!started_) {
      started_ = true;
      alpha_start_ = rate_start_ = now;
    }
    const double stretch = Stretch();
    const auto alpha_period = Nanos(static_cast<int64_t>(kAlphaTimerSeconds * 1e9 * stretch));
    const auto rate_period = Nanos(static_cast<int64_t>(kRateTimerSeconds * 1e9 * stretch));
    // Equation 2, once per period. Deviation: alpha stays at g or more, what one mark adds to it,
    // so that a mark after a long calm is still felt at once.
    const int64_t alpha_periods = Elapse(now, alpha_period, &alpha_start_);
    if (alpha_periods > 0)
      alpha_ = std::max(alpha_ * std::pow(1 - kG, static_cast<double>(alpha_periods)), kG);
    const int64_t steps = std::min(Elapse(now, rate_period, &rate_start_), kMaxStepsAtOnce);
    for (int64_t i = 0; i < steps; ++i) {
      timer_steps_ = std::min(timer_steps_ + 1, kMaxCount);
      Increase();
    }
  }

  // Equations 3 and 4, and figure 7.
  void Increase() {
    const int least = std::min(timer_steps_, byte_steps_),
              most = std::max(timer_steps_, byte_steps_);
    if (least > kFastRecoverySteps) {
      target_ += (least - kFastRecoverySteps) * kHyperOfAdd * add_rate_;
    } else if (most >= kFastRecoverySteps) {
      target_ += add_rate_;
    }
    target_ = limits_.ClampRate(target_);
    current_ = limits_.ClampRate((target_ + current_) / 2);
  }

  void Cut(Nanos now, double factor) {
    target_ = current_;
    current_ = limits_.ClampRate(current_ * factor);
    timer_steps_ = byte_steps_ = 0;
    sent_bytes_ = 0;
    alpha_start_ = rate_start_ = now;
  }

  void CutForLoss(Nanos now) {
    loss_gate_.OnReduction(now);
    initial_window_ = limits_.ClampWindow(initial_window_ / 2);
    Cut(now, 0.5);
  }

  const Limits limits_;
  RoundTrip round_trip_;
  OncePerRoundTrip loss_gate_;
  const double add_rate_;
  double current_, target_;               // Rc, Rt: bytes per second
  double alpha_ = 1;                      // estimate of congestion, section 3.1
  int timer_steps_ = 0, byte_steps_ = 0;  // T and BC
  double sent_bytes_ = 0;
  double initial_window_ = limits_.InitialWindow();  // until there is a round trip
  bool started_ = false;
  bool silent_ = false;  // since a timeout
  Nanos last_cnp_ = kNever, alpha_start_{0}, rate_start_{0};
};

}  // namespace

std::unique_ptr<CongestionController> MakeDcqcn(const CongestionParams& params) {
  return std::make_unique<Dcqcn>(params);
}

}  // namespace uccl::core
