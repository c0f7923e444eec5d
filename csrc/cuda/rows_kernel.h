// The kernel of rows.h, for any group of threads.
#pragma once

#include "csrc/cuda/chunk.h"
#include "csrc/cuda/float_formats.h"
#include "csrc/cuda/lanes.h"
#include "csrc/cuda/memory.h"
#include "csrc/cuda/rows.h"

namespace uccl::cuda {
namespace internal {

UCCL_HOST_DEVICE inline float Fp8Scale(uint32_t amax_bits, RowCast cast) {
  constexpr uint32_t kSmallestAmax = 0x38d1b717u;  // 1e-4f
  if (amax_bits < kSmallestAmax) amax_bits = kSmallestAmax;
  if (amax_bits > kInfinityBits) amax_bits = kNanBits;
  if (cast == RowCast::kToFp8PowerOf2) {
    // 448 is 1.75 * 2^8: the bits tell which power of two reaches amax / 448.
    const uint32_t more = (amax_bits & 0x7fffffu) > 0x600000u ? 1 : 0;
    return BitsAs<float>(((amax_bits >> 23) - 8 + more) << 23);
  }
  constexpr float kOneOverLargest = static_cast<float>(1.0 / 448.0);
  return OneNan(BitsAs<float>(amax_bits) * kOneOverLargest);
}

// Channels [first, last) of one row; `first` is at the start of a block of scales. The LanesOf
// threads of a team take a block together.
template <class Codec, class Group>
UCCL_HOST_DEVICE inline void RowToFp8(Group& group, const std::byte* from, std::byte* to,
                                      uint64_t first, uint64_t last, uint64_t channels,
                                      RowCast cast) {
  constexpr uint32_t kLanes = LanesOf<Group>;
  constexpr uint32_t kChunks = kScaleBlock / kChunk, kMine = (kChunks + kLanes - 1) / kLanes;
  static_assert(kChunks % kLanes == 0, "a block is shared evenly");
  const uint32_t teams = group.size() / kLanes;
  const uint32_t team = group.rank() / kLanes, lane = group.rank() % kLanes;
  // All threads of the group go around equally often, because they meet in LaneMax.
  for (uint64_t block = first; block < last; block += uint64_t{teams} * kScaleBlock) {
    const uint64_t start = block + uint64_t{team} * kScaleBlock;
    float values[kMine][kChunk];
    uint32_t amax = 0;
    for (uint32_t i = 0; i < kMine; ++i) {
      const uint64_t at = start + uint64_t{i * kLanes + lane} * kChunk;
      LoadChunk<Codec>(from + at * Codec::kBytes, ChunkCount(at, last), values[i]);
      for (uint32_t k = 0; k < kChunk; ++k) {
        const uint32_t magnitude = MagnitudeBits(values[i][k]);  // ordered as the floats, NaN last
        amax = magnitude > amax ? magnitude : amax;
      }
    }
    const float scale = Fp8Scale(LaneMax(group, amax), cast);
    if (start >= last) continue;
    for (uint32_t i = 0; i < kMine; ++i) {
      const uint64_t at = start + uint64_t{i * kLanes + lane} * kChunk;
      uint64_t narrow = 0;
      for (uint32_t k = 0; k < kChunk; ++k) {
        narrow |= uint64_t{FloatToE4M3(values[i][k] / scale)} << (8 * k);
      }
      StoreByteChunk(narrow, ChunkCount(at, last), to + at);
    }
    if (lane == 0) StoreAny(to + channels + 4 * (start / kScaleBlock), scale);
  }
}

template <class Codec, class Group>
UCCL_HOST_DEVICE inline void RowFromFp8(Group& group, const std::byte* from, std::byte* to,
                                        uint64_t first, uint64_t last, uint64_t channels) {
  for (uint64_t at = first + uint64_t{group.rank()} * kChunk; at < last;
       at += uint64_t{group.size()} * kChunk) {
    const uint32_t count = ChunkCount(at, last);
    const uint64_t narrow = LoadByteChunk(from + at, count);
    const auto scale = LoadAny<float>(from + channels + 4 * (at / kScaleBlock));
    float values[kChunk];
    for (uint32_t k = 0; k < kChunk; ++k) {
      values[k] = E4M3ToFloat(static_cast<uint8_t>(narrow >> (8 * k))) * scale;
    }
    StoreChunk<Codec>(values, count, to + at * Codec::kBytes);
  }
}

// Whether entry n of an index names a row; `*row` is that row.
UCCL_HOST_DEVICE inline bool RowOf(const int32_t* index, uint64_t n, uint64_t rows, uint64_t* row,
                                   bool* outside) {
  if (index != nullptr && index[n] < 0) return false;
  *row = index == nullptr ? n : static_cast<uint64_t>(index[n]);
  if (*row < rows) return true;
  *outside = true;
  return false;
}

}  // namespace internal

// Codec is that of params.element (chunk.h); ByteCodec for RowCast::kNone.
template <class Codec, class Group>
UCCL_HOST_DEVICE void MoveRows(Group& group, const MoveRowsParams& p) {
  const std::byte* const from_base = p.from + p.turn.buffer() * p.from_turn;
  std::byte* const to_base = p.to + p.turn.buffer() * p.to_turn;
  const uint64_t units = RowUnits(p), segments = (units + kRowSegment - 1) / kRowSegment;
  for (uint64_t item = group.index(); item < p.moves * segments; item += group.count()) {
    const uint64_t n = item / segments, first = item % segments * kRowSegment;
    const uint64_t last = first + kRowSegment < units ? first + kRowSegment : units;
    uint64_t source = 0, target = 0;
    bool outside = false;
    const bool given = internal::RowOf(p.from_index, n / p.repeat, p.from_rows, &source, &outside);
    const bool wanted = internal::RowOf(p.to_index, n, p.to_rows, &target, &outside);
    if (outside && p.fault != nullptr && group.IsLeader()) AtomicMin(p.fault, n);
    if (!wanted) continue;
    std::byte* to = to_base + target * p.to_stride;
    if (!given) {
      // Whoever has the last segment takes the scales as well.
      const bool end = last == units;
      const uint64_t unit = p.cast == RowCast::kFromFp8 ? Codec::kBytes : 1;
      const uint64_t stop = end ? ToRowBytes(p) : last * unit;
      if (p.fill_missing) ZeroBytes(group, to + first * unit, stop - first * unit);
      continue;
    }
    const std::byte* from = from_base + source * p.from_stride;
    if constexpr (Codec::kIsFloat) {
      if (p.cast == RowCast::kFromFp8) {
        internal::RowFromFp8<Codec>(group, from, to, first, last, p.channels);
      } else {
        internal::RowToFp8<Codec>(group, from, to, first, last, p.channels, p.cast);
      }
    } else {
      CopyBytes(group, from + first, to + first, last - first);
    }
  }
}

// Calls visit.template operator()<Codec>() with what the parameters ask for; false if no kernel
// does that.
template <class Visit>
bool WithRowCodec(const MoveRowsParams& p, const Visit& visit) {
  if (p.cast == RowCast::kNone) return visit.template operator()<ByteCodec>(), true;
  return WithFloatCodec(p.element, visit);
}

}  // namespace uccl::cuda
