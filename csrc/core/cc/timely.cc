// TIMELY: "TIMELY: RTT-based Congestion Control for the Datacenter", Mittal et al., SIGCOMM'15,
// section 4, algorithm 1. Between T_low and T_high the patched form: "ECN or Delay: Lessons Learnt
// from Analysis of DCQCN and TIMELY", Zhu et al., CoNEXT'16, section 4 ("patched TIMELY"). As first
// published any split of the rate among flows is a fixed point once the gradient is zero; the patch
// makes the distance from a reference delay count as well, which leaves only the fair one.
//
//   rtt:   ......... T_low ......................... T_high .........
//   rate:  + N delta   |  + N delta (1-w), * (1 - b w e)  |  * (1 - beta (1 - T_high/rtt))
//
// Deviation: rate-based senders count on a hardware pacer; the window here is rate times round
// trip, so that the rate holds without one. Deviation: TIMELY presumes a network without loss. Here
// a loss or a timeout halves the rate, once per round trip.
#include "csrc/core/cc/timely.h"

#include "csrc/core/cc/limits.h"
#include "csrc/core/cc/round_trip.h"

namespace uccl::core {
namespace {

constexpr double kEwma = 0.875;  // alpha: weight of the newest difference; the value of CoNEXT'16
constexpr double kBeta = 0.8;    // decrease above T_high, section 4.3
constexpr double kPatchedBeta = 0.008;  // decrease in the gradient region, CoNEXT'16 section 4
// T_low = 50 us and T_high = 500 us (sections 4.3 and 4.4) in a network of at least 20 us.
// Deviation: they are counted from the base RTT, and stretched with a long one, whose jitter grows
// with it; else every sample of a longer network would lie above them.
constexpr double kLowAboveBaseSeconds = 30e-6;
constexpr double kLowAboveBase = 0.5;    // of the base RTT
constexpr double kHighOfLow = 16;        // above the base: 480 us to 30 us
constexpr double kAddRate = 10e6 / 8;    // delta = 10 Mbit/s, on links of 10 Gbit/s
constexpr double kAddOfLineRate = 1e-3;  // the same relation for a link whose rate is known
constexpr int kHaiEvents = 5;            // section 4.3: after so many events without congestion ...
constexpr double kHaiSteps = 5;          // ... N = 5 steps at once, hyperactive increase
constexpr double kOnLoss = 0.5;

class Timely final : public CongestionController {
 public:
  explicit Timely(const CongestionParams& params)
      : limits_(params),
        round_trip_(params),
        low_above_base_s_(params.queue_budget > Nanos(0) ? ToSeconds(params.queue_budget)
                                                         : kLowAboveBaseSeconds),
        delta_(limits_.line_rate_known ? kAddOfLineRate * limits_.max_rate : kAddRate) {}

  void OnSent(Nanos, int64_t) override {}

