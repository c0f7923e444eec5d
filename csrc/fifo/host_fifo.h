// The consumer's side of a FIFO, and the memory of one whose producers are host threads.
//
// One thread at a time consumes. It copies a batch of commands out, so that their slots are free
// again before the commands are carried out, and publishes the tail once per quarter of the
// capacity: each publication costs the producers a cache miss, or a read over PCIe.
//
// No publication is ever missing: a producer waits only when `capacity` slots are handed out beyond
// the published tail; the consumer then takes all of them, and passes a quarter on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "csrc/base/status.h"
#include "csrc/fifo/command.h"
#include "csrc/fifo/native_memory.h"
#include "csrc/fifo/slot.h"

namespace uccl::fifo {

// The words that the consumer writes and producers read; in pinned host memory where the producers
// are on a GPU. On lines of their own: the tail changes often, the flag once.
struct FifoControl {
  alignas(64) uint64_t tail = 0;
  alignas(64) uint64_t stopped = 0;
};

template <class Memory>
class BasicFifoConsumer final {
 public:
  // `slots` must be zeroed and `control` fresh.
  BasicFifoConsumer(std::span<const Slot> slots, FifoControl* control, Memory memory = {})
      : slots_(slots), control_(control), memory_(memory) {}

  // Copies up to `out.size()` commands, phase bits included; how many.
  size_t Poll(std::span<CommandWords> out) {
    size_t count = 0;
    while (count < out.size() && ReadSlot(memory_, slots_[place_], phase_, &out[count])) {
      ++count;
      if (++place_ == slots_.size()) {
        place_ = 0;
        phase_ ^= kPhaseBit;
      }
    }
    taken_ += count;
    if (taken_ - published_ >= (slots_.size() + 3) / 4) {
      published_ = taken_;
      // Release: the reads above happen before a producer writes these slots again.
      memory_.StoreReleaseSystem(&control_->tail, taken_);
    }
    return count;
  }

  // Producers that find the FIFO full give up from now on.
  void Stop() { memory_.StoreReleaseSystem(&control_->stopped, 1); }

  uint64_t taken() const { return taken_; }  // commands so far

 private:
  const std::span<const Slot> slots_;
  FifoControl* const control_;
  Memory memory_;
  size_t place_ = 0;
  uint64_t phase_ = kPhaseBit;  // of the lap that place_ is in
  uint64_t taken_ = 0, published_ = 0;
};

using FifoConsumer = BasicFifoConsumer<NativeMemory>;

// A FIFO in ordinary memory, for producers on host threads.
class HostFifo final {
 public:
  static constexpr size_t kMaxCapacity = size_t{1} << 24;

  // kInvalidArgument unless 1 <= capacity <= kMaxCapacity.
  static Result<std::unique_ptr<HostFifo>> Make(size_t capacity);
  HostFifo(const HostFifo&) = delete;
  HostFifo& operator=(const HostFifo&) = delete;

  FifoView view();
  std::span<const Slot> slots() const { return {slots_.get(), capacity_}; }
  FifoControl* control() { return &control_; }

 private:
  explicit HostFifo(size_t capacity);

  const size_t capacity_;
  const std::unique_ptr<Slot[]> slots_;
  FifoControl control_;
  // The producers' words. The head changes with every push, the cached tail seldom.
  alignas(64) uint64_t head_ = 0;
  alignas(64) uint64_t cached_tail_ = 0;
};

}  // namespace uccl::fifo
