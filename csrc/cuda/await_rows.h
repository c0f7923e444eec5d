// Waiting, on the stream, for the rows that peers send with send_rows.h: how many come from each is
// not known before. The kernel is await_rows_kernel.h; this header needs no CUDA.
#pragma once

#include <cstdint>

#include "csrc/cuda/stream.h"
#include "csrc/cuda/turn.h"

namespace uccl::cuda {

// What `outcome` says when a peer announced more rows than it has slots; else it is *abort.
inline constexpr uint64_t kTooManyRows = uint64_t{1} << 32;

// Ends when all rows of one use are there from every rank, or when *abort is not 0.
struct AwaitRowsParams {
  const uint64_t* counters = nullptr;   // of the region
  uint32_t arrived = 0, announced = 0;  // the counters of rank 0; others follow
  uint32_t ranks = 0;
  uint64_t most = 0;  // rows that one rank may send
  // [2 * ranks]: the values of both counters behind the last use of these counters; zeroed before
  // the first one, kept by this kernel. Those of the second buffer follow.
  uint64_t* state = nullptr;
  uint32_t* counts = nullptr;  // [ranks]: rows from each
  // [ranks]: nanoseconds from the start of this kernel until the last row of each was there. Null:
  // not told. The largest also stands for more.
  uint32_t* waited = nullptr;
  // [ranks], pinned: 1 while rows of that rank are still to come, else 0; for others who look.
  // Null: not told.
  uint64_t* awaits = nullptr;
  // [order_rows]: where rank r fills slots r * most, ... in order, the slot of each row by rank and
  // number, then -1. Null: not wanted.
  int32_t* order = nullptr;
  uint64_t order_rows = 0;
  const uint64_t* abort = nullptr;  // as in wait.h
  uint64_t* outcome = nullptr;      // zeroed before
  Turn turn;
  uint32_t turn_counters = 0;  // from counters, those of the first buffer, to the second one's
};

// Those of the buffer whose turn it is.
UCCL_HOST_DEVICE inline AwaitRowsParams InTurn(AwaitRowsParams p) {
  const uint64_t buffer = p.turn.buffer();
  p.arrived += static_cast<uint32_t>(buffer) * p.turn_counters;
  p.announced += static_cast<uint32_t>(buffer) * p.turn_counters;
  p.state += buffer * 2 * p.ranks;
  p.turn = {};
  return p;
}

// kInvalidArgument where a kernel could not run with these; no memory is read.
Status CheckParams(const AwaitRowsParams& params);
// Puts the kernel on the stream: what follows sees the rows.
Status LaunchAwaitRows(const AwaitRowsParams& params, Stream stream);

}  // namespace uccl::cuda
