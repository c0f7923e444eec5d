// Element types as the collectives see them, and the reductions. Values travel in
// MessageInfo::note, so they are part of the wire format: append, never renumber.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace uccl::coll {

enum class DType : uint8_t {
  kInvalid = 0,
  kPred,
  kS8,
  kS16,
  kS32,
  kS64,
  kU8,
  kU16,
  kU32,
  kU64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kC64,
  kC128,
  kF8E4M3FN,
  kF8E5M2,
  kF8E4M3,
  kF8E3M4,
  kF8E4M3B11FNUZ,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kF8E8M0FNU,
  kF4E2M1FN,
  kS2,
  kU2,
  kS4,
  kU4,
};

enum class ReduceOp : uint8_t { kNone = 0, kSum, kMax, kMin, kProd, kAnd, kOr };

// "float32", as NumPy and JAX spell it; "invalid" for an unknown value (it may come from a peer).
const char* DTypeName(DType dtype);
// Bytes one element occupies in a host buffer. Sub-byte types are stored one per byte by XLA:CPU.
size_t DTypeBytes(DType dtype);
const char* ReduceOpName(ReduceOp op);
std::optional<ReduceOp> ParseReduceOp(std::string_view name);

}  // namespace uccl::coll
