// Counters, waits and failure of a region. See region.h.
#include "csrc/proxy/region.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "csrc/fifo/command.h"

namespace uccl::proxy {
namespace {

Status Invalid(const std::string& what) {
  return Status::Error(StatusCode::kInvalidArgument, "region: " + what);
}

}  // namespace

Result<std::shared_ptr<Region>> Region::Make(RegionOptions options) {
  const size_t ranks = options.processes.size();
  if (options.rank >= ranks || ranks - 1 > fifo::kMaxPeer) {
    return Invalid("rank " + std::to_string(options.rank) + " of " + std::to_string(ranks) +
                   "; ranks are 0 to one less than their number, which is at most " +
                   std::to_string(fifo::kMaxPeer + 1));
  }
  const auto address = reinterpret_cast<uintptr_t>(options.memory.data());
  if (address % fifo::kGranuleBytes != 0) {
    return Invalid("its memory must be aligned to " + std::to_string(fifo::kGranuleBytes) +
                   " bytes");
  }
  if (options.memory.size() > fifo::kMaxOffset + fifo::kGranuleBytes) {
    return Invalid(std::to_string(options.memory.size()) + " bytes; commands address at most " +
                   std::to_string(fifo::kMaxOffset + fifo::kGranuleBytes));
  }
  if (options.counters.empty() != (options.failed == nullptr)) {
    return Invalid("counters and the word `failed` lie both with the caller or neither");
  }
  const size_t counters = options.counters.empty() ? options.num_counters : options.counters.size();
  if (counters < 1 || counters - 1 > fifo::kMaxCounter) {
    return Invalid(std::to_string(counters) + " counters; it takes 1 to " +
                   std::to_string(uint64_t{fifo::kMaxCounter} + 1));
  }
  return std::shared_ptr<Region>(new Region(std::move(options)));
}

Region::Region(RegionOptions options)
    : options_(std::move(options)),
      own_counters_(options_.counters.empty() ? options_.num_counters : 0),
      counters_(options_.counters.empty() ? std::span<uint64_t>(own_counters_) : options_.counters),
      failed_(options_.failed == nullptr ? &own_failed_ : options_.failed) {}

uint64_t Region::Read(uint32_t counter) const {
  // Acquire: pairs with the release in Raise, so the data counted are visible.
  return std::atomic_ref(counters_[counter]).load(std::memory_order_acquire);
}

void Region::Raise(uint32_t counter, uint64_t amount) {
  // Release: what landed before happens before a read that sees the sum. seq_cst, because the look
  // at waiters_ must come after; see there.
  std::atomic_ref(counters_[counter]).fetch_add(amount, std::memory_order_seq_cst);
}

void Region::WakeWaiters() {
  if (waiters_.load(std::memory_order_seq_cst) > 0) Notify();
}

void Region::Notify() {
  std::vector<Watch> due;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(watches_, [&](Watch& watch) {
      if (Read(watch.counter) < watch.threshold) return false;
      due.push_back(std::move(watch));
      return true;
    });
  }
  changed_.notify_all();
  waiters_.fetch_sub(static_cast<int>(due.size()), std::memory_order_seq_cst);
  for (const Watch& watch : due) watch.fn(Status::Ok());
}

Status Region::Wait(uint32_t counter, uint64_t threshold, Nanos timeout) {
  const Threshold one{counter, threshold};
  return WaitAny({&one, 1}, timeout);
}

Status Region::WaitAny(std::span<const Threshold> thresholds, Nanos timeout) {
  for (const Threshold& t : thresholds) {
    if (t.counter >= counters_.size()) {
      return Invalid("there is no counter " + std::to_string(t.counter) + "; it has " +
                     std::to_string(counters_.size()));
    }
  }
  const auto reached = [&] {
    return std::ranges::any_of(thresholds, [&](const Threshold& t) {
      return std::atomic_ref(counters_[t.counter]).load(std::memory_order_seq_cst) >= t.value;
    });
  };
  if (reached()) return Status::Ok();
  const auto start = std::chrono::steady_clock::now();
  // Far enough for "no limit", near enough not to overflow.
  const auto deadline = start + std::min<Nanos>(timeout, std::chrono::hours(24 * 365));
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  Status status;
  {
    std::unique_lock lock(mutex_);
    const bool over = changed_.wait_until(
        lock, deadline, [&] { return has_failed_.load(std::memory_order_relaxed) || reached(); });
    if (reached()) {
      status = Status::Ok();
    } else if (over) {
      status = failure_;
    } else {
      std::string text;
      for (const Threshold& t : thresholds) {
        text += (text.empty() ? "counter " : ", counter ") + std::to_string(t.counter) +
                " has reached " + std::to_string(Read(t.counter)) + " of " +
                std::to_string(t.value);
      }
      status = Status::Error(StatusCode::kPeerTimeout, text);
      status.elapsed = std::chrono::steady_clock::now() - start;
    }
  }
  waiters_.fetch_sub(1, std::memory_order_seq_cst);
  return status;
}

void Region::OnReached(uint32_t counter, uint64_t threshold,
                       std::function<void(const Status&)> fn) {
  if (counter >= counters_.size()) {
    return fn(Invalid("there is no counter " + std::to_string(counter)));
  }
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  bool failed = false;
  {
    std::lock_guard lock(mutex_);
    failed = has_failed_.load(std::memory_order_relaxed);
    if (!failed) watches_.push_back({counter, threshold, fn});
  }
  if (failed) {
    waiters_.fetch_sub(1, std::memory_order_seq_cst);
    return fn(Read(counter) >= threshold ? Status::Ok() : status());
  }
  // It may have been reached before the watch was there.
  if (std::atomic_ref(counters_[counter]).load(std::memory_order_seq_cst) >= threshold) Notify();
}

Status Region::status() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void Region::Fail(const Status& status) {
  std::vector<Watch> watches;
  {
    std::lock_guard lock(mutex_);
    if (has_failed_.load(std::memory_order_relaxed)) return;
    failure_ = status;
    watches.swap(watches_);
    has_failed_.store(true, std::memory_order_release);
    // Release: who polls it sees all that was counted before.
    std::atomic_ref(*failed_).store(1, std::memory_order_release);
  }
  changed_.notify_all();
  waiters_.fetch_sub(static_cast<int>(watches.size()), std::memory_order_seq_cst);
  for (const Watch& watch : watches) {
    watch.fn(Read(watch.counter) >= watch.threshold ? Status::Ok() : status);
  }
}

}  // namespace uccl::proxy
