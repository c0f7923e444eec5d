// See moe_stream_handlers.h. What is launched is told in csrc/moe/slot_stream.h.
#include "xla_ffi/moe_stream_handlers.h"

#include <cstdint>
#include <memory>

#include "csrc/moe/slot_stream.h"
#include "xla_ffi/moe_arguments.h"
#include "xla_ffi/status.h"
#include "xla_ffi/stream_site.h"

namespace uccl::xla_ffi {
namespace {

// What one execution is given, as either stage sees it.
template <class Params>
struct Given {
  Params params;
  std::shared_ptr<coll::StreamCall> call;
};

template <class Params, auto kRead>
Status Take(StreamState* state, int32_t ordinal, const ffi::AnyBuffer& x, ffi::RemainingArgs rest,
            const ffi::AnyBuffer& y, ffi::RemainingRets more, Given<Params>* given) {
  const auto ranks = state->site->spec().group_size;
  Params& params = given->params;
  Status status = kRead(x, rest, y, more, &params);
  if (status.ok()) status = ReadWaited(more, ranks, &params.waited);
  if (!status.ok()) return Refuse(*state->site, status.code, status.detail);
  auto call = CallOf(state, ordinal, x, [&] {
    return std::make_shared<moe::SlotStream>(params, static_cast<uint32_t>(ranks));
  });
  if (!call.ok()) return call.status();
  given->call = std::move(call.value());
  return Status::Ok();
}

template <class Params, auto kRead>
ffi::Error Initialize(StreamState* state, int32_t ordinal, ffi::AnyBuffer x,
                      ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                      ffi::RemainingRets more) {
  Given<Params> given;
  return ToError(Take<Params, kRead>(state, ordinal, x, rest, *y, more, &given));
}

template <class Params, auto kRead>
ffi::Error Execute(StreamState* state, cuda::Stream stream, int32_t ordinal, ffi::AnyBuffer x,
                   ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                   ffi::RemainingRets more) {
  Given<Params> given;
  Status status = Take<Params, kRead>(state, ordinal, x, rest, *y, more, &given);
  if (!status.ok()) return ToError(status);
  return ToError(given.call->EnqueueProgram(stream, [&](executor::StreamProgram* program) {
    // The number of a call site says what it does, and so which program it has.
    return static_cast<moe::SlotStream*>(program)->Enqueue(stream, given.params);
  }));
}

auto BindInitialize() {
  return ffi::Ffi::BindInitialize()
      .Ctx<ffi::State<StreamState>>()
      .Ctx<ffi::DeviceOrdinal>()
      .Arg<ffi::AnyBuffer>()
      .RemainingArgs()
      .Ret<ffi::AnyBuffer>()
      .RemainingRets();
}
auto BindExecute() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<StreamState>>()
      .Ctx<ffi::PlatformStream<cuda::Stream>>()
      .Ctx<ffi::DeviceOrdinal>()
      .Arg<ffi::AnyBuffer>()
      .RemainingArgs()
      .Ret<ffi::AnyBuffer>()
      .RemainingRets();
}

constexpr auto kInitializeDispatch = Initialize<moe::Dispatch, &ReadDispatch>;
constexpr auto kExecuteDispatch = Execute<moe::Dispatch, &ReadDispatch>;
constexpr auto kInitializeCombine = Initialize<moe::Combine, &ReadCombine>;
constexpr auto kExecuteCombine = Execute<moe::Combine, &ReadCombine>;

// Compatible with command buffers, as in stream_handlers.cc.
XLA_FFI_DEFINE_HANDLER(kDispatchInitialize, kInitializeDispatch, BindInitialize());
XLA_FFI_DEFINE_HANDLER(kDispatchExecute, kExecuteDispatch, BindExecute(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kCombineInitialize, kInitializeCombine, BindInitialize());
XLA_FFI_DEFINE_HANDLER(kCombineExecute, kExecuteCombine, BindExecute(),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace
}  // namespace uccl::xla_ffi

extern "C" {
XLA_FFI_Error* UcclMoeStreamDispatchInitialize(XLA_FFI_CallFrame* frame) {
  return uccl::xla_ffi::kDispatchInitialize(frame);
}
XLA_FFI_Error* UcclMoeStreamDispatchExecute(XLA_FFI_CallFrame* frame) {
  return uccl::xla_ffi::kDispatchExecute(frame);
}
XLA_FFI_Error* UcclMoeStreamCombineInitialize(XLA_FFI_CallFrame* frame) {
  return uccl::xla_ffi::kCombineInitialize(frame);
}
XLA_FFI_Error* UcclMoeStreamCombineExecute(XLA_FFI_CallFrame* frame) {
  return uccl::xla_ffi::kCombineExecute(frame);
}
}
