// Rows by index on a GPU. Indices are in device memory when a call is issued, so that an entry
// outside of the operand can only be told later: it counts as -1, a word in pinned memory notes it,
// and the next call of the process fails with it. Plans are made so that there is none.
#include "xla_ffi/cuda_handlers.h"

#include <atomic>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "csrc/base/status.h"
#include "csrc/cuda/device.h"
#include "csrc/cuda/fold.h"
#include "csrc/cuda/limit.h"
#include "csrc/cuda/pinned.h"
#include "csrc/cuda/rows.h"
#include "xla/ffi/api/ffi.h"
#include "xla_ffi/status.h"

namespace uccl::xla_ffi {
namespace {

namespace ffi = ::xla::ffi;

ffi::Error Invalid(std::string_view op, std::string detail) {
  Status status = Status::Error(StatusCode::kInvalidArgument, std::move(detail));
  status.op = std::string(op);
  return ToError(status);
}

uint64_t Rows(const ffi::AnyBuffer& buffer) {
  const auto dims = buffer.dimensions();
  return dims.size() == 0 ? 0 : static_cast<uint64_t>(dims[0]);
}

uint64_t RowBytes(const ffi::AnyBuffer& buffer) {
  return Rows(buffer) == 0 ? 0 : buffer.size_bytes() / Rows(buffer);
}

const int32_t* Integers(const ffi::AnyBuffer& buffer) {
  return static_cast<const int32_t*>(buffer.untyped_data());
}

// Where kernels note the first entry that was outside, a word for each kind of call. Pinned memory
// that is never given back, because kernels may run until the process ends; made by UcclCudaPrepare
// and not by the first call, which may be inside of a capture.
struct alignas(64) FaultWord {
  uint64_t entry = cuda::kNoFault;
};
struct FaultWords {
  FaultWord take, fold, require;
};
std::atomic<FaultWords*> fault_words{nullptr};

std::string Prepare() {
  auto memory = cuda::AllocatePinned(sizeof(FaultWords));
  if (!memory.ok()) return memory.status().ToString();
  // Release: pairs with the acquire of the calls, which see the words in their first state.
  fault_words.store(new (memory.value()) FaultWords(), std::memory_order_release);
  return "";
}

// The error that an earlier call left behind, if there is one. Relaxed: a number with nothing
// behind it. A device that lowers the word at this very moment may go unheard; the next such entry
// will not.
std::optional<ffi::Error> Before(FaultWord* word, std::string_view op, const char* index) {
  const uint64_t entry =
      std::atomic_ref(word->entry).exchange(cuda::kNoFault, std::memory_order_relaxed);
  if (entry == cuda::kNoFault) return std::nullopt;
  return Invalid(op, "entry " + std::to_string(entry) + " of the " + index +
                         " of an earlier call was outside of its operand's rows");
}

ffi::Error NotPrepared(std::string_view op) {
  Status status = Status::Error(StatusCode::kUnsupported,
                                "UcclCudaPrepare was not called or failed when this was loaded");
  status.op = std::string(op);
  return ToError(status);
}

ffi::Error TakeRows(cuda::Stream stream, ffi::AnyBuffer x, ffi::AnyBuffer index,
                    ffi::Result<ffi::AnyBuffer> y, int64_t fill) {
  constexpr std::string_view kOp = "take_rows";
  if (index.element_type() != ffi::DataType::S32) return Invalid(kOp, "index must be int32");
  if (Rows(*y) != index.element_count() || x.element_type() != y->element_type() ||
      (Rows(x) > 0 && RowBytes(x) != RowBytes(*y))) {
    return Invalid(kOp, "the result must have a row like those of the operand for each index");
  }
  FaultWords* words = fault_words.load(std::memory_order_acquire);
  if (words == nullptr) return NotPrepared(kOp);
  if (auto error = Before(&words->take, kOp, "index")) return *error;
  cuda::MoveRowsParams p;
  p.from = static_cast<const std::byte*>(x.untyped_data());
  p.from_index = Integers(index);
  p.from_rows = Rows(x);
  p.to = static_cast<std::byte*>(y->untyped_data());
  p.to_rows = p.moves = Rows(*y);
  p.channels = p.from_stride = p.to_stride = RowBytes(*y);
  p.fill_missing = fill != 0;
  p.fault = &words->take.entry;
  return ToError(cuda::LaunchMoveRows(p, stream));
}

std::optional<cuda::Element> ToElement(ffi::DataType type) {
  if (type == ffi::DataType::F32) return cuda::Element::kF32;
  if (type == ffi::DataType::BF16) return cuda::Element::kBF16;
  if (type == ffi::DataType::F16) return cuda::Element::kF16;
  return std::nullopt;
}

ffi::Error FoldRows(cuda::Stream stream, ffi::AnyBuffer x, ffi::AnyBuffer table,
                    ffi::Result<ffi::AnyBuffer> y) {
  constexpr std::string_view kOp = "fold_rows";
  if (table.element_type() != ffi::DataType::S32) return Invalid(kOp, "table must be int32");
  const auto from = ToElement(x.element_type()), to = ToElement(y->element_type());
  if (!from || !to) return Invalid(kOp, "operand and result must be float32, bfloat16 or float16");
  const auto dims = table.dimensions();
  const uint64_t channels = RowBytes(*y) / cuda::ElementBytes(*to);
  if (dims.size() != 2 || static_cast<uint64_t>(dims[0]) != Rows(*y) ||
      (Rows(x) > 0 && RowBytes(x) / cuda::ElementBytes(*from) != channels)) {
    return Invalid(kOp,
                   "the result must have a row like those of the operand for each of the table");
  }
  FaultWords* words = fault_words.load(std::memory_order_acquire);
  if (words == nullptr) return NotPrepared(kOp);
  if (auto error = Before(&words->fold, kOp, "table")) return *error;
  cuda::FoldRowsParams p;
  p.from = static_cast<const std::byte*>(x.untyped_data());
  p.from_rows = Rows(x);
  p.from_stride = channels * cuda::ElementBytes(*from);
  p.table = Integers(table);
  p.rows = Rows(*y);
  p.width = static_cast<uint32_t>(dims[1]);
  p.to = static_cast<std::byte*>(y->untyped_data());
  p.to_stride = RowBytes(*y);
  p.channels = channels;
  p.from_element = *from, p.to_element = *to;
  p.fault = &words->fold.entry;
  return ToError(cuda::LaunchFoldRows(p, stream));
}

// Hands x through. A value above the limit can only be told by the next call, in other words than
// those of the call that met it.
ffi::Error Require(cuda::Stream stream, ffi::AnyBuffer x, ffi::AnyBuffer values,
                   ffi::Result<ffi::AnyBuffer> y, int64_t limit, std::string_view op,
                   std::string_view text) {
  (void)text;
  if (values.element_type() != ffi::DataType::S32) return Invalid(op, "values must be int32");
  if (y->size_bytes() != x.size_bytes()) return Invalid(op, "result and operand differ in size");
  FaultWords* words = fault_words.load(std::memory_order_acquire);
  if (words == nullptr) return NotPrepared(op);
  const uint64_t before =
      std::atomic_ref(words->require.entry).exchange(cuda::kNoFault, std::memory_order_relaxed);
  if (before != cuda::kNoFault) {
    return Invalid(op, "entry " + std::to_string(cuda::LimitIndex(before)) +
                           " of what an earlier call checked was " +
                           std::to_string(cuda::LimitValue(before)) +
                           ", above its limit: choices beyond the experts, or more rows than a "
                           "capacity; its results are not to be used");
  }
  cuda::LimitParams check;
  check.values = Integers(values);
  check.count = values.element_count();
  check.limit = limit;
  check.fault = &words->require.entry;
  if (Status s = cuda::LaunchLimit(check, stream); !s.ok()) return ToError(s);
  if (y->untyped_data() == x.untyped_data() || x.size_bytes() == 0) return ffi::Error::Success();
  cuda::MoveRowsParams copy;
  copy.from = static_cast<const std::byte*>(x.untyped_data());
  copy.to = static_cast<std::byte*>(y->untyped_data());
  copy.from_rows = copy.to_rows = copy.moves = 1;
  copy.from_stride = copy.to_stride = copy.channels = x.size_bytes();
  return ToError(cuda::LaunchMoveRows(copy, stream));
}

// Compatible with command buffers: a call is kernels whose parameters are XLA's buffers.
XLA_FFI_DEFINE_HANDLER(kTakeRows, TakeRows,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cuda::Stream>>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int64_t>("fill"),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(kFoldRows, FoldRows,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cuda::Stream>>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>(),
                       {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER(kRequire, Require,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<cuda::Stream>>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int64_t>("limit")
                           .Attr<std::string_view>("op")
                           .Attr<std::string_view>("text"),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace
}  // namespace uccl::xla_ffi

extern "C" {
const char* UcclCudaPrepare() {
  static const std::string fault = uccl::xla_ffi::Prepare();
  return fault.empty() ? nullptr : fault.c_str();
}
const void* UcclCudaDevice() { return &uccl::cuda::CudaDevice(); }
XLA_FFI_Error* UcclCudaTakeRows(XLA_FFI_CallFrame* frame) {
  return uccl::xla_ffi::kTakeRows(frame);
}
XLA_FFI_Error* UcclCudaFoldRows(XLA_FFI_CallFrame* frame) {
  return uccl::xla_ffi::kFoldRows(frame);
}
XLA_FFI_Error* UcclCudaRequire(XLA_FFI_CallFrame* frame) { return uccl::xla_ffi::kRequire(frame); }
}
