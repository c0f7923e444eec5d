// Which parameters the kernel of fold.h takes.
#include "csrc/cuda/fold.h"

#include <string>

#include "csrc/cuda/check.h"

namespace uccl::cuda {
namespace {

bool IsRowFloat(Element e) {
  return e == Element::kF16 || e == Element::kBF16 || e == Element::kF32;
}

}  // namespace

Status CheckParams(const FoldRowsParams& p) {
  constexpr const char* kKernel = "fold_rows";
  if (!IsRowFloat(p.from_element) || !IsRowFloat(p.to_element)) {
    return Refuse(kKernel, "rows must be float16, bfloat16 or float32");
  }
  constexpr uint64_t kMost = uint64_t{1} << 40;
  if (p.channels > kMost || p.rows > kMost) {
    return Refuse(kKernel, std::to_string(p.rows) + " rows of " + std::to_string(p.channels) +
                               " channels: at most 2^40 of either");
  }
  if (p.rows == 0 || p.channels == 0) return Status::Ok();
  const size_t from_bytes = ElementBytes(p.from_element), to_bytes = ElementBytes(p.to_element);
  if (p.from_stride < p.channels * from_bytes || p.to_stride < p.channels * to_bytes) {
    return Refuse(kKernel, "strides of " + std::to_string(p.from_stride) + " and " +
                               std::to_string(p.to_stride) + " bytes for rows of " +
                               std::to_string(p.channels) + " channels");
  }
  if (p.bias_stride != 0 && p.bias_stride < p.channels) {
    return Refuse(kKernel, "bias_stride of " + std::to_string(p.bias_stride) + " for rows of " +
                               std::to_string(p.channels) + " channels; 0 is one row for all");
  }
  if (p.to == nullptr || (p.width > 0 && p.table == nullptr) ||
      (p.from == nullptr && p.from_rows > 0)) {
    return Refuse(kKernel, "rows or a table without an address");
  }
  if (!Aligned(p.from, from_bytes) || p.from_stride % from_bytes != 0 ||
      p.from_turn % from_bytes != 0 || !Aligned(p.to, to_bytes) || p.to_stride % to_bytes != 0 ||
      !Aligned(p.bias, sizeof(float))) {
    return Refuse(kKernel, "rows must be aligned to their elements");
  }
  return Status::Ok();
}

}  // namespace uccl::cuda
