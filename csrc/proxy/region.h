// Symmetric memory of one rank in one communicator: peers write it by offset, and counters beside
// it say what has landed.
//
// Every rank of the communicator registers a region of the same size under the same key, so an
// offset means the same everywhere. The counters are 64-bit words that only grow. They may lie in
// memory of the caller (pinned, so that a GPU polls them), as may the word `failed`, which turns 1
// when the region fails: whoever polls a counter looks at it, too.
//
// Order. A counter is raised with release after its data were written; who reads it with acquire
// sees them.
//
// Threads: any. The memory itself belongs to the users; proxies and engines write what peers put.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"

namespace uccl::proxy {

struct RegionOptions {
  uint64_t key = 0;  // of the communicator, equal on all its ranks and on no other region
  uint32_t rank = 0;
  std::vector<ProcessId> processes;  // that own the ranks, by rank
  MutableBytes memory;
  // Either `counters` and `failed`, zeroed, in memory that outlives the region, or only a number.
  size_t num_counters = 0;
  std::span<uint64_t> counters;
  uint64_t* failed = nullptr;
  // Whether the loss of a process that owns a rank is a failure of the region. Otherwise the layer
  // above decides: a process may leave because it has done its part.
  bool fail_on_lost_peer = true;
};

class Region final {
 public:
  static Result<std::shared_ptr<Region>> Make(RegionOptions options);

  uint64_t key() const { return options_.key; }
  uint32_t rank() const { return options_.rank; }
  uint32_t ranks() const { return static_cast<uint32_t>(options_.processes.size()); }
  ProcessId ProcessOf(uint32_t rank) const { return options_.processes[rank]; }
  MutableBytes memory() const { return options_.memory; }
  bool fails_on_lost_peer() const { return options_.fail_on_lost_peer; }
  std::span<const uint64_t> counters() const { return counters_; }
  const uint64_t* failed_word() const { return failed_; }

  uint64_t Read(uint32_t counter) const;
  // Until the counter has reached `threshold`; the region's failure, or kPeerTimeout after
  // `timeout` with what was reached. For threads that may block.
  Status Wait(uint32_t counter, uint64_t threshold, Nanos timeout);
  struct Threshold {
    uint32_t counter = 0;
    uint64_t value = 0;
  };
  // Likewise, until any of them has reached its value.
  Status WaitAny(std::span<const Threshold> thresholds, Nanos timeout);
  // Calls `fn` once: with Ok when the counter has reached `threshold`, or with the region's
  // failure. Now, or later on the thread that brings it about, where it must not block.
  void OnReached(uint32_t counter, uint64_t threshold, std::function<void(const Status&)> fn);

  // The first failure, or Ok.
  Status status() const;
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  // Everyone who waits gets it; the first one stays.
  void Fail(const Status& status);

  // By proxies; `counter` exists. Raise may be called with a lock held, WakeWaiters not: it runs
  // the callbacks. Add is both.
  void Raise(uint32_t counter, uint64_t amount);
  void WakeWaiters();
  void Add(uint32_t counter, uint64_t amount) {
    Raise(counter, amount);
    WakeWaiters();
  }

 private:
  explicit Region(RegionOptions options);
  struct Watch {
    uint32_t counter = 0;
    uint64_t threshold = 0;
    std::function<void(const Status&)> fn;
  };
  void Notify();

  const RegionOptions options_;
  std::vector<uint64_t> own_counters_;
  uint64_t own_failed_ = 0;
  std::span<uint64_t> counters_;
  uint64_t* failed_;

  std::atomic<bool> has_failed_{false};
  // Who waits, blocked or by a watch. A waiter counts itself, then looks at the counter; a proxy
  // raises the counter, then looks at this; both sequentially consistent, so one of them sees the
  // other.
  std::atomic<int> waiters_{0};
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<Watch> watches_;
  Status failure_;
};

}  // namespace uccl::proxy
