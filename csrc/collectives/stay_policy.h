// Whether the last rank to call an operation waits for its messages on its own thread.
//
// Where all processes call at about the same time, an operation over shared memory is over within
// microseconds: to wait that long where one is costs less than to sleep and be woken, and the
// result is there when the call returns. The wait is short and bounded, depends on no other thread
// of XLA's, and gives the core away whenever somebody wants it. Where peers come late it would only
// burn a thread of XLA's, so it is given up after a row of waits in vain, and tried again now and
// then.
#pragma once

#include <algorithm>
#include <atomic>

#include "csrc/base/types.h"

namespace uccl::coll {

class StayPolicy final {
 public:
  // Any thread. Relaxed throughout: a heuristic, in which a lost update does no harm.
  void set_limit(Nanos limit) { limit_.store(limit, std::memory_order_relaxed); }
  Nanos limit() const { return limit_.load(std::memory_order_relaxed); }

  bool Wants() {
    if (limit() <= Nanos(0)) return false;
    if (credit_.load(std::memory_order_relaxed) > 0) return true;
    return calls_.fetch_add(1, std::memory_order_relaxed) % kTryEvery == 0;
  }
  // The stay ended with the result, or in vain.
  void OnStay(bool completed) {
    const int credit = credit_.load(std::memory_order_relaxed);
    credit_.store(std::clamp(credit + (completed ? kEarned : -1), 0, kMaxCredit),
                  std::memory_order_relaxed);
  }

  static constexpr int kMaxCredit = 16;  // so many in vain in a row end it
  static constexpr int kEarned = 4;
  static constexpr unsigned kTryEvery = 16;

 private:
  std::atomic<Nanos> limit_{Nanos(0)};
  std::atomic<int> credit_{kMaxCredit};
  std::atomic<unsigned> calls_{0};
};

}  // namespace uccl::coll
