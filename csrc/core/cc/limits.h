// Bounds that every controller keeps, whatever its equations give: the window lets one packet go,
// no rate is zero for ever, and nothing overflows. Controllers compute in double and convert here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/core/cc/congestion_controller.h"

namespace uccl::core {

// 1.6 Tbit/s, beyond any NIC. With windows of at most 1 GiB all products stay far below 2^53, where
// double is exact.
inline constexpr double kMaxRate = 2e11;
// What a rate-based controller takes as its upper bound when nobody says: 100 Gbit/s.
inline constexpr double kAssumedLineRate = 12.5e9;
// The slowest a controller may go: one packet in this time. Thousands of senders into one port need
// less than a packet per round trip; fifty packets a second keep even such a sender informed of
// when it is over.
inline constexpr double kSlowestPacketSeconds = 0.02;
// RFC 6928 section 2: packets before anything is known.
inline constexpr double kInitialWindowPackets = 10;

struct Limits {
  explicit Limits(const CongestionParams& params)
      : mtu(static_cast<double>(std::max<int64_t>(params.mtu_bytes, 1))),
        max_window(static_cast<double>(std::max<int64_t>(params.window_bytes, 1))),
        min_window(std::min(mtu, max_window)),
        line_rate_known(params.line_rate_bytes_per_s > 0),
        max_rate(line_rate_known
                     ? std::min(static_cast<double>(params.line_rate_bytes_per_s), kMaxRate)
                     : kAssumedLineRate),
        min_rate(std::min(mtu / kSlowestPacketSeconds, max_rate)) {}

  double ClampWindow(double window) const { return std::clamp(window, min_window, max_window); }
  double ClampRate(double rate) const { return std::clamp(rate, min_rate, max_rate); }
  double InitialWindow() const { return ClampWindow(kInitialWindowPackets * mtu); }
  int64_t ToWindowBytes(double window) const { return static_cast<int64_t>(ClampWindow(window)); }
  // The window of a rate-based controller: rate times round trip, so that the rate holds also where
  // nobody paces, and a packet more, so that rounding does not hold back a paced sender.
  int64_t WindowOfRate(double rate, double srtt_s) const {
    return ToWindowBytes(rate * srtt_s + mtu);
  }
  // An ACK allows growth only if the window was used: at least half of it was in flight (the rule
  // of RFC 9438 section 5.8 needs a threshold; half tolerates bursts and pacing). The first packets
  // are exempt: a sender of small paced packets never fills even one.
  bool WindowInUse(const AckSample& sample, double window) const {
    if (sample.app_limited) return false;
    return window <= kInitialWindowPackets * mtu ||
           2 * static_cast<double>(sample.inflight_bytes + sample.acked_bytes) >= window;
  }

  double mtu, max_window, min_window;
  bool line_rate_known;
  double max_rate, min_rate;
};

// For pacing_rate_bytes_per_s(); never 0, which would mean unlimited.
inline int64_t ToPacingRate(double rate) {
  return static_cast<int64_t>(std::clamp(rate, 1.0, kMaxRate));
}

inline double ToSeconds(Nanos t) { return static_cast<double>(t.count()) * 1e-9; }

}  // namespace uccl::core
