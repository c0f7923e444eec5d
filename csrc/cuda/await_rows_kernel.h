// The kernel of await_rows.h, for any group of threads; one group only. `clock()` gives
// nanoseconds.
#pragma once

#include "csrc/cuda/await_rows.h"
#include "csrc/cuda/clock.h"
#include "csrc/fifo/native_memory.h"
#include "csrc/fifo/thread_group.h"

namespace uccl::cuda {
namespace internal {

// One look at all ranks of a thread; true when nothing is left to wait for. A thread looks at its
// ranks in turn instead of waiting for one after the other, so that the time of each is its own.
//
// Acquire, system: pairs with the release with which the proxy raises the counter after the bytes
// of a row are in place, as in wait_kernel.h. Of `announced` the acquire orders nothing but itself.
template <class Clock>
struct RowsAreThere {
  static constexpr uint32_t kPending = ~uint32_t{0};

  const AwaitRowsParams& p;
  const Clock& clock;
  uint64_t started;
  uint32_t first, step;
  uint64_t& trouble;

  UCCL_HOST_DEVICE bool operator()() const {
    const fifo::NativeMemory memory;
    bool pending = false;
    for (uint32_t rank = first; rank < p.ranks; rank += step) {
      if (p.counts[rank] != kPending) continue;
      uint64_t& told = p.state[rank];
      uint64_t& seen = p.state[p.ranks + rank];
      // The peer tells of the next use of these counters only after this rank has told it of the
      // use between (moe/slot_exchange.h), so what is new belongs to this one.
      const uint64_t now = memory.LoadAcquireSystem(p.counters + p.announced + rank);
      const uint64_t rows = now - told - 1;
      const bool known = now != told;
      if (known && rows > p.most) {
        trouble = kTooManyRows;
        return true;
      }
      if (!known || memory.LoadAcquireSystem(p.counters + p.arrived + rank) < seen + rows) {
        pending = true;
        continue;
      }
      told = now;
      seen += rows;
      p.counts[rank] = static_cast<uint32_t>(rows);
      if (p.waited != nullptr) {
        p.waited[rank] = Ns32(clock() - started);
      }
      if (p.awaits != nullptr) memory.StoreReleaseSystem(p.awaits + rank, 0);
    }
    if (!pending) return true;
    trouble = memory.LoadAcquireSystem(p.abort);
    return trouble != 0;
  }
};

}  // namespace internal

template <class Group, class Clock>
UCCL_HOST_DEVICE void AwaitRows(Group& group, const AwaitRowsParams& given, const Clock& clock) {
  using There = internal::RowsAreThere<Clock>;
  const AwaitRowsParams p = InTurn(given);
  fifo::NativeMemory memory;
  const uint32_t first = group.rank(), step = group.size();
  for (uint32_t rank = first; rank < p.ranks; rank += step) {
    p.counts[rank] = There::kPending;
    // Release, system, as below: nothing hangs on it, it only tells how far this is.
    if (p.awaits != nullptr) memory.StoreReleaseSystem(p.awaits + rank, 1);
  }
  uint64_t trouble = 0;
  memory.WaitUntil(There{p, clock, clock(), first, step, trouble});
  for (uint32_t rank = first; rank < p.ranks; rank += step) {
    if (p.counts[rank] == There::kPending) p.counts[rank] = 0;
  }
  // Whichever thread stores last; one reason is as good as the other. Release, system, so that the
  // host may look at the word at any time; nothing hangs on it.
  if (trouble != 0) memory.StoreReleaseSystem(p.outcome, trouble);
  group.Sync();  // all counts are known, and what the acquires made visible is so to all threads
  if (p.order == nullptr) return;
  for (uint64_t n = first; n < p.order_rows; n += step) {
    uint64_t before = 0;
    int32_t slot = -1;
    for (uint32_t rank = 0; rank < p.ranks && slot < 0; ++rank) {
      if (n - before < p.counts[rank]) slot = static_cast<int32_t>(rank * p.most + n - before);
      before += p.counts[rank];
    }
    p.order[n] = slot;
  }
}

}  // namespace uccl::cuda
