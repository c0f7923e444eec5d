// See stream_handlers.h.
#include "xla_ffi/stream_handlers.h"

#include <atomic>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "csrc/collectives/runtime.h"
#include "csrc/collectives/stream_call.h"
#include "csrc/cuda/rows.h"
#include "xla/ffi/api/ffi.h"
#include "xla_ffi/site_state.h"
#include "xla_ffi/status.h"
#include "xla_ffi/stream_site.h"

namespace uccl::xla_ffi {
namespace {

ffi::TypeInfo kStreamStateInfo = ffi::MakeTypeInfo<StreamState>();

struct Attached {
  const cuda::Device* device = nullptr;
  std::vector<int64_t> ids;
};
// Handlers read it without a lock.
std::atomic<const Attached*> attached{nullptr};

}  // namespace

ffi::TypeId StreamState::id = {};

Status StreamState::Keep(int32_t ordinal, const std::shared_ptr<coll::StreamCall>& call) {
  std::lock_guard lock(mutex_);
  if (calls_.emplace(ordinal, call).first->second == call) return Status::Ok();
  return Refuse(*site, StatusCode::kUnsupported,
                "this program ran before jax_uccl.shutdown(), and what was recorded of it for the "
                "device cannot be used again; call jax.clear_caches() to compile it anew");
}

Status Refuse(const coll::CallSite& site, StatusCode code, std::string detail) {
  Status status = Status::Error(code, std::move(detail));
  status.op = site.spec().label;
  return status;
}

const cuda::Device* AttachedDevice() {
  // Acquire: pairs with the release in AttachDevice.
  const Attached* const at = attached.load(std::memory_order_acquire);
  return at == nullptr ? nullptr : at->device;
}

Result<std::shared_ptr<coll::StreamCall>> CallOf(
    StreamState* state, int32_t ordinal, const ffi::AnyBuffer& x,
    std::function<std::shared_ptr<executor::StreamProgram>()> program) {
  const coll::CallSite& site = *state->site;
  // Acquire: pairs with the release in AttachDevice.
  const Attached* const at = attached.load(std::memory_order_acquire);
  if (at == nullptr || ordinal < 0 || static_cast<size_t>(ordinal) >= at->ids.size()) {
    return Refuse(site, StatusCode::kUnsupported,
                  "no device with ordinal " + std::to_string(ordinal) + " was attached");
  }
  if (site.spec().devices.empty()) {
    return Refuse(site, StatusCode::kUnsupported,
                  "the module does not name its devices (it was exported, or lowered for an "
                  "AbstractMesh); lower it under jax.set_mesh(mesh) to run it here");
  }
  coll::Call call;
  call.site = state->site;
  call.device = at->ids[static_cast<size_t>(ordinal)];
  call.dtype = ToDType(x.element_type());
  const auto dims = x.dimensions();
  call.shape.assign(dims.begin(), dims.end());
  call.elements = x.element_count();
  call.stream_program = std::move(program);
  auto opened = coll::TheRuntime().StreamFor(call, at->device);
  Status status = opened.ok() ? state->Keep(ordinal, opened.value()) : opened.status();
  if (status.ok()) return opened;
  if (status.op.empty()) status.op = site.spec().label;
  return status;
}

namespace {

// A barrier hands its operands through.
Status CopyUnlessSame(const ffi::AnyBuffer& from, const ffi::AnyBuffer& to, cuda::Stream stream) {
  if (from.untyped_data() == to.untyped_data() || from.size_bytes() == 0) return Status::Ok();
  cuda::MoveRowsParams p;
  p.from = static_cast<const std::byte*>(from.untyped_data());
  p.to = static_cast<std::byte*>(to.untyped_data());
  p.from_rows = p.to_rows = p.moves = 1;
  p.from_stride = p.to_stride = p.channels = from.size_bytes();
  return AttachedDevice()->move_rows(p, stream);
}

// Arguments 1 to 5 as in ReadRagged of handlers.cc; what the vectors say is only known to kernels.
Status ReadRagged(const coll::CallSite& site, const ffi::AnyBuffer& x, ffi::RemainingArgs args,
                  const ffi::AnyBuffer& y, coll::StreamCall::Ragged* ragged) {
  const auto invalid = [&](std::string detail) {
    return Refuse(site, StatusCode::kInvalidArgument, std::move(detail));
  };
  const auto rows = [](const ffi::AnyBuffer& buffer) {
    return buffer.dimensions().size() == 0 ? 0 : static_cast<uint64_t>(buffer.dimensions()[0]);
  };
  const int32_t** const vectors[] = {&ragged->input_offsets, &ragged->send_sizes,
                                     &ragged->output_offsets, &ragged->receive_sizes};
  constexpr size_t kFirst = 2;
  if (args.size() < kFirst + std::size(vectors))
    return invalid("needs an output operand and four size vectors");
  const auto start = args.get<ffi::AnyBuffer>(1);
  if (!start.has_value() || (start->size_bytes() != y.size_bytes() && start->size_bytes() != 0))
    return invalid("the output operand must have the size of the result, or no rows");
  for (size_t v = 0; v < std::size(vectors); ++v) {
    const auto vector = args.get<ffi::AnyBuffer>(kFirst + v);
    if (!vector.has_value() || vector->element_type() != ffi::DataType::S32 ||
        vector->element_count() != static_cast<size_t>(site.spec().group_size)) {
      return invalid("offsets and sizes must be int32[" + std::to_string(site.spec().group_size) +
                     "]");
    }
    *vectors[v] = static_cast<const int32_t*>(vector->untyped_data());
  }
  ragged->input_rows = rows(x), ragged->output_rows = rows(y);
  if (ragged->input_rows == 0 || ragged->output_rows == 0)
    return invalid("operand and output must have rows");
  ragged->row_bytes = x.size_bytes() / ragged->input_rows;
  if (y.size_bytes() != ragged->row_bytes * ragged->output_rows)
    return invalid("operand and output must have rows of one size");
  if (start->size_bytes() > 0) ragged->start = static_cast<const std::byte*>(start->untyped_data());
  ragged->fill = site.spec().fill;
  return Status::Ok();
}

// The first operand and result, of any kind of operation.
struct Operands {
  ffi::AnyBuffer x, y;
};
ffi::ErrorOr<Operands> Read(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  const auto x = args.get<ffi::AnyBuffer>(0);
  auto y = rets.get<ffi::AnyBuffer>(0);
  if (!x.has_value()) return ffi::Unexpected(x.error());
  if (!y.has_value()) return ffi::Unexpected(y.error());
  return Operands{*x, **y};
}

Result<std::shared_ptr<coll::StreamCall>> CollectiveOf(StreamState* state, int32_t ordinal,
                                                       const Operands& operands) {
  const auto& [x, y] = operands;
  const coll::DType dtype = ToDType(x.element_type());
  if (Status s = CheckBuffers(*state->site, x, y, dtype); !s.ok()) return s;
  return CallOf(state, ordinal, x, nullptr);
}

ffi::Error Initialize(StreamState* state, int32_t ordinal, ffi::RemainingArgs args,
                      ffi::RemainingRets rets) {
  const auto operands = Read(args, rets);
  if (!operands.has_value()) return operands.error();
  const auto call = CollectiveOf(state, ordinal, *operands);
  return call.ok() ? ffi::Error::Success() : ToError(call.status());
}

ffi::Error Execute(StreamState* state, cuda::Stream stream, int32_t ordinal,
                   ffi::RemainingArgs args, ffi::RemainingRets rets) {
  const auto operands = Read(args, rets);
  if (!operands.has_value()) return operands.error();
  const auto& [x, y] = *operands;
  auto call = CollectiveOf(state, ordinal, *operands);
  if (!call.ok()) return ToError(call.status());
  const auto* const from = static_cast<const std::byte*>(x.untyped_data());
  auto* const to = static_cast<std::byte*>(y.untyped_data());
  if (state->site->spec().kind == coll::OpKind::kRaggedAllToAll) {
    coll::StreamCall::Ragged ragged;
    Status read = ReadRagged(*state->site, x, args, y, &ragged);
    return ToError(read.ok() ? call.value()->EnqueueRagged(stream, from, to, ragged) : read);
  }
  Status status = call.value()->Enqueue(stream, from, to);
  if (state->site->spec().kind != coll::OpKind::kBarrier) return ToError(status);
  for (size_t i = 0; status.ok() && i < rets.size() && i < args.size(); ++i) {
    const auto from = args.get<ffi::AnyBuffer>(i);
    auto to = rets.get<ffi::AnyBuffer>(i);
    if (from.has_value() && to.has_value()) status = CopyUnlessSame(*from, **to, stream);
  }
  return ToError(status);
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate<StreamState>(), BindSite());

XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       ffi::Ffi::BindInitialize()
                           .Ctx<ffi::State<StreamState>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets());

// Compatible with command buffers: launches whose parameters are XLA's buffers and memory that
// initialize has made.
XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<StreamState>>()
                           .Ctx<ffi::PlatformStream<cuda::Stream>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets(),
                       {ffi::Traits::kCmdBufferCompatible});

