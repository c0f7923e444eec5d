// Whether an idle engine polls on or sleeps. Polling pays where the next work comes soon: it saves
// a sleep and a wake-up, some 10 us each way. Where waits are long it only burns a processor, so
// the engine learns from the waits it has seen. Pure; time is an argument.
#pragma once

#include <algorithm>

#include "csrc/base/types.h"

namespace uccl {

class SpinPolicy final {
 public:
  // Polls for at most `limit` after the last work.
  explicit SpinPolicy(Nanos limit) : limit_(limit) {}

  // A turn found nothing to do: true to poll on, false to sleep.
  bool OnIdle(Nanos now) {
    idle_ = true;
    return credit_ > 0 && now - last_work_ < limit_ && now >= crowded_until_;
  }
  // The core was offered to others while polling, and came back after `took`. One who keeps it for
  // long waits for nobody: polling beside him waits out his time slices, while a sleeper preempts
  // him as soon as work is there.
  void OnYield(Nanos now, Nanos took) {
    if (took >= kLongYield) crowded_until_ = now + kCrowdedTime;
  }
  // A turn did something, after polling or after a sleep.
  void OnWork(Nanos now) {
    if (idle_) {
      // A wait that polling covers (or would have covered) earns more than one that it does not
      // costs: bursts with pauses between them are polled through, and the first short wait after a
      // quiet time already counts.
      const bool short_wait = now - last_work_ < limit_;
      credit_ = std::clamp(credit_ + (short_wait ? kEarned : -1), 0, kMaxCredit);
    }
    idle_ = false;
    last_work_ = now;
  }

  static constexpr Nanos kLongYield = FromMicros(500);
  // Between tries: a slice lost now and then does not show.
  static constexpr Nanos kCrowdedTime = FromMillis(100);
  static constexpr int kMaxCredit = 16;  // as many long waits in a row end the polling
  static constexpr int kEarned = 4;

 private:
  const Nanos limit_;
  int credit_ = kMaxCredit;
  bool idle_ = false;  // since the last work
  Nanos last_work_{}, crowded_until_{};
};

}  // namespace uccl
