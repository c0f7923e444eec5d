// Blocks of a row are added up in a buffer that stays in the first-level cache, so that every
// source row is read once and the result written once.
#include "csrc/moe/rows.h"

#include <algorithm>
#include <cstring>

#include "csrc/base/bfloat16.h"
#include "csrc/base/copy.h"

namespace uccl::moe {
namespace {

constexpr size_t kBlock = 1024;  // elements; 4 KiB of sums

void AddBlock(RowType type, const std::byte* row, size_t first, size_t count, float* sums) {
  if (type == RowType::kF32) {
    const auto* values = reinterpret_cast<const float*>(row) + first;
    for (size_t i = 0; i < count; ++i) sums[i] += values[i];
  } else {
    const auto* values = reinterpret_cast<const uint16_t*>(row) + first;
    for (size_t i = 0; i < count; ++i) sums[i] += FromBFloat16(values[i]);
  }
}

void StoreBlock(RowType type, const float* sums, size_t first, size_t count, std::byte* row) {
  if (type == RowType::kF32) {
    std::memcpy(reinterpret_cast<float*>(row) + first, sums, count * sizeof(float));
  } else {
    auto* values = reinterpret_cast<uint16_t*>(row) + first;
    for (size_t i = 0; i < count; ++i) values[i] = ToBFloat16(sums[i]);
  }
}

}  // namespace

std::optional<size_t> FindOutside(std::span<const int32_t> index, size_t rows) {
  for (size_t n = 0; n < index.size(); ++n) {
    if (index[n] >= 0 && static_cast<size_t>(index[n]) >= rows) return n;
  }
  return std::nullopt;
}

void CountBefore(std::span<const int32_t> keys, std::span<int32_t> seen,
                 std::span<int32_t> before) {
  std::fill(seen.begin(), seen.end(), 0);
  for (size_t n = 0; n < keys.size(); ++n)
    before[n] = keys[n] < 0 ? -1 : seen[static_cast<size_t>(keys[n])]++;
}

void TakeRows(const std::byte* from, size_t row_bytes, std::span<const int32_t> index, bool fill,
              std::byte* to) {
  // A buffer of rows that is larger than the caches has left them before anybody reads it.
  const bool stream = index.size() * row_bytes >= kStreamBytes;
  size_t n = 0;
  while (n < index.size()) {
    // Runs of neighbours are one copy: a rank-major buffer has many.
    size_t end = n + 1;
    const bool nothing = index[n] < 0;
    while (end < index.size() && (nothing ? index[end] < 0 : index[end] == index[end - 1] + 1)) {
      ++end;
    }
    const size_t bytes = (end - n) * row_bytes;
    if (nothing) {
      if (fill) std::memset(to + n * row_bytes, 0, bytes);
    } else {
      const std::byte* rows = from + static_cast<size_t>(index[n]) * row_bytes;
      (stream ? &StreamBytes : &CopyBytes)(to + n * row_bytes, rows, bytes);
    }
    n = end;
  }
  if (stream) StreamFence();
}

size_t RowTypeBytes(RowType type) { return type == RowType::kF32 ? 4 : 2; }

void FoldRows(RowType from_type, const std::byte* from, size_t row_elements,
              std::span<const int32_t> table, size_t width, RowType to_type, std::byte* to) {
  if (width == 0) return;
  const size_t from_bytes = row_elements * RowTypeBytes(from_type);
  const size_t to_bytes = row_elements * RowTypeBytes(to_type);
  float sums[kBlock];
  for (size_t t = 0; t < table.size() / width; ++t) {
    for (size_t first = 0; first < row_elements; first += kBlock) {
      const size_t count = std::min(kBlock, row_elements - first);
      std::fill_n(sums, count, 0.0f);
      for (size_t j = 0; j < width; ++j) {
        const int32_t row = table[t * width + j];
        if (row < 0) continue;
        AddBlock(from_type, from + static_cast<size_t>(row) * from_bytes, first, count, sums);
      }
      StoreBlock(to_type, sums, first, count, to + t * to_bytes);
    }
  }
}

}  // namespace uccl::moe
