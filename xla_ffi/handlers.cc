// Handlers never call Python, never wait for a peer and never run XLA code: the promise is
// completed either before the handler returns (nothing is attached to it yet) or on a worker
// thread.
//
// Operands and results stay alive until the future completes (xla/ffi/api/c_api.h), so they are
// sent and received in place.
#include "xla_ffi/handlers.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/base/copy.h"
#include "csrc/base/huge_pages.h"
#include "csrc/collectives/call_site.h"
#include "csrc/collectives/reduce.h"
#include "csrc/collectives/runtime.h"
#include "xla/ffi/api/ffi.h"
#include "xla_ffi/site_state.h"
#include "xla_ffi/status.h"

namespace uccl::xla_ffi {

ffi::TypeId SiteState::id = {};

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

namespace {

ffi::TypeInfo kSiteStateInfo = ffi::MakeTypeInfo<SiteState>();

Status Invalid(const std::string& op, StatusCode code, std::string detail) {
  Status s = Status::Error(code, std::move(detail));
  s.op = op;
  return s;
}

std::vector<int64_t> ToVector(ffi::Span<const int64_t> span) { return {span.begin(), span.end()}; }

bool Reduces(coll::OpKind kind) {
  return kind == coll::OpKind::kAllReduce || kind == coll::OpKind::kReduceScatter;
}

void CopyUnlessSame(const ffi::AnyBuffer& from, const ffi::AnyBuffer& to) {
  if (from.untyped_data() != to.untyped_data() && from.size_bytes() > 0)
    CopyBytes(to.untyped_data(), from.untyped_data(), from.size_bytes());
}

// Elements of a rank's result, given those of its operand.
uint64_t ResultElements(const coll::CallSiteSpec& spec, uint64_t elements) {
  const auto n = static_cast<uint64_t>(spec.group_size);
  if (spec.kind == coll::OpKind::kAllGather) return elements * n;
  if (spec.kind == coll::OpKind::kReduceScatter) return elements / n;
  return elements;
}

}  // namespace

Status CheckBuffers(const coll::CallSite& site, const ffi::AnyBuffer& x, const ffi::AnyBuffer& y,
                    coll::DType dtype) {
  const coll::CallSiteSpec& spec = site.spec();
  if (dtype == coll::DType::kInvalid) {
    return Invalid(spec.label, StatusCode::kUnsupported,
                   "element type number " + std::to_string(static_cast<int>(x.element_type())) +
                       " is not known here");
  }
  const uint64_t element = coll::DTypeBytes(dtype);
  const uint64_t want = ResultElements(spec, x.element_count());
  const bool same = spec.kind == coll::OpKind::kRaggedAllToAll || y.element_count() == want;
  if (x.element_type() != y.element_type() || x.size_bytes() != x.element_count() * element ||
      !same) {
    return Invalid(spec.label, StatusCode::kInvalidArgument,
                   "operand has " + std::to_string(x.size_bytes()) + " bytes and result " +
                       std::to_string(y.size_bytes()) + ", expected " +
                       std::to_string(x.element_count() * element) + " and " +
                       std::to_string(want * element));
  }
  if (Reduces(spec.kind) && !coll::ReduceSupported(dtype, spec.reduction)) {
    return Invalid(spec.label, StatusCode::kUnsupported,
                   std::string("no ") + coll::ReduceOpName(spec.reduction) + " for " +
                       coll::DTypeName(dtype) + "; convert the operand to a wider type first");
  }
  const auto dims = x.dimensions();
  const bool rows =
      spec.kind == coll::OpKind::kAllToAll || spec.kind == coll::OpKind::kReduceScatter;
  if (rows && (dims.size() == 0 || dims[0] != spec.group_size)) {
    return Invalid(
        spec.label, StatusCode::kInvalidArgument,
        "the leading dimension must be the group size " + std::to_string(spec.group_size));
  }
  return Status::Ok();
}

Result<std::shared_ptr<coll::CallSite>> MakeSite(
    int64_t site, int64_t position, std::string_view label, std::string_view module,
    std::string_view kind, int64_t group_size, ffi::Span<const int64_t> groups,
    ffi::Span<const int64_t> devices, ffi::Span<const int64_t> processes, int64_t ordered,
    std::string_view reduction, int64_t any_order, ffi::Span<const int64_t> permutation,
    int64_t root, int64_t fill) {
  coll::CallSiteSpec spec;
  spec.site = site;
  spec.position = position;
  spec.label = std::string(label);
  spec.module = std::string(module);
  spec.group_size = group_size;
  spec.groups = ToVector(groups);
  spec.devices = ToVector(devices);
  spec.processes = ToVector(processes);
  spec.ordered = ordered != 0;
  spec.any_order = any_order != 0;
  spec.permutation = ToVector(permutation);
  spec.root = root;
  spec.fill = fill != 0;
  const auto parsed = coll::ParseOpKind(kind);
  if (!parsed) {
    return Invalid(spec.label, StatusCode::kInvalidArgument,
                   "unknown operation `" + std::string(kind) + "`");
  }
  spec.kind = *parsed;
  if (Reduces(spec.kind)) {
    const auto op = coll::ParseReduceOp(reduction);
    if (!op) {
      return Invalid(
          spec.label, StatusCode::kInvalidArgument,
          "unknown reduction `" + std::string(reduction) + "`; use sum, max, min, prod, and, or");
    }
    spec.reduction = *op;
  }
  return coll::CallSite::Make(std::move(spec), &coll::TheRuntime().instances(),
                              static_cast<uint64_t>(syscall(SYS_gettid)));
}

namespace {

// Zeros in `y` where no slice of `call` lands.
void ZeroTheRest(const coll::Call& call, const ffi::AnyBuffer& y) {
  std::vector<std::pair<uint64_t, uint64_t>> slices;  // begin, end
  for (const auto& slice : call.ragged) {
    if (slice.receive_bytes > 0)
      slices.emplace_back(slice.receive_offset, slice.receive_offset + slice.receive_bytes);
  }
  slices.emplace_back(y.size_bytes(), y.size_bytes());
  std::sort(slices.begin(), slices.end());
  auto* bytes = static_cast<std::byte*>(y.untyped_data());
  uint64_t done = 0;
  for (const auto& [begin, end] : slices) {
    if (begin > done) std::memset(bytes + done, 0, begin - done);
    done = std::max(done, end);
  }
}

// Arguments 1 to 5 of a ragged exchange: the operand that the result starts from (without rows:
// zeros, or with fill=0 anything), then int32 vectors with an entry for each member: where its rows
// start in the operand and how many go to it, where its rows start in the result and how many come
// from it. Copies the first into the result (XLA lets them share a buffer where it can) and checks
// every range.
Status ReadRagged(const coll::CallSite& site, const ffi::AnyBuffer& x, ffi::RemainingArgs rest,
                  const ffi::AnyBuffer& y, coll::DType dtype, coll::Call* call) {
  const coll::CallSiteSpec& spec = site.spec();
  const auto invalid = [&](std::string detail) {
    return Invalid(spec.label, StatusCode::kInvalidArgument, std::move(detail));
  };
  constexpr size_t kVectors = 4;
  constexpr const char* kNames[kVectors] = {"input_offsets", "send_sizes", "output_offsets",
                                            "recv_sizes"};
  if (rest.size() < 1 + kVectors) return invalid("needs an output operand and four size vectors");
  const auto start = rest.get<ffi::AnyBuffer>(0);
  if (!start.has_value() || (start->size_bytes() != y.size_bytes() && start->size_bytes() != 0))
    return invalid("the output operand must have the size of the result, or no rows");
  const int32_t* values[kVectors] = {};
  for (size_t v = 0; v < kVectors; ++v) {
    const auto vector = rest.get<ffi::AnyBuffer>(1 + v);
    if (!vector.has_value() || vector->element_type() != ffi::DataType::S32 ||
        vector->element_count() != static_cast<size_t>(spec.group_size)) {
      return invalid(std::string(kNames[v]) + " must be int32[" + std::to_string(spec.group_size) +
                     "]");
    }
    values[v] = static_cast<const int32_t*>(vector->untyped_data());
  }
  const auto rows_of = [](const ffi::AnyBuffer& buffer) {
    return buffer.dimensions().size() == 0 ? 0 : buffer.dimensions()[0];
  };
  const int64_t rows[2] = {rows_of(x), rows_of(y)};
  if (rows[0] == 0 || rows[1] == 0) return invalid("operand and output must have rows");
  const uint64_t row = x.element_count() / static_cast<uint64_t>(rows[0]) * coll::DTypeBytes(dtype);
  for (int64_t m = 0; m < spec.group_size; ++m) {
    for (size_t side = 0; side < 2; ++side) {
      const int64_t offset = values[2 * side][m], size = values[2 * side + 1][m];
      if (offset < 0 || size < 0 || (size > 0 && offset + size > rows[side])) {
        return invalid(std::string(kNames[2 * side]) + "[" + std::to_string(m) +
                       "]=" + std::to_string(offset) + " and " + kNames[2 * side + 1] + "[" +
                       std::to_string(m) + "]=" + std::to_string(size) + " are not within the " +
                       std::to_string(rows[side]) + " rows of the " +
                       (side == 0 ? "operand" : "output"));
      }
    }
    call->ragged.push_back(
        {static_cast<uint64_t>(values[0][m]) * row, static_cast<uint64_t>(values[1][m]) * row,
         static_cast<uint64_t>(values[2][m]) * row, static_cast<uint64_t>(values[3][m]) * row});
  }
  if (start->size_bytes() == 0) {
    if (spec.fill) ZeroTheRest(*call, y);
  } else {
    CopyUnlessSame(*start, y);
  }
  return Status::Ok();
}

ffi::Future Execute(SiteState* state, int32_t device, ffi::RunId run, ffi::AnyBuffer x,
                    ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                    ffi::RemainingRets more) {
  ffi::Promise promise;
  ffi::Future future(promise);
  coll::Call call;
  call.site = state->site;
  call.device = device;
  call.run = run.run_id;
  call.dtype = ToDType(x.element_type());
  const coll::OpKind kind = state->site->spec().kind;
  AdviseHugePages(y->untyped_data(), y->size_bytes());
  Status status = CheckBuffers(*state->site, x, *y, call.dtype);
  if (status.ok() && kind == coll::OpKind::kRaggedAllToAll)
    status = ReadRagged(*state->site, x, rest, *y, call.dtype, &call);
  if (!status.ok()) {
    // The other members wait for this rank, so they must hear of it.
    call.done = [promise](const Status& s) mutable { promise.SetError(ToError(s)); };
    coll::TheRuntime().Reject(std::move(call), status);
    return future;
  }
  // Last come: the partition id where the module does not know its devices, a token in strict
  // order. A barrier hands its operands through.
  if (ffi::Error error = ReadPartition(rest, &call); !error.success()) {
    promise.SetError(std::move(error));
    return future;
  }
  if (kind == coll::OpKind::kBarrier) {
    CopyUnlessSame(x, *y);
    for (size_t i = 0; i < more.size(); ++i) {
      const auto from = rest.get<ffi::AnyBuffer>(i);
      auto to = more.get<ffi::AnyBuffer>(i);
      if (from.has_value() && to.has_value()) CopyUnlessSame(*from, **to);
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

}  // namespace

ffi::Error ReadPartition(ffi::RemainingArgs rest, coll::Call* call) {
  for (size_t i = 0; i < rest.size(); ++i) {
    const auto extra = rest.get<ffi::AnyBuffer>(i);
    if (!extra.has_value()) return extra.error();
    if (extra->element_type() == ffi::DataType::U32 && extra->dimensions().size() == 0 &&
        call->site->spec().devices.empty()) {
      call->partition = *static_cast<const uint32_t*>(extra->untyped_data());
    }
  }
  return ffi::Error::Success();
}

namespace {

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate<SiteState>(), BindSite());

XLA_FFI_DEFINE_HANDLER(kExecute, Execute, BindOperation());

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
XLA_FFI_Error* UcclCollectiveInstantiate(XLA_FFI_CallFrame* frame) {
  if (auto* error = uccl::xla_ffi::RegisterTypeOnce(frame->api)) return error;
  return uccl::xla_ffi::kInstantiate(frame);
}
XLA_FFI_Error* UcclCollectiveExecute(XLA_FFI_CallFrame* frame) {
  return uccl::xla_ffi::kExecute(frame);
}
}
