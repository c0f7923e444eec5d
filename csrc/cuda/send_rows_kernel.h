// The kernel of send_rows.h, for any group of threads. No barrier: commands need no order.
#pragma once

#include "csrc/cuda/memory.h"
#include "csrc/cuda/send_rows.h"
#include "csrc/fifo/fifo_device.h"
#include "csrc/fifo/thread_group.h"

namespace uccl::cuda {
namespace internal {

enum class Entry : uint8_t { kNothing, kRow, kOutside };

UCCL_HOST_DEVICE inline Entry EntryOf(const SendRowsParams& p, uint64_t i, uint64_t* row) {
  const int64_t from = p.rows == nullptr ? static_cast<int64_t>(i / p.width) : p.rows[i];
  const int32_t peer = p.peers[i], slot = p.slots[i];
  if (from < 0 || peer < 0 || slot < 0) return Entry::kNothing;
  *row = static_cast<uint64_t>(from);
  const bool inside = *row < p.staging_rows && static_cast<uint32_t>(peer) < p.ranks &&
                      static_cast<uint64_t>(slot) < p.num_slots;
  return inside ? Entry::kRow : Entry::kOutside;
}

}  // namespace internal

template <class Group>
UCCL_HOST_DEVICE void SendRows(Group& group, const SendRowsParams& given) {
  const SendRowsParams p = InTurn(given);
  const uint64_t threads = uint64_t{group.count()} * group.size();
  const uint64_t me = uint64_t{group.index()} * group.size() + group.rank();
  uint64_t row = 0;
  for (uint64_t i = me; i < p.entries; i += threads) {
    const internal::Entry entry = internal::EntryOf(p, i, &row);
    if (entry == internal::Entry::kNothing) continue;
    fifo::PushOutcome outcome = fifo::PushOutcome::kRefused;
    if (entry == internal::Entry::kRow) {
      fifo::Command command;
      command.peer = static_cast<uint32_t>(p.peers[i]);
      command.channel = p.row_channel;
      command.bytes = p.row_bytes;
      command.source_offset = p.staging_offset + row * p.stride;
      command.destination_offset = p.slots_offset + static_cast<uint64_t>(p.slots[i]) * p.stride;
      command.counter = p.arrived;
      command.amount = 1;
      outcome = fifo::PushWriteCount(p.fifo, command);
    }
    if (outcome == fifo::PushOutcome::kRefused && p.fault != nullptr) AtomicMin(p.fault, i);
  }
  // Each rank begins with its right neighbour, so that not all tell the same one first.
  for (uint64_t n = me; n < p.ranks; n += threads) {
    const auto peer = static_cast<uint32_t>((n + p.rank + 1) % p.ranks);
    uint32_t count = 0;
    for (uint64_t i = 0; i < p.entries; ++i) {
      if (p.peers[i] == static_cast<int32_t>(peer) &&
          internal::EntryOf(p, i, &row) == internal::Entry::kRow) {
        ++count;
      }
    }
    fifo::Command command;
    command.kind = fifo::CommandKind::kCount;
    command.peer = peer;
    command.channel = p.count_channel;
    command.counter = p.announced;
    command.amount = count + 1;
    if (fifo::Push(p.fifo, command) == fifo::PushOutcome::kRefused && p.fault != nullptr) {
      AtomicMin(p.fault, p.entries);
    }
  }
}

}  // namespace uccl::cuda
