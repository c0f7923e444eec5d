// The memory a process shares with the others of its host: a header with its doorbell, and a ring
// for what each of them sends to it.
//
// It is a memfd: it has no name in any file system, so nothing stays behind however a process ends;
// a peer opens it through /proc/<pid>/fd, which the kernel grants to processes of the same user.
// Its size is fixed when it is made and sealed, so a peer cannot cut it under a reader. Pages that
// nobody touches cost nothing, so there is a ring for every process that could come.
//
//   | header, 4096 bytes | slot 0: ring header, bytes | slot 1 | ...   a slot per writer
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "csrc/base/status.h"
#include "csrc/shm/ring.h"

namespace uccl::shm {

// Processes of one host that may meet; those beyond talk through the network backend.
inline constexpr uint32_t kMaxLocalProcesses = 256;

inline constexpr int32_t kNoCore = -1;

struct SegmentHeader {
  uint64_t magic = 0;
  uint64_t nonce = 0;  // of this segment, also in the address: proves that the right one was opened
  uint64_t ring_bytes = 0;
  uint32_t slots = 0;
  int64_t eager_buffer_bytes = 0;  // the owner keeps for each writer, before a receive is posted
  // The doorbell (doorbell.h), rung by all peers.
  alignas(64) std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleeping;  // kAwake, kAsleep or kAsleepButForUrgent
  // Where a thread of the owner polled last, as long as one polls; kNoCore else. Says nothing of
  // memory, only where there is room (PollScope::Yield). Beside the word that the owner writes then
  // as well.
  std::atomic<int32_t> polling_core;
  // Turns of the owner's thread, which a peer may ask for by ringing: whether it still runs.
  alignas(64) std::atomic<uint64_t> turns;
};

class Segment final {
 public:
  // `ring_bytes` is rounded up to a power of two.
  static Result<std::unique_ptr<Segment>> Make(size_t ring_bytes, int64_t eager_buffer_bytes,
                                               uint64_t nonce);
  // That of another process; only the header and slot `slot` are mapped. An error says what the
  // system refused.
  static Result<std::unique_ptr<Segment>> Open(int64_t pid, int fd, uint64_t nonce, uint32_t slot);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  SegmentHeader* header() const { return header_; }
  int fd() const { return fd_; }  // of the owner
  size_t ring_bytes() const { return ring_bytes_; }
  // Of an opened segment only the slot that it was opened for.
  RingHeader* ring(uint32_t slot) const;
  std::byte* data(uint32_t slot) const;
  uint32_t first_slot() const { return first_slot_; }

 private:
  Segment() = default;
  size_t SlotBytes() const;

  SegmentHeader* header_ = nullptr;
  std::byte* slots_ = nullptr;  // mapped slots, from first_slot_ on
  size_t slots_bytes_ = 0;
  uint32_t first_slot_ = 0;
  size_t ring_bytes_ = 0;
  int fd_ = -1;
};

}  // namespace uccl::shm
