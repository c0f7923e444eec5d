// Waiting, on the stream, for the rows that peers send with send_rows.h: how many come from each is
// not known before. The kernel is await_rows_kernel.h; this header needs no CUDA.
#pragma once

#include <cstdint>

#include "csrc/cuda/stream.h"

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
  // the first one, kept by this kernel.
  uint64_t* state = nullptr;
  uint32_t* counts = nullptr;  // [ranks]: rows from each
  // [ranks]: nanoseconds from the start of this kernel until the last row of each was there. Null:
  // not told.
  uint64_t* waited = nullptr;
  // [order_rows]: where rank r fills slots r * most, ... in order, the slot of each row by rank and
  // number, then -1. Null: not wanted.
  int32_t* order = nullptr;
  uint64_t order_rows = 0;
  const uint64_t* abort = nullptr;  // as in wait.h
  uint64_t* outcome = nullptr;      // zeroed before
};

// kInvalidArgument where a kernel could not run with these; no memory is read.
Status CheckParams(const AwaitRowsParams& params);
// Puts the kernel on the stream: what follows sees the rows.
Status LaunchAwaitRows(const AwaitRowsParams& params, Stream stream);

}  // namespace uccl::cuda
