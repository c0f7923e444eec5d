// The producers' side of a FIFO: the same source in CUDA kernels and on host threads.
//
// Any number of threads push at once. A push takes a number from the head (fetch-add), waits until
// the consumer has published that the slot's previous command was taken, and stores the command
// with release. Commands of one thread keep their order; the consumer takes all in the order of
// their numbers.
//
// Memory order, by pair:
//   store of the slot (release, system)  ->  ReadSlot (acquire): what the pushing thread wrote, or
//       learned of through its group's Sync, before the push is visible to the proxy. It is the one
//       fence that a push costs on a GPU.
//   tail (release, by the consumer)      ->  tail (acquire, system): the consumer's reads of a slot
//       happen before the store that takes it again.
//   cached_tail (release, device)        ->  cached_tail (acquire, device): the same when another
//       producer has read the tail for us. The tail itself lies across PCIe, so it is read only
//       when the cached one says "full".
//   head (relaxed): a number that nobody else gets; nothing hangs on it.
#pragma once

#include <cstdint>

#include "csrc/fifo/command.h"
#include "csrc/fifo/host_device.h"
#include "csrc/fifo/native_memory.h"
#include "csrc/fifo/slot.h"

namespace uccl::fifo {

// Whether `slot` may be written; also true when the FIFO has stopped, which `stopped` then says.
template <class Memory>
struct RoomFor {
  Memory& memory;
  const FifoView& fifo;
  uint64_t slot;
  bool& stopped;

  UCCL_HOST_DEVICE bool operator()() const {
    // No underflow: a tail counts commands that were taken, and that of `slot` is not there yet. A
    // cached tail that is too old errs on the safe side.
    const uint64_t cached = memory.LoadAcquireDevice(fifo.cached_tail);
    if (slot - cached < fifo.capacity) return true;
    const uint64_t tail = memory.LoadAcquireSystem(fifo.tail);
    // Should another producer have stored a newer one meanwhile, the next push reads again.
    if (tail != cached) memory.StoreReleaseDevice(fifo.cached_tail, tail);
    if (slot - tail < fifo.capacity) return true;
    stopped = memory.LoadAcquireSystem(fifo.stopped) != 0;
    return stopped;
  }
};

// Writes one command; waits while the FIFO is full. False, with nothing written, when the consumer
// has stopped: a failure that whoever waits for completion learns from the region. `words` comes
// from EncodeCommand.
template <class Memory>
UCCL_HOST_DEVICE bool PushWords(Memory& memory, const FifoView& fifo, const CommandWords& words) {
  const uint64_t slot = memory.FetchAddDevice(fifo.head, 1);
  bool stopped = false;
  memory.WaitUntil(RoomFor<Memory>{memory, fifo, slot, stopped});
  if (stopped) return false;
  const uint64_t phase = PhaseOf(slot, fifo.capacity);
  Slot* const to = fifo.slots + slot % fifo.capacity;
  memory.StorePairReleaseSystem(&to->word0, words.word0 | phase, words.word1 | phase);
  return true;
}

enum class PushOutcome : uint8_t {
  kPushed = 0,
  kStopped,  // nobody takes commands any more
  kRefused,  // CheckCommand finds a fault, nothing was pushed
};

UCCL_HOST_DEVICE inline PushOutcome Push(const FifoView& fifo, const Command& command) {
  CommandWords words;
  if (EncodeCommand(command, &words) != CommandFault::kNone) return PushOutcome::kRefused;
  NativeMemory memory;
  return PushWords(memory, fifo, words) ? PushOutcome::kPushed : PushOutcome::kStopped;
}

// A write whose landing adds `amount` to the peer's counter, of any size that a write may have: one
// command where the fields of write_count suffice, else a write and a count after it (which then
// also waits for the channel's earlier writes to this peer).
UCCL_HOST_DEVICE inline PushOutcome PushWriteCount(const FifoView& fifo, Command command) {
  command.kind = CommandKind::kWriteCount;
  if (CheckCommand(command) == CommandFault::kNone) return Push(fifo, command);
  Command count;
  count.kind = CommandKind::kCount;
  count.peer = command.peer;
  count.channel = command.channel;
  count.counter = command.counter;
  count.amount = command.amount;
  command.kind = CommandKind::kWrite;
  command.counter = command.amount = 0;
  // Both or none: a write without its count would never be waited for.
  if (CheckCommand(count) != CommandFault::kNone) return PushOutcome::kRefused;
  const PushOutcome outcome = Push(fifo, command);
  return outcome == PushOutcome::kPushed ? Push(fifo, count) : outcome;
}

}  // namespace uccl::fifo
