// The kernels of SumRows (rows.h), compiled once for each level of vector instructions.
#pragma once

#include <cstddef>

#include "csrc/base/vector_level.h"
#include "csrc/moe/rows.h"

namespace uccl::moe {

// to = the sum of `count` rows.
using SumKernel = void (*)(const std::byte* const* rows, size_t count, size_t row_elements,
                           std::byte* to);

SumKernel BaselineSum(RowType from, RowType to);
#ifdef UCCL_HAVE_X86_LEVELS
SumKernel Avx2Sum(RowType from, RowType to);
SumKernel Avx512Sum(RowType from, RowType to);
#endif

}  // namespace uccl::moe
