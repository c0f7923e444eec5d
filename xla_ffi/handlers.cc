// Handlers never call Python, never wait for a peer and never run XLA code: the promise is
// completed either before the handler returns (nothing is attached to it yet) or on a worker
// thread.
//
// Operands and results stay alive until the future completes (xla/ffi/api/c_api.h), so they are
// sent and received in place.
#include "xla_ffi/handlers.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/collectives/call_site.h"
#include "csrc/collectives/reduce.h"
#include "csrc/collectives/runtime.h"
#include "xla/ffi/api/ffi.h"
#include "xla_ffi/status.h"

namespace uccl::xla_ffi {
namespace {

namespace ffi = ::xla::ffi;

// The FFI state of one custom call of one executable. The call site outlives it while operations
// are in flight.
struct SiteState {
  static ffi::TypeId id;
  std::shared_ptr<coll::CallSite> site;
};
ffi::TypeId SiteState::id = {};
ffi::TypeInfo kSiteStateInfo = ffi::MakeTypeInfo<SiteState>();

coll::DType ToDType(ffi::DataType type) {
  using coll::DType;
  switch (type) {
    case ffi::DataType::PRED:
      return DType::kPred;
    case ffi::DataType::S8:
      return DType::kS8;
    case ffi::DataType::S16:
      return DType::kS16;
    case ffi::DataType::S32:
      return DType::kS32;
    case ffi::DataType::S64:
      return DType::kS64;
    case ffi::DataType::U8:
      return DType::kU8;
    case ffi::DataType::U16:
      return DType::kU16;
    case ffi::DataType::U32:
      return DType::kU32;
    case ffi::DataType::U64:
      return DType::kU64;
    case ffi::DataType::F16:
      return DType::kF16;
    case ffi::DataType::BF16:
      return DType::kBF16;
    case ffi::DataType::F32:
      return DType::kF32;
    case ffi::DataType::F64:
      return DType::kF64;
    case ffi::DataType::C64:
      return DType::kC64;
    case ffi::DataType::C128:
      return DType::kC128;
    case ffi::DataType::F8E4M3FN:
      return DType::kF8E4M3FN;
    case ffi::DataType::F8E5M2:
      return DType::kF8E5M2;
    case ffi::DataType::F8E4M3:
      return DType::kF8E4M3;
    case ffi::DataType::F8E3M4:
      return DType::kF8E3M4;
    case ffi::DataType::F8E4M3B11FNUZ:
      return DType::kF8E4M3B11FNUZ;
    case ffi::DataType::F8E4M3FNUZ:
      return DType::kF8E4M3FNUZ;
    case ffi::DataType::F8E5M2FNUZ:
      return DType::kF8E5M2FNUZ;
    case ffi::DataType::F8E8M0FNU:
      return DType::kF8E8M0FNU;
    case ffi::DataType::F4E2M1FN:
      return DType::kF4E2M1FN;
    case ffi::DataType::S2:
      return DType::kS2;
    case ffi::DataType::U2:
      return DType::kU2;
    case ffi::DataType::S4:
      return DType::kS4;
    case ffi::DataType::U4:
      return DType::kU4;
    default:
      return DType::kInvalid;
  }
}

Status Invalid(const std::string& op, StatusCode code, std::string detail) {
  Status s = Status::Error(code, std::move(detail));
  s.op = op;
  return s;
}

std::vector<int64_t> ToVector(ffi::Span<const int64_t> span) { return {span.begin(), span.end()}; }

// Reads the attributes that both operations share; `reduction` is empty for data movement.
ffi::ErrorOr<std::unique_ptr<SiteState>> MakeSite(coll::OpKind kind, int64_t site, int64_t position,
                                                  std::string_view label, std::string_view module,
                                                  int64_t group_size,
                                                  ffi::Span<const int64_t> groups,
                                                  ffi::Span<const int64_t> devices,
                                                  ffi::Span<const int64_t> processes,
                                                  int64_t ordered, std::string_view reduction) {
  coll::CallSiteSpec spec;
  spec.kind = kind;
  spec.site = site;
  spec.position = position;
  spec.label = std::string(label);
  spec.module = std::string(module);
  spec.group_size = group_size;
  spec.groups = ToVector(groups);
  spec.devices = ToVector(devices);
  spec.processes = ToVector(processes);
  spec.ordered = ordered != 0;
  if (kind == coll::OpKind::kAllReduce) {
    const auto op = coll::ParseReduceOp(reduction);
    if (!op) {
      return ffi::Unexpected(ToError(Invalid(
          spec.label, StatusCode::kInvalidArgument,
          "unknown reduction `" + std::string(reduction) + "`; use sum, max, min, prod, and, or")));
    }
    spec.reduction = *op;
  }
  auto made = coll::CallSite::Make(std::move(spec), &coll::TheRuntime().instances(),
                                   static_cast<uint64_t>(syscall(SYS_gettid)));
  if (!made.ok()) return ffi::Unexpected(ToError(made.status()));
  auto state = std::make_unique<SiteState>();
  state->site = std::move(made.value());
  return ffi::ErrorOr<std::unique_ptr<SiteState>>(std::move(state));
}

ffi::ErrorOr<std::unique_ptr<SiteState>> AllToAllInstantiate(
    int64_t site, int64_t position, std::string_view label, std::string_view module,
    int64_t group_size, ffi::Span<const int64_t> groups, ffi::Span<const int64_t> devices,
    ffi::Span<const int64_t> processes, int64_t ordered) {
  return MakeSite(coll::OpKind::kAllToAll, site, position, label, module, group_size, groups,
                  devices, processes, ordered, {});
}

ffi::ErrorOr<std::unique_ptr<SiteState>> AllReduceInstantiate(
    int64_t site, int64_t position, std::string_view label, std::string_view module,
    int64_t group_size, ffi::Span<const int64_t> groups, ffi::Span<const int64_t> devices,
    ffi::Span<const int64_t> processes, int64_t ordered, std::string_view reduction) {
  return MakeSite(coll::OpKind::kAllReduce, site, position, label, module, group_size, groups,
                  devices, processes, ordered, reduction);
}

// What the operation needs of the buffers, or why it cannot take them.
Status Check(const coll::CallSite& site, const ffi::AnyBuffer& x, const ffi::AnyBuffer& y,
             coll::DType dtype) {
  const coll::CallSiteSpec& spec = site.spec();
  if (dtype == coll::DType::kInvalid) {
    return Invalid(spec.label, StatusCode::kUnsupported,
                   "element type number " + std::to_string(static_cast<int>(x.element_type())) +
                       " is not known here");
  }
  if (x.size_bytes() != y.size_bytes() ||
      x.size_bytes() != x.element_count() * coll::DTypeBytes(dtype)) {
    return Invalid(spec.label, StatusCode::kInvalidArgument,
                   "operand has " + std::to_string(x.size_bytes()) + " bytes and result " +
                       std::to_string(y.size_bytes()) + ", expected " +
                       std::to_string(x.element_count() * coll::DTypeBytes(dtype)));
  }
  if (spec.kind == coll::OpKind::kAllReduce && !coll::ReduceSupported(dtype, spec.reduction)) {
    return Invalid(spec.label, StatusCode::kUnsupported,
                   std::string("no ") + coll::ReduceOpName(spec.reduction) + " for " +
                       coll::DTypeName(dtype) + "; convert the operand to a wider type first");
  }
  const auto dims = x.dimensions();
  if (spec.kind == coll::OpKind::kAllToAll && (dims.size() == 0 || dims[0] != spec.group_size)) {
    return Invalid(
        spec.label, StatusCode::kInvalidArgument,
        "the leading dimension must be the group size " + std::to_string(spec.group_size));
  }
  return Status::Ok();
}

ffi::Future Execute(SiteState* state, int32_t device, ffi::RunId run, ffi::AnyBuffer x,
                    ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y, ffi::RemainingRets) {
  ffi::Promise promise;
  ffi::Future future(promise);
  coll::Call call;
  call.site = state->site;
  call.device = device;
  call.run = run.run_id;
  call.dtype = ToDType(x.element_type());
  if (Status status = Check(*state->site, x, *y, call.dtype); !status.ok()) {
    promise.SetError(ToError(status));
    return future;
  }
  // After the operand: the partition id where the module does not know its devices, a token in
  // strict order.
  for (size_t i = 0; i < rest.size(); ++i) {
    const auto extra = rest.get<ffi::AnyBuffer>(i);
    if (!extra.has_value()) {
      promise.SetError(extra.error());
      return future;
    }
    if (extra->element_type() == ffi::DataType::U32) {
      call.partition = *static_cast<const uint32_t*>(extra->untyped_data());
    }
  }
  const auto dims = x.dimensions();
  call.shape.assign(dims.begin(), dims.end());
  call.elements = x.element_count();
  call.input = static_cast<const std::byte*>(x.untyped_data());
  call.output = static_cast<std::byte*>(y->untyped_data());
  call.done = [promise](const Status& status) mutable {
    if (status.ok()) {
      promise.SetAvailable();
    } else {
      promise.SetError(ToError(status));
    }
  };
  coll::TheRuntime().Submit(std::move(call));
  return future;
}

#define UCCL_COMMON_ATTRS                          \
  Attr<int64_t>("site")                            \
      .Attr<int64_t>("position")                   \
      .Attr<std::string_view>("label")             \
      .Attr<std::string_view>("module")            \
      .Attr<int64_t>("group_size")                 \
      .Attr<ffi::Span<const int64_t>>("groups")    \
      .Attr<ffi::Span<const int64_t>>("devices")   \
      .Attr<ffi::Span<const int64_t>>("processes") \
      .Attr<int64_t>("ordered")

XLA_FFI_DEFINE_HANDLER(kAllToAllInstantiate, AllToAllInstantiate,
                       ffi::Ffi::BindInstantiate().UCCL_COMMON_ATTRS);
XLA_FFI_DEFINE_HANDLER(
    kAllReduceInstantiate, AllReduceInstantiate,
    ffi::Ffi::BindInstantiate().UCCL_COMMON_ATTRS.Attr<std::string_view>("reduction"));

XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<SiteState>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Ctx<ffi::RunId>()
                           .Arg<ffi::AnyBuffer>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .RemainingRets());

// The state's type must be registered before the handlers that use it, in the XLA that loads them.
// The metadata query that every registration starts with carries that XLA's API, so the type is
// registered there.
XLA_FFI_Error* RegisterTypeOnce(const XLA_FFI_Api* api) {
  static std::once_flag once;
  static XLA_FFI_Error* error = nullptr;
  std::call_once(once, [&] {
    error = ffi::Ffi::RegisterTypeId(api, "jax_uccl_call_site", &SiteState::id, &kSiteStateInfo);
  });
  return std::exchange(error, nullptr);  // reported once: the callee owns it
}

}  // namespace
}  // namespace uccl::xla_ffi

extern "C" {
XLA_FFI_Error* UcclAllToAllInstantiate(XLA_FFI_CallFrame* frame) {
  if (auto* error = uccl::xla_ffi::RegisterTypeOnce(frame->api)) return error;
  return uccl::xla_ffi::kAllToAllInstantiate(frame);
}
XLA_FFI_Error* UcclAllReduceInstantiate(XLA_FFI_CallFrame* frame) {
  if (auto* error = uccl::xla_ffi::RegisterTypeOnce(frame->api)) return error;
  return uccl::xla_ffi::kAllReduceInstantiate(frame);
}
XLA_FFI_Error* UcclAllToAllExecute(XLA_FFI_CallFrame* frame) {
  return uccl::xla_ffi::kExecute(frame);
}
XLA_FFI_Error* UcclAllReduceExecute(XLA_FFI_CallFrame* frame) {
  return uccl::xla_ffi::kExecute(frame);
}
}
