// Rows of tokens between buffers of one rank: taking them by index, adding them up in a fixed
// order, and numbering them within their group.
//
// Leaves to others: which rows (jax_uccl/_src/moe/plan.py) and their way between ranks
// (collectives). Pure: no thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "csrc/base/vector_level.h"

namespace uccl::moe {

// The first entry that is not below `rows`, if there is one. -1 and every other negative number
// means nothing.
std::optional<size_t> FindOutside(std::span<const int32_t> index, size_t rows);

// before[n] = how many entries before n are equal to keys[n]; -1 where that is negative. `seen` has
// a place for each key, and holds how often it occurs in the end. No key may be outside of it.
void CountBefore(std::span<const int32_t> keys, std::span<int32_t> seen, std::span<int32_t> before);

// to[n] = from[index[n]]. Where the index is negative zeros with `fill`, otherwise what was there:
// pages of a send buffer that nobody reads are not even made. No entry may be outside of `from`;
// the buffers must not overlap. `stream`: past the caches (StreamBytes of base/copy.h), for a
// result that leaves them before anybody reads it; it is in place when this returns.
void TakeRows(const std::byte* from, size_t row_bytes, std::span<const int32_t> index, bool fill,
              bool stream, std::byte* to);

enum class RowType : uint8_t { kF32, kBF16 };

size_t RowTypeBytes(RowType type);

// to = the sum of the rows, added to 0 in their order in float, rounded once (to nearest, ties to
// even). The buffers must not overlap.
void SumRows(RowType from_type, std::span<const std::byte* const> rows, size_t row_elements,
             RowType to_type, std::byte* to);

// to[t] = that of the rows from[table[t * width + j]] in the order of j. Negative entries add
// nothing. No entry may be outside of `from`; the buffers must not overlap.
void FoldRows(RowType from_type, const std::byte* from, size_t row_elements,
              std::span<const int32_t> table, size_t width, RowType to_type, std::byte* to);
// The same of rows that lie anywhere. A null one is a row of zeros, which changes no sum that
// begins at +0.
void FoldRows(RowType from_type, std::span<const std::byte* const> from, size_t row_elements,
              std::span<const int32_t> table, size_t width, RowType to_type, std::byte* to);

// SumRows with the instructions of one of VectorLevels(), for tests.
void SumRowsAt(VectorLevel level, RowType from_type, std::span<const std::byte* const> rows,
               size_t row_elements, RowType to_type, std::byte* to);

}  // namespace uccl::moe
