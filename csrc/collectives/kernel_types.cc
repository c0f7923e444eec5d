// The pairs of kernel_types.h.
#include "csrc/collectives/kernel_types.h"

#include <algorithm>

namespace uccl::coll {
namespace {

std::optional<cuda::Element> ElementOf(DType dtype) {
  switch (dtype) {
    case DType::kPred:
    case DType::kU8:
      return cuda::Element::kU8;
    case DType::kU16:
      return cuda::Element::kU16;
    case DType::kU32:
      return cuda::Element::kU32;
    case DType::kU64:
      return cuda::Element::kU64;
    case DType::kS8:
      return cuda::Element::kS8;
    case DType::kS16:
      return cuda::Element::kS16;
    case DType::kS32:
      return cuda::Element::kS32;
    case DType::kS64:
      return cuda::Element::kS64;
    case DType::kF16:
      return cuda::Element::kF16;
    case DType::kBF16:
      return cuda::Element::kBF16;
    case DType::kF32:
    case DType::kC64:
      return cuda::Element::kF32;
    case DType::kF64:
    case DType::kC128:
      return cuda::Element::kF64;
    default:
      return std::nullopt;
  }
}

cuda::Reduction ReductionOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProd:
      return cuda::Reduction::kProd;
    case ReduceOp::kMax:
      return cuda::Reduction::kMax;
    case ReduceOp::kMin:
      return cuda::Reduction::kMin;
    case ReduceOp::kAnd:
      return cuda::Reduction::kAnd;
    case ReduceOp::kOr:
      return cuda::Reduction::kOr;
    case ReduceOp::kNone:
    case ReduceOp::kSum:
      break;
  }
  return cuda::Reduction::kSum;
}

bool AnyWide(const std::vector<Slice>& slices) {
  return std::ranges::any_of(slices, [](const Slice& s) { return s.wide; });
}

}  // namespace

std::optional<KernelTypes> KernelFor(DType dtype, ReduceOp op) {
  const bool is_complex = dtype == DType::kC64 || dtype == DType::kC128;
  const std::optional<cuda::Element> element = ElementOf(dtype);
  if (!element.has_value() || (is_complex && op != ReduceOp::kSum)) return std::nullopt;
  const KernelTypes types{*element, ReductionOf(op), is_complex ? 2u : 1u};
  if (!cuda::CanReduce(types.element, types.reduction)) return std::nullopt;
  return types;
}

bool HasWideResults(const Schedule& schedule) {
  return std::ranges::any_of(schedule.stages, [](const Stage& stage) {
    return std::ranges::any_of(stage.reductions,
                               [](const Reduction& r) { return AnyWide(r.from) || AnyWide(r.to); });
  });
}

}  // namespace uccl::coll