// As in handlers.cc.
XLA_FFI_Error* RegisterTypeOnce(const XLA_FFI_Api* api) {
  static std::once_flag once;
  static XLA_FFI_Error* error = nullptr;
  std::call_once(once, [&] {
    error = ffi::Ffi::RegisterTypeId(api, "jax_uccl_stream_call_site", &StreamState::id,
                                     &kStreamStateInfo);
  });
  return std::exchange(error, nullptr);
}

}  // namespace

Status AttachDevice(const cuda::Device* device, std::vector<int64_t> ids) {
  if (device == nullptr || device->version != cuda::Device::kVersion) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "_uccl_cuda.so is of another build than _uccl; build them together");
  }
  // Never freed: handlers may read each until the process ends.
  static std::mutex mutex;
  static auto& all = *new std::list<Attached>();
  std::lock_guard lock(mutex);
  all.push_back({device, std::move(ids)});
  attached.store(&all.back(), std::memory_order_release);
  return Status::Ok();
}

}  // namespace uccl::xla_ffi

extern "C" {
XLA_FFI_Error* UcclStreamInstantiate(XLA_FFI_CallFrame* frame) {
  if (auto* error = uccl::xla_ffi::RegisterTypeOnce(frame->api)) return error;
  return uccl::xla_ffi::kInstantiate(frame);
}
XLA_FFI_Error* UcclStreamInitialize(XLA_FFI_CallFrame* frame) {
  return uccl::xla_ffi::kInitialize(frame);
}
XLA_FFI_Error* UcclStreamExecute(XLA_FFI_CallFrame* frame) {
  return uccl::xla_ffi::kExecute(frame);
}
}
