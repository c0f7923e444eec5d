// Element-wise reduction of n vectors in one fixed order, so that the result does not depend on
// which process owns which rank, on thread count or on arrival order.
//
// The order is a binary tree over the rank index: reduce(lo, hi) = reduce(lo, mid) op reduce(mid,
// hi), where mid - lo is the largest power of two smaller than hi - lo. Blocks of ranks aligned to
// powers of two are whole subtrees, so a process that owns such a block can later send one partial
// result instead of its members without changing a bit. The error grows with log2(n) instead of n.
//
// float16 and bfloat16 accumulate in float32 and are rounded once at the end. Integers wrap. A NaN
// in the result of two or more inputs is always the positive quiet one, so that results do not
// depend on the vector instructions of the machine either; a single input is copied as it is.
#pragma once

#include <cstddef>
#include <span>

#include "csrc/base/vector_level.h"
#include "csrc/collectives/dtype.h"

namespace uccl::coll {

// Which pairs ReduceElements takes: sum, prod for float, complex and integers; max, min for float,
// integers and bool; and, or for integers and bool. No 8-bit and 4-bit floats, no sub-byte
// integers.
bool ReduceSupported(DType dtype, ReduceOp op);

// outputs[k][i] = tree over inputs[0..n) of element i, for i in [0, count), for every k. Inputs and
// outputs point at elements and must not overlap; n >= 1; the pair must be supported.
void ReduceElements(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                    std::span<std::byte* const> outputs, size_t count);

// The same with the instructions of one of VectorLevels(), for tests and measurements.
void ReduceElementsAt(VectorLevel level, DType dtype, ReduceOp op,
                      std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs,
                      size_t count);

}  // namespace uccl::coll
