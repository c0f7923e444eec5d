// Copies of runs of rows, and the choice of a kernel for sums.
#include "csrc/moe/rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "csrc/base/copy.h"
#include "csrc/moe/sum_kernels.h"

namespace uccl::moe {
namespace {

SumKernel KernelOf(VectorLevel level, RowType from, RowType to) {
#ifdef UCCL_HAVE_X86_LEVELS
  if (level == VectorLevel::kAvx512) return Avx512Sum(from, to);
  if (level == VectorLevel::kAvx2) return Avx2Sum(from, to);
#endif
  (void)level;
  return BaselineSum(from, to);
}

// `row_at(n)`: where row n is; null if it is one of zeros.
template <class RowAt>
void Fold(RowType from_type, const RowAt& row_at, size_t row_elements,
          std::span<const int32_t> table, size_t width, RowType to_type, std::byte* to) {
  if (width == 0) return;
  const size_t to_bytes = row_elements * RowTypeBytes(to_type);
  std::vector<const std::byte*> rows;
  rows.reserve(width);
  for (size_t t = 0; t < table.size() / width; ++t) {
    rows.clear();
    for (const int32_t n : table.subspan(t * width, width)) {
      const std::byte* const row = n < 0 ? nullptr : row_at(n);
      if (row != nullptr) rows.push_back(row);
    }
    SumRows(from_type, rows, row_elements, to_type, to + t * to_bytes);
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
              bool stream, std::byte* to) {
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

void SumRowsAt(VectorLevel level, RowType from_type, std::span<const std::byte* const> rows,
               size_t row_elements, RowType to_type, std::byte* to) {
  KernelOf(level, from_type, to_type)(rows.data(), rows.size(), row_elements, to);
}

void SumRows(RowType from_type, std::span<const std::byte* const> rows, size_t row_elements,
             RowType to_type, std::byte* to) {
  static const VectorLevel level = BestVectorLevel();
  SumRowsAt(level, from_type, rows, row_elements, to_type, to);
}

void FoldRows(RowType from_type, const std::byte* from, size_t row_elements,
              std::span<const int32_t> table, size_t width, RowType to_type, std::byte* to) {
  const size_t bytes = row_elements * RowTypeBytes(from_type);
  const auto row_at = [&](int32_t n) { return from + static_cast<size_t>(n) * bytes; };
  Fold(from_type, row_at, row_elements, table, width, to_type, to);
}

void FoldRows(RowType from_type, std::span<const std::byte* const> from, size_t row_elements,
              std::span<const int32_t> table, size_t width, RowType to_type, std::byte* to) {
  const auto row_at = [&](int32_t n) { return from[static_cast<size_t>(n)]; };
  Fold(from_type, row_at, row_elements, table, width, to_type, to);
}

}  // namespace uccl::moe
