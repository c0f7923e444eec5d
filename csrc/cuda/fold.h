// For each row of a table the ordered sum of the rows that it lists: what moe.combine does with the
// rows that came back (csrc/moe/rows.h FoldRows; the same bits). The kernel is fold_kernel.h; this
// header needs no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/cuda/element.h"
#include "csrc/cuda/stream.h"
#include "csrc/cuda/turn.h"

namespace uccl::cuda {

// to[t] = sum over j of from[table[t * width + j]], added to +0 in the order of j in float32, then
// bias, rounded once. Negative entries add nothing. Buffers must not overlap.
struct FoldRowsParams {
  const std::byte* from = nullptr;
  uint64_t from_rows = 0, from_stride = 0;  // stride in bytes
  const int32_t* table = nullptr;           // [rows, width]
  uint64_t rows = 0;
  uint32_t width = 0;
  const float* bias = nullptr;  // null, or row t at bias + t * bias_stride; 0: one row for all
  uint64_t bias_stride = 0;     // in elements
  std::byte* to = nullptr;
  uint64_t to_stride = 0;
  uint64_t channels = 0;
  Element from_element = Element::kF32, to_element = Element::kF32;  // kF16, kBF16 or kF32
  // Lowered to the first index into the table whose entry is no row; such an entry adds nothing.
  uint64_t* fault = nullptr;
  Turn turn;
  uint64_t from_turn = 0;  // bytes from `from`, that of the first buffer, to the second one
};

// kInvalidArgument where a kernel could not run with these; no memory is read.
Status CheckParams(const FoldRowsParams& params);
Status LaunchFoldRows(const FoldRowsParams& params, Stream stream);

}  // namespace uccl::cuda
