// Custom calls of one rank: a run-time check, rows by index, and 8-bit floats. All data is XLA's,
// and all work is done before the call returns.
#include "xla_ffi/local_handlers.h"

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/base/copy.h"
#include "csrc/base/huge_pages.h"
#include "csrc/base/status.h"
#include "csrc/moe/fp8.h"
#include "csrc/moe/rows.h"
#include "xla/ffi/api/ffi.h"
#include "xla_ffi/moe_arguments.h"
#include "xla_ffi/status.h"

namespace uccl::xla_ffi {
namespace {

namespace ffi = ::xla::ffi;

ffi::Error Invalid(std::string_view op, std::string detail) {
  Status status = Status::Error(StatusCode::kInvalidArgument, std::move(detail));
  status.op = std::string(op);
  return ToError(status);
}

std::span<const int32_t> Integers(const ffi::AnyBuffer& buffer) {
  return {static_cast<const int32_t*>(buffer.untyped_data()), buffer.element_count()};
}

void ReplaceAll(std::string* text, std::string_view what, const std::string& by) {
  for (size_t at = text->find(what); at != std::string::npos; at = text->find(what, at + by.size()))
    text->replace(at, what.size(), by);
}

// Hands x through, unless a value is above the limit: then the program fails with `text`, in which
// {i} and {value} stand for the first such entry.
ffi::Error Require(ffi::AnyBuffer x, ffi::AnyBuffer values, ffi::Result<ffi::AnyBuffer> y,
                   int64_t limit, std::string_view op, std::string_view text) {
  if (values.element_type() != ffi::DataType::S32) return Invalid(op, "values must be int32");
  const auto numbers = Integers(values);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] <= limit) continue;
    std::string said(text);
    ReplaceAll(&said, "{i}", std::to_string(i));
    ReplaceAll(&said, "{value}", std::to_string(numbers[i]));
    return Invalid(op, std::move(said));
  }
  if (y->size_bytes() != x.size_bytes()) return Invalid(op, "result and operand differ in size");
  if (y->untyped_data() != x.untyped_data() && x.size_bytes() > 0)
    std::memcpy(y->untyped_data(), x.untyped_data(), x.size_bytes());
  return ffi::Error::Success();
}

// Why the index cannot be used, if it cannot.
std::optional<std::string> Fault(const ffi::AnyBuffer& index, const char* name, size_t rows) {
  if (index.element_type() != ffi::DataType::S32) return std::string(name) + " must be int32";
  const auto outside = moe::FindOutside(Integers(index), rows);
  if (!outside) return std::nullopt;
  return std::string(name) + "[" + std::to_string(*outside) +
         "]=" + std::to_string(Integers(index)[*outside]) + " is outside of the " +
         std::to_string(rows) + " rows";
}

ffi::Error TakeRows(ffi::AnyBuffer x, ffi::AnyBuffer index, ffi::Result<ffi::AnyBuffer> y,
                    int64_t fill) {
  constexpr std::string_view kOp = "take_rows";
  if (auto fault = Fault(index, "index", Rows(x))) return Invalid(kOp, *fault);
  const size_t row = RowBytes(*y);
  if (Rows(*y) != index.element_count() || x.element_type() != y->element_type() ||
      (Rows(x) > 0 && RowBytes(x) != row)) {
    return Invalid(kOp, "the result must have a row like those of the operand for each index");
  }
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  moe::TakeRows(static_cast<const std::byte*>(x.untyped_data()), row, Integers(index), fill != 0,
                /*stream=*/y->size_bytes() >= kStreamBytes,
                static_cast<std::byte*>(y->untyped_data()));
  return ffi::Error::Success();
}

ffi::Error CountBefore(ffi::AnyBuffer keys, ffi::Result<ffi::AnyBuffer> before, int64_t size) {
  constexpr std::string_view kOp = "count_before";
  if (size < 0) return Invalid(kOp, "size must not be negative");
  if (auto fault = Fault(keys, "keys", static_cast<size_t>(size))) return Invalid(kOp, *fault);
  if (before->element_type() != ffi::DataType::S32 ||
      before->element_count() != keys.element_count()) {
    return Invalid(kOp, "the result must be int32, with an element for each key");
  }
  std::vector<int32_t> seen(static_cast<size_t>(size));
  moe::CountBefore(Integers(keys), seen,
                   {static_cast<int32_t*>(before->untyped_data()), before->element_count()});
  return ffi::Error::Success();
}

