// The futex calls of doorbell.h.
#include "csrc/shm/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace uccl::shm {
namespace {

uint32_t* Word(SegmentHeader* header) {
  // The kernel looks at the bytes of the atomic, which is lock-free and so holds nothing else.
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  return reinterpret_cast<uint32_t*>(&header->bell);
}

}  // namespace

void RingBell(SegmentHeader* header) {
  header->bell.fetch_add(1, std::memory_order_seq_cst);
  // Not FUTEX_PRIVATE: the sleeper has the word at another address in another process. An error
  // could only say that nobody waits.
  (void)syscall(SYS_futex, Word(header), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void RingIfAsleep(SegmentHeader* header, bool urgent) {
  // Between the publication before this call (a release store) and the look below; see the head of
  // the header.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t sleeping = header->sleeping.load(std::memory_order_seq_cst);
  if (sleeping == kAwake || (sleeping == kAsleepButForUrgent && !urgent)) return;
  // One of several who see it asleep rings for all.
  if (header->sleeping.exchange(kAwake, std::memory_order_seq_cst) != kAwake) RingBell(header);
}

void WaitForBell(SegmentHeader* header, uint32_t seen, Nanos timeout) {
  timespec limit{};
  timespec* wait = nullptr;
  if (timeout != kNever) {
    limit.tv_sec = static_cast<time_t>(timeout.count() / 1'000'000'000);
    limit.tv_nsec = static_cast<long>(timeout.count() % 1'000'000'000);
    wait = &limit;
  }
  // Comes back at once when the bell has rung since `seen` was read.
  (void)syscall(SYS_futex, Word(header), FUTEX_WAIT, seen, wait, nullptr, 0);
}

}  // namespace uccl::shm
