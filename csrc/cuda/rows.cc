// Which parameters the kernel of rows.h takes.
#include "csrc/cuda/rows.h"

#include <limits>
#include <string>

#include "csrc/cuda/check.h"

namespace uccl::cuda {

Status CheckParams(const MoveRowsParams& p) {
  constexpr const char* kKernel = "move_rows";
  const bool from_fp8 = p.cast == RowCast::kFromFp8;
  const bool wide_float =
      p.element == Element::kF16 || p.element == Element::kBF16 || p.element == Element::kF32;
  if (p.cast != RowCast::kNone && !wide_float) {
    return Refuse(kKernel, "casts are between fp8 and float16, bfloat16 or float32");
  }
  // Far below where products of rows and strides overflow.
  constexpr uint64_t kMost = uint64_t{1} << 40;
  if (p.channels > kMost || p.moves > kMost) {
    return Refuse(kKernel, std::to_string(p.moves) + " rows of " + std::to_string(p.channels) +
                               " channels: at most 2^40 of either");
  }
  if (p.repeat == 0) return Refuse(kKernel, "sources repeated no times");
  if (p.moves == 0 || p.channels == 0) return Status::Ok();
  const uint64_t wide = WideRowBytes(p), narrow = Fp8RowBytes(p.channels);
  const uint64_t from_bytes = from_fp8 ? narrow : wide, to_bytes = ToRowBytes(p);
  if (p.from_stride < from_bytes || p.to_stride < to_bytes) {
    return Refuse(kKernel, "strides of " + std::to_string(p.from_stride) + " and " +
                               std::to_string(p.to_stride) + " bytes for rows of " +
                               std::to_string(from_bytes) + " and " + std::to_string(to_bytes));
  }
  if ((p.from == nullptr && p.from_rows > 0) || (p.to == nullptr && p.to_rows > 0)) {
    return Refuse(kKernel, "rows without an address");
  }
  if (p.cast == RowCast::kNone) return Status::Ok();  // bytes lie anywhere
  const size_t element = ElementBytes(p.element);
  const bool fits =
      from_fp8
          ? Aligned(p.to, element) && p.to_stride % element == 0 && p.to_turn % element == 0
          : Aligned(p.from, element) && p.from_stride % element == 0 && p.from_turn % element == 0;
  if (!fits) return Refuse(kKernel, "rows of floats must be aligned to their elements");
  return Status::Ok();
}

}  // namespace uccl::cuda
