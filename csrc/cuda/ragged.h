// Messages whose places and sizes are data of the device: what goes to and comes from each rank of
// a ragged exchange, filled into the tables of exchange.h. The kernel is ragged_kernel.h; this
// header needs no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/cuda/exchange.h"
#include "csrc/cuda/stream.h"

namespace uccl::cuda {

// For each rank r: rows [send_offsets[r], + send_sizes[r]) of `from` are message r, and rows
// [receive_offsets[r], + receive_sizes[r]) of `to` are message ranks + r. One that does not lie
// within its rows becomes a message of no bytes.
struct RaggedParams {
  const int32_t* send_offsets = nullptr;  // [ranks], as all four
  const int32_t* send_sizes = nullptr;
  const int32_t* receive_offsets = nullptr;  // null: one after the other
  const int32_t* receive_sizes = nullptr;
  uint32_t ranks = 0;
  uint64_t row_bytes = 0, from_rows = 0, to_rows = 0;
  std::byte* from = nullptr;
  std::byte* to = nullptr;
  // [2 * ranks]; tags stay as they are.
  PipeMessage* messages = nullptr;
  std::byte** addresses = nullptr;
  uint64_t* fault = nullptr;  // lowered to the first message that does not lie within its rows
};

// kInvalidArgument where a kernel could not run with these; no memory is read.
Status CheckParams(const RaggedParams& params);
Status LaunchRagged(const RaggedParams& params, Stream stream);

}  // namespace uccl::cuda