ffi::Error FoldRows(ffi::AnyBuffer x, ffi::AnyBuffer table, ffi::Result<ffi::AnyBuffer> y) {
  constexpr std::string_view kOp = "fold_rows";
  if (auto fault = Fault(table, "table", Rows(x))) return Invalid(kOp, *fault);
  const auto from = ToRowType(x.element_type()), to = ToRowType(y->element_type());
  if (!from || !to) return Invalid(kOp, "operand and result must be float32 or bfloat16");
  const auto dims = table.dimensions();
  const size_t elements = RowBytes(*y) / moe::RowTypeBytes(*to);
  if (dims.size() != 2 || static_cast<size_t>(dims[0]) != Rows(*y) ||
      (Rows(x) > 0 && RowBytes(x) / moe::RowTypeBytes(*from) != elements)) {
    return Invalid(kOp,
                   "the result must have a row like those of the operand for each of the table");
  }
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  moe::FoldRows(*from, static_cast<const std::byte*>(x.untyped_data()), elements, Integers(table),
                static_cast<size_t>(dims[1]), *to, static_cast<std::byte*>(y->untyped_data()));
  return ffi::Error::Success();
}

ffi::Error EncodeFp8(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y, int64_t power_of_two) {
  constexpr std::string_view kOp = "encode_fp8";
  const auto type = ToRowType(x.element_type());
  if (!type) return Invalid(kOp, "the operand must be float32 or bfloat16");
  const size_t hidden = RowBytes(x) / moe::RowTypeBytes(*type);
  if (y->element_type() != ffi::DataType::U8 ||
      y->size_bytes() != Rows(x) * moe::Fp8WireBytes(hidden)) {
    return Invalid(kOp, "the result must be uint8, with the values and scales of each row");
  }
  moe::EncodeFp8(*type, static_cast<const std::byte*>(x.untyped_data()), Rows(x), hidden,
                 power_of_two != 0, static_cast<std::byte*>(y->untyped_data()));
  return ffi::Error::Success();
}

ffi::Error DecodeFp8(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y) {
  constexpr std::string_view kOp = "decode_fp8";
  const auto type = ToRowType(y->element_type());
  if (!type) return Invalid(kOp, "the result must be float32 or bfloat16");
  const size_t hidden = RowBytes(*y) / moe::RowTypeBytes(*type);
  if (x.element_type() != ffi::DataType::U8 ||
      x.size_bytes() != Rows(*y) * moe::Fp8WireBytes(hidden)) {
    return Invalid(kOp, "the operand must be uint8, with the values and scales of each row");
  }
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  moe::DecodeFp8(static_cast<const std::byte*>(x.untyped_data()), Rows(*y), hidden, *type,
                 static_cast<std::byte*>(y->untyped_data()));
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(
    kEncodeFp8, EncodeFp8,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<int64_t>("power_of_two"));

XLA_FFI_DEFINE_HANDLER(kDecodeFp8, DecodeFp8,
                       ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER(kRequire, Require,
                       ffi::Ffi::Bind()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int64_t>("limit")
                           .Attr<std::string_view>("op")
                           .Attr<std::string_view>("text"));

XLA_FFI_DEFINE_HANDLER(kTakeRows, TakeRows,
                       ffi::Ffi::Bind()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int64_t>("fill"));

XLA_FFI_DEFINE_HANDLER(
    kCountBefore, CountBefore,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<int64_t>("size"));

XLA_FFI_DEFINE_HANDLER(
    kFoldRows, FoldRows,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

}  // namespace
}  // namespace uccl::xla_ffi

extern "C" {
XLA_FFI_Error* UcclRequire(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kRequire(frame); }
XLA_FFI_Error* UcclTakeRows(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kTakeRows(frame); }
XLA_FFI_Error* UcclCountBefore(XLA_FFI_CallFrame* frame) {
  return uccl::xla_ffi::kCountBefore(frame);
}
XLA_FFI_Error* UcclEncodeFp8(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kEncodeFp8(frame); }
XLA_FFI_Error* UcclDecodeFp8(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kDecodeFp8(frame); }
XLA_FFI_Error* UcclFoldRows(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kFoldRows(frame); }
}