  void OnAck(const AckSample& sample) override {
    if (!round_trip_.OnAck(sample)) return;
    const double rtt_s = ToSeconds(sample.delay()), base_s = ToSeconds(round_trip_.base());
    const double margin_s = std::max(low_above_base_s_, kLowAboveBase * base_s);
    const double low_s = base_s + margin_s, high_s = base_s + kHighOfLow * margin_s;
    if (rate_ == 0) {
      // Deviation: the paper starts a flow at the line rate divided by the flows of the host, which
      // a connection does not know. It starts with the usual initial window per round trip and
      // doubles until the first sample above T_low, or a loss.
      rate_ = limits_.ClampRate(limits_.InitialWindow() / rtt_s);
      starting_ = starting_ && rtt_s < low_s;
      prev_rtt_s_ = rtt_s;
      last_update_ = sample.now;
      return;
    }
    if (round_trip_.Draining()) {  // what it shows is not what the rate causes
      prev_rtt_s_ = rtt_s;
      return;
    }
    // Deviation: the paper updates at each completed segment of 16 to 64 KB; packets are smaller,
    // so the round trip is the clock (CoNEXT'16 takes it for the shortest interval, too).
    if (sample.now - last_update_ < round_trip_.base()) return;
    last_update_ = sample.now;

    gradient_ = (1 - kEwma) * gradient_ + kEwma * (rtt_s - prev_rtt_s_) / base_s;
    prev_rtt_s_ = rtt_s;
    const double weight = Weight(gradient_);
    calm_events_ = rtt_s < low_s || (rtt_s <= high_s && weight == 0) ? calm_events_ + 1 : 0;
    // Deviation: hyperactive increase also below T_low, where the paper adds single steps; an idle
    // network is the plainest case of what it is for.
    const double step = (calm_events_ >= kHaiEvents ? kHaiSteps : 1) * delta_;
    starting_ = starting_ && rtt_s < low_s;
    if (starting_) {
      if (limits_.WindowInUse(sample, static_cast<double>(window_bytes())))
        rate_ *= 1 + base_s / rtt_s;
    } else if (rtt_s < low_s) {
      rate_ += step;
    } else if (rtt_s > high_s) {
      // Deviation: once per round trip. The delay is ten times the update interval by now, and each
      // further sample would answer the same queue.
      if (gate_.IsNews(sample.now, kNever, sample.rtt)) {
        gate_.OnReduction(sample.now);
        rate_ *= 1 - kBeta * (1 - high_s / rtt_s);
      }
    } else {
      const double error = (rtt_s - low_s) / low_s;  // e; the reference delay is T_low
      rate_ = step * (1 - weight) + rate_ * (1 - kPatchedBeta * weight * error);
    }
    rate_ = limits_.ClampRate(rate_);
  }

  void OnLoss(const LossSample& sample) override {
    if (!gate_.IsNews(sample.now, sample.sent, round_trip_.srtt())) return;
    Halve(sample.now);
  }
  // Delay is the signal; a marking queue shows in it.
  void OnEcn(const AckSample&) override {}
  void OnTimeout(Nanos now) override { Halve(now); }

  int64_t window_bytes() const override {
    if (rate_ == 0) return limits_.ToWindowBytes(initial_window_);
    const int64_t window = limits_.WindowOfRate(rate_, round_trip_.srtt_s());
    if (!round_trip_.Draining()) return window;
    return std::min(window, limits_.ToWindowBytes(RoundTrip::kDrainWindowPackets * limits_.mtu));
  }
  int64_t pacing_rate_bytes_per_s() const override { return rate_ == 0 ? 0 : ToPacingRate(rate_); }
  std::string Snapshot() const override {
    return "rate_bytes_per_s=" + std::to_string(pacing_rate_bytes_per_s()) +
           " gradient=" + std::to_string(gradient_) +
           " calm_events=" + std::to_string(calm_events_) +
           " base_rtt_ns=" + std::to_string(round_trip_.base().count()) +
           " srtt_ns=" + std::to_string(round_trip_.srtt().count());
  }

 private:
  // w(g), CoNEXT'16 section 4: 0 up to -1/4, 1 from 1/4, linear between.
  static double Weight(double gradient) { return std::clamp(2 * gradient + 0.5, 0.0, 1.0); }

  void Halve(Nanos now) {
    gate_.OnReduction(now);
    calm_events_ = 0;
    starting_ = false;
    if (rate_ == 0) {  // nothing was ever acknowledged
      initial_window_ = limits_.ClampWindow(initial_window_ * kOnLoss);
    } else {
      rate_ = limits_.ClampRate(rate_ * kOnLoss);
    }
  }

  const Limits limits_;
  RoundTrip round_trip_;
  OncePerRoundTrip gate_;
  const double low_above_base_s_;
  const double delta_;
  double initial_window_ = limits_.InitialWindow();  // until there is a rate
  double rate_ = 0;                                  // bytes per second; 0 before the first sample
  double gradient_ = 0;  // smoothed difference of successive samples over the base RTT
  double prev_rtt_s_ = 0;
  int calm_events_ = 0;
  bool starting_ = true;
  Nanos last_update_{0};
};

}  // namespace

std::unique_ptr<CongestionController> MakeTimely(const CongestionParams& params) {
  return std::make_unique<Timely>(params);
}

}  // namespace uccl::core
