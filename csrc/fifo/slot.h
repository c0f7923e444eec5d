// One slot of a FIFO, the words that both sides share, and how a reader knows that a slot is fresh.
//
// Slot n of all that were ever pushed lies at n % capacity and belongs to lap n / capacity. Its two
// words carry the phase of the lap: 1 in lap 0, 2, 4..., 0 in lap 1, 3, 5.... Memory starts zeroed,
// which is the phase of "lap -1". A producer writes slot n only when the consumer has published
// that it took slot n - capacity, so at any time a word holds either this lap's value or the one
// before it, and one bit tells the two apart. Each word has its own bit: whether the two become
// visible at once, or in which order, does not matter.
//
// The consumer never writes slots, so over PCIe they travel one way only.
#pragma once

#include <cstdint>

#include "csrc/fifo/command.h"
#include "csrc/fifo/host_device.h"

namespace uccl::fifo {

struct alignas(16) Slot {
  uint64_t word0 = 0, word1 = 0;
};
static_assert(sizeof(Slot) == 16);

// What a producer needs; plain, so that it is passed to kernels by value.
struct FifoView {
  Slot* slots = nullptr;              // pinned host memory, zeroed at the start
  const uint64_t* tail = nullptr;     // pinned host memory: slots taken, published by the consumer
  const uint64_t* stopped = nullptr;  // pinned host memory: not 0 once nobody takes slots any more
  uint64_t* head = nullptr;           // device memory: slots handed out to producers
  uint64_t* cached_tail = nullptr;    // device memory: a tail that some producer has seen
  uint64_t capacity = 0;              // any number from 1
};

// kPhaseBit or 0.
UCCL_HOST_DEVICE constexpr uint64_t PhaseOf(uint64_t slot, uint64_t capacity) {
  return slot / capacity % 2 == 0 ? kPhaseBit : 0;
}

// Reads slot number `index` into `words` (with its phase bits) if it is there. Acquire on both
// words: pairs with the release of each in Push, so what the producer wrote before the push is
// visible when both are fresh.
template <class Memory>
bool ReadSlot(Memory& memory, const Slot& slot, uint64_t phase, CommandWords* words) {
  const uint64_t word0 = memory.LoadAcquireSystem(&slot.word0);
  if ((word0 & kPhaseBit) != phase) return false;
  const uint64_t word1 = memory.LoadAcquireSystem(&slot.word1);
  if ((word1 & kPhaseBit) != phase) return false;
  words->word0 = word0;
  words->word1 = word1;
  return true;
}

}  // namespace uccl::fifo
