// Rows out of staging memory into slots of peers, each a command with its own count, and the number
// of rows to every peer. The kernel is send_rows_kernel.h; this header needs no CUDA.
#pragma once

#include <cstdint>

#include "csrc/cuda/stream.h"
#include "csrc/cuda/turn.h"
#include "csrc/fifo/slot.h"

namespace uccl::cuda {

// For i in [0, entries): staging row rows[i] goes to slot slots[i] of rank peers[i], whose counter
// `arrived` grows by one when it is there. An entry that is negative anywhere sends nothing. Then
// the counter `announced` of every rank, this one too, grows by one plus the number of rows that it
// gets: so every use is told of, also one without rows, and a receiver that knows the count before
// it knows the number (await_rows.h). The two counters are of no order.
struct SendRowsParams {
  fifo::FifoView fifo;
  const int32_t* rows = nullptr;  // null: i / width
  uint32_t width = 1;
  const int32_t* peers = nullptr;
  const int32_t* slots = nullptr;
  uint64_t entries = 0;
  uint32_t ranks = 0, rank = 0;  // of the communicator; this one
  // Where rows lie within the symmetric region, and how many there are.
  uint64_t staging_offset = 0, staging_rows = 0;
  uint64_t slots_offset = 0, num_slots = 0;
  uint64_t stride = 0, row_bytes = 0;   // bytes; a multiple of fifo::kGranuleBytes
  uint32_t arrived = 0, announced = 0;  // counters at the peers
  uint32_t row_channel = 0, count_channel = 1;
  // Lowered to the first entry that is beyond rows, ranks or slots, which sends nothing; or whose
  // command no FIFO takes. Null: not told. A FIFO that has stopped is no fault here: whoever waits
  // learns why from the region.
  uint64_t* fault = nullptr;
  // From offsets and counters, those of the first buffer, to the second one's; in bytes and
  // counters.
  Turn turn;
  uint64_t turn_bytes = 0;
  uint32_t turn_counters = 0;
};

// Those of the buffer whose turn it is.
UCCL_HOST_DEVICE inline SendRowsParams InTurn(SendRowsParams p) {
  const uint64_t buffer = p.turn.buffer();
  p.staging_offset += buffer * p.turn_bytes;
  p.slots_offset += buffer * p.turn_bytes;
  p.arrived += static_cast<uint32_t>(buffer) * p.turn_counters;
  p.announced += static_cast<uint32_t>(buffer) * p.turn_counters;
  p.turn = {};
  return p;
}

// kInvalidArgument where a kernel could not run with these; no memory is read.
Status CheckParams(const SendRowsParams& params);
// Puts the kernel on the stream: rows that the stream wrote to staging before are complete when the
// proxy takes their commands.
Status LaunchSendRows(const SendRowsParams& params, Stream stream);

}  // namespace uccl::cuda
