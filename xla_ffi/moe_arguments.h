// What the custom calls of dispatch and combine are given, for the handlers of all platforms. Only
// sizes are looked at: what index arrays say may be in memory of a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "csrc/base/status.h"
#include "csrc/moe/low_latency.h"
#include "csrc/moe/rows.h"
#include "csrc/moe/throughput.h"
#include "xla/ffi/api/ffi.h"

namespace uccl::xla_ffi {

namespace ffi = ::xla::ffi;

inline Status Invalid(const std::string& detail) {
  return Status::Error(StatusCode::kInvalidArgument, detail);
}

inline uint64_t Rows(const ffi::AnyBuffer& buffer) {
  return buffer.dimensions().size() == 0 ? 0 : static_cast<uint64_t>(buffer.dimensions()[0]);
}
inline uint64_t RowBytes(const ffi::AnyBuffer& buffer) {
  return Rows(buffer) == 0 ? 0 : buffer.size_bytes() / Rows(buffer);
}
inline std::byte* Data(const ffi::AnyBuffer& buffer) {
  return static_cast<std::byte*>(buffer.untyped_data());
}

// Of rows that are added up; nothing where there is no loop for that.
inline std::optional<moe::RowType> ToRowType(ffi::DataType type) {
  if (type == ffi::DataType::F32) return moe::RowType::kF32;
  if (type == ffi::DataType::BF16) return moe::RowType::kBF16;
  return std::nullopt;
}

// x [tokens, ...], peers and places [tokens, width] -> [rows, ...].
Status ReadDispatch(const ffi::AnyBuffer& x, ffi::RemainingArgs rest, const ffi::AnyBuffer& y,
                    ffi::RemainingRets, moe::Dispatch* d);
// y [rows, ...], rows, peers and slots [entries], table [tokens, width] -> [tokens, ...].
Status ReadCombine(const ffi::AnyBuffer& y, ffi::RemainingArgs rest, const ffi::AnyBuffer& out,
                   ffi::RemainingRets, moe::Combine* c);
// int32 arguments from number `first` on, each of any size.
template <size_t kCount>
Status ReadArrays(ffi::RemainingArgs rest, size_t first,
                  std::span<const int32_t> (&arrays)[kCount]) {
  for (size_t i = 0; i < kCount; ++i) {
    if (rest.size() <= first + i) return Invalid("too few arguments");
    const auto buffer = rest.get<ffi::AnyBuffer>(first + i);
    if (!buffer.has_value() || buffer->element_type() != ffi::DataType::S32)
      return Invalid("argument " + std::to_string(first + i + 1) + " must be int32");
    arrays[i] = {static_cast<const int32_t*>(buffer->untyped_data()), buffer->element_count()};
  }
  return Status::Ok();
}
// What leaves; without entries `index` means all rows as they lie.
void SetSent(const ffi::AnyBuffer& x, std::span<const int32_t> index,
             std::span<const int32_t> offsets, std::span<const int32_t> counts,
             moe::RowExchange* e);

inline constexpr size_t kExchangeArrays = 6;

// x [rows, ...], index [entries], offsets and counts of what is sent, counts of what comes [ranks],
// places [entries, width], vacant [any] -> [rows, ...]. Without entries index and places mean all
// rows as they lie.
Status ReadExchange(const ffi::AnyBuffer& x, ffi::RemainingArgs rest, const ffi::AnyBuffer& y,
                    ffi::RemainingRets, moe::RowExchange* e);

// The second result: uint32 nanoseconds for each rank.
Status ReadWaited(ffi::RemainingRets more, int64_t ranks, uint32_t** waited);

}  // namespace uccl::xla_ffi
