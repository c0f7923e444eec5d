// Sleeping until another process has something for this one: a futex in the sleeper's segment.
//
// The sleeper says that it sleeps, looks once more whether there is work, and waits. Whoever brings
// work publishes it, then looks whether the other sleeps, and rings. With sequentially consistent
// accesses on both sides one of the two looks always sees the other's word, so no ring is missed;
// and a receiver that polls costs the sender no system call.
#pragma once

#include <atomic>
#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/shm/segment.h"

namespace uccl::shm {

// Values of SegmentHeader::sleeping.
inline constexpr uint32_t kAwake = 0, kAsleep = 1;
inline constexpr uint32_t kAsleepButForUrgent = 2;  // waits for nothing: only the urgent wakes it

// After publishing something for the owner of the segment. Rings if it sleeps. `urgent`: something
// of it must be read soon also by who waits for nothing.
void RingIfAsleep(SegmentHeader* header, bool urgent);
// Rings in any case.
void RingBell(SegmentHeader* header);

// The owner's side.
inline uint32_t BellValue(const SegmentHeader& header) {
  return header.bell.load(std::memory_order_seq_cst);
}
// Until the bell has another value than `seen`, or `timeout` passed; may come back early.
void WaitForBell(SegmentHeader* header, uint32_t seen, Nanos timeout);

}  // namespace uccl::shm
