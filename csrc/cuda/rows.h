// Rows by index between two buffers, on the way converted to or from 8-bit floats: packing tokens
// into staging memory and unpacking them. The kernel is rows_kernel.h; this header needs no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/cuda/element.h"
#include "csrc/cuda/stream.h"
#include "csrc/cuda/turn.h"

namespace uccl::cuda {

// float8_e4m3fn with one float32 scale for each kScaleBlock channels, as
// jax_uccl/_src/moe/quantize.py: a row of H channels is H values and then ceil(H / 128) scales,
// however aligned that leaves them.
inline constexpr uint32_t kScaleBlock = 128;
constexpr uint64_t ScalesOf(uint64_t channels) {
  return (channels + kScaleBlock - 1) / kScaleBlock;
}
constexpr uint64_t Fp8RowBytes(uint64_t channels) { return channels + 4 * ScalesOf(channels); }

enum class RowCast : uint8_t {
  kNone,           // bytes
  kToFp8,          // scale = amax / 448, amax at least 1e-4
  kToFp8PowerOf2,  // that scale rounded up to a power of two
  kFromFp8,
};

// No entry was outside.
inline constexpr uint64_t kNoFault = ~uint64_t{0};

// For n in [0, moves): to[to_index[n]] = cast(from[from_index[n / repeat]]); without an index, n or
// n / repeat itself. A negative entry of either index moves nothing; with `fill_missing`, a
// negative one of from_index writes a row of zero bytes. Two moves must not have one target.
// Buffers must not overlap.
struct MoveRowsParams {
  const std::byte* from = nullptr;
  const int32_t* from_index = nullptr;
  uint64_t from_rows = 0, from_stride = 0;  // stride in bytes
  std::byte* to = nullptr;
  const int32_t* to_index = nullptr;
  uint64_t to_rows = 0, to_stride = 0;
  uint64_t moves = 0;
  uint32_t repeat = 1;             // targets of each source, one after the other
  uint64_t channels = 0;           // of a row; with RowCast::kNone elements of `element`
  Element element = Element::kU8;  // of the side that is not fp8: kF16, kBF16 or kF32 for casts
  RowCast cast = RowCast::kNone;
  bool fill_missing = false;
  // Lowered to the first n with an entry beyond the rows, which counts as negative. Null: not told.
  uint64_t* fault = nullptr;
  // Bytes from `from` and `to`, those of the first buffer, to the second one.
  Turn turn;
  uint64_t from_turn = 0, to_turn = 0;
};

// What a row occupies on both sides.
constexpr uint64_t WideRowBytes(const MoveRowsParams& p) {
  return p.channels * ElementBytes(p.element);
}
constexpr uint64_t ToRowBytes(const MoveRowsParams& p) {
  const bool narrows = p.cast == RowCast::kToFp8 || p.cast == RowCast::kToFp8PowerOf2;
  return narrows ? Fp8RowBytes(p.channels) : WideRowBytes(p);
}

// What one group of threads does at once, so that few long rows keep many groups busy too: so many
// channels, or bytes where nothing is cast; whole blocks of scales.
inline constexpr uint64_t kRowSegment = 16384;
static_assert(kRowSegment % kScaleBlock == 0);
constexpr uint64_t RowUnits(const MoveRowsParams& p) {
  return p.cast == RowCast::kNone ? WideRowBytes(p) : p.channels;
}
constexpr uint64_t RowPieces(const MoveRowsParams& p) {
  return p.moves * ((RowUnits(p) + kRowSegment - 1) / kRowSegment);
}

// kInvalidArgument where a kernel could not run with these; no memory is read.
Status CheckParams(const MoveRowsParams& params);
// Puts the kernel on the stream. Buffers, indices and `fault` are memory that the device reaches,
// and stay until the stream has got past it.
Status LaunchMoveRows(const MoveRowsParams& params, Stream stream);

}  // namespace uccl::cuda
