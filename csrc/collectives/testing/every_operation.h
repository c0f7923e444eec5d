// Every collective on 8 ranks, and what it gives on one process.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "csrc/collectives/reduce.h"
#include "csrc/collectives/testing/fleet.h"

namespace uccl::coll::testing {

// Bytes that are numbers of moderate size in the 16-bit and 32-bit floats, so that another order of
// adding shows, and that are no NaN.
inline std::vector<Vector> RandomInputs(const Operation& op, size_t ranks, uint64_t seed) {
  std::mt19937_64 random(seed);
  const size_t width = DTypeBytes(op.dtype);
  const bool floating = op.dtype == DType::kF32 || op.dtype == DType::kBF16;
  std::vector<Vector> all(ranks, Vector(op.bytes()));
  for (Vector& v : all) {
    for (std::byte& b : v) b = static_cast<std::byte>(random());
    for (size_t last = width - 1; floating && last < v.size(); last += width) {
      // Sign, and an exponent around 1.
      v[last] = static_cast<std::byte>(0x3f | (random() & 0x80));
    }
  }
  return all;
}

// What an operation is to do besides its kind; for 8 ranks.
inline constexpr int64_t kRoot = 5;
inline const std::vector<int64_t> kPermutation = {0, 3, 3, 7, 7, 0, 1, 2, 4, 4, 6, 5};

inline std::vector<Vector> Expected(const Operation& op, const std::vector<Vector>& in) {
  const size_t n = in.size(), bytes = op.bytes(), row = bytes / n;
  std::vector<Vector> out(n, Vector(op.output_bytes(n)));
  const auto reduce = [&](size_t offset, size_t length, std::byte* to) {
    std::vector<const std::byte*> from;
    for (const Vector& v : in) from.push_back(v.data() + offset);
    ReduceElements(op.dtype, op.reduction, from, std::span(&to, 1), length / DTypeBytes(op.dtype));
  };
  for (size_t r = 0; r < n; ++r) {
    std::byte* const to = out[r].data();
    switch (op.kind) {
      case OpKind::kAllReduce:
        reduce(0, bytes, to);
        break;
      case OpKind::kReduceScatter:
        reduce(r * row, row, to);
        break;
      case OpKind::kAllGather:
        for (size_t m = 0; m < n; ++m) std::memcpy(to + m * bytes, in[m].data(), bytes);
        break;
      case OpKind::kAllToAll:
        for (size_t m = 0; m < n; ++m) std::memcpy(to + m * row, in[m].data() + r * row, row);
        break;
      case OpKind::kBroadcast:
        std::memcpy(to, in[kRoot].data(), bytes);
        break;
      case OpKind::kPermute:
        for (size_t k = 0; k < kPermutation.size(); k += 2) {
          if (kPermutation[k + 1] == static_cast<int64_t>(r))
            std::memcpy(to, in[static_cast<size_t>(kPermutation[k])].data(), bytes);
        }
        break;
      default:
        break;
    }
  }
  return out;
}

// Every collective, at sizes and types that take different ways.
inline std::vector<Operation> CompileAll(Fleet* fleet) {
  std::vector<Operation> ops;
  int64_t site = 1;
  const auto n = static_cast<int64_t>(fleet->ranks());
  const auto add = [&](OpKind kind, DType dtype, ReduceOp op, std::vector<int64_t> shape) {
    ops.push_back(
        fleet->Compile(kind, dtype, op, std::move(shape), site++, {}, [](CallSiteSpec* spec) {
          spec->root = kRoot;
          spec->permutation = kPermutation;
        }));
  };
  // Fewer elements than ranks, messages that go at once, and messages that wait for the receiver.
  for (int64_t count : {3, 1000, 9000}) {
    add(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {count});
    add(OpKind::kAllReduce, DType::kBF16, ReduceOp::kSum, {count});
    add(OpKind::kAllReduce, DType::kS32, ReduceOp::kSum, {count});
    add(OpKind::kReduceScatter, DType::kF32, ReduceOp::kSum, {n, count});
    add(OpKind::kReduceScatter, DType::kBF16, ReduceOp::kProd, {n, count});
    add(OpKind::kReduceScatter, DType::kS16, ReduceOp::kMax, {n, count});
    add(OpKind::kAllGather, DType::kF32, ReduceOp::kNone, {count});
    add(OpKind::kAllToAll, DType::kU8, ReduceOp::kNone, {n, count});
    add(OpKind::kBroadcast, DType::kF64, ReduceOp::kNone, {count});
    add(OpKind::kPermute, DType::kF32, ReduceOp::kNone, {count});
  }
  add(OpKind::kBarrier, DType::kU8, ReduceOp::kNone, {0});
  return ops;
}

}  // namespace uccl::coll::testing
