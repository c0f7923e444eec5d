// The tables behind the element types and reductions.
#include "csrc/collectives/dtype.h"

#include <array>

namespace uccl::coll {
namespace {

struct DTypeRow {
  const char* name;
  size_t bytes;
};
// In the order of DType.
constexpr std::array<DTypeRow, 29> kDTypes = {{
    {"invalid", 0},
    {"bool", 1},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint8", 1},
    {"uint16", 2},
    {"uint32", 4},
    {"uint64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"complex64", 8},
    {"complex128", 16},
    {"float8_e4m3fn", 1},
    {"float8_e5m2", 1},
    {"float8_e4m3", 1},
    {"float8_e3m4", 1},
    {"float8_e4m3b11fnuz", 1},
    {"float8_e4m3fnuz", 1},
    {"float8_e5m2fnuz", 1},
    {"float8_e8m0fnu", 1},
    {"float4_e2m1fn", 1},
    {"int2", 1},
    {"uint2", 1},
    {"int4", 1},
    {"uint4", 1},
}};
static_assert(kDTypes.size() == static_cast<size_t>(DType::kU4) + 1);

const DTypeRow& Row(DType dtype) {
  const auto i = static_cast<size_t>(dtype);
  return i < kDTypes.size() ? kDTypes[i] : kDTypes[0];
}

constexpr std::array<const char*, 7> kReduceOps = {"none", "sum", "max", "min",
                                                   "prod", "and", "or"};

}  // namespace

const char* DTypeName(DType dtype) { return Row(dtype).name; }
size_t DTypeBytes(DType dtype) { return Row(dtype).bytes; }

const char* ReduceOpName(ReduceOp op) {
  const auto i = static_cast<size_t>(op);
  return i < kReduceOps.size() ? kReduceOps[i] : "unknown";
}

std::optional<ReduceOp> ParseReduceOp(std::string_view name) {
  for (size_t i = 1; i < kReduceOps.size(); ++i) {
    if (name == kReduceOps[i]) return static_cast<ReduceOp>(i);
  }
  return std::nullopt;
}

}  // namespace uccl::coll
