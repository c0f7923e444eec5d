// See moe_stream_handlers.h. What is launched is told in csrc/moe/slot_stream.h and row_stream.h.
#include "xla_ffi/moe_stream_handlers.h"

#include <cstdint>
#include <memory>

#include "csrc/moe/row_stream.h"
#include "csrc/moe/slot_stream.h"
#include "xla_ffi/moe_arguments.h"
#include "xla_ffi/status.h"
#include "xla_ffi/stream_site.h"

namespace uccl::xla_ffi {
namespace {

// How the calls with these parameters are read and which program they have. The number of a call
// site says what it does, so a call has the program that was made for its parameters.
template <class Params>
struct Kind;

template <class Params, auto kRead>
struct OfSlots {
  static Status Read(const ffi::AnyBuffer& x, ffi::RemainingArgs rest, const ffi::AnyBuffer& y,
                     ffi::RemainingRets more, Params* params) {
    return kRead(x, rest, y, more, params);
  }
  static std::shared_ptr<executor::StreamProgram> Make(const Params& params, uint32_t ranks) {
    return std::make_shared<moe::SlotStream>(params, ranks);
  }
  static Status Enqueue(executor::StreamProgram* program, cuda::Stream stream, Params params,
                        uint32_t* waited) {
    params.waited = waited;
    return static_cast<moe::SlotStream*>(program)->Enqueue(stream, params);
  }
};
template <>
struct Kind<moe::Dispatch> : OfSlots<moe::Dispatch, &ReadDispatch> {};
template <>
struct Kind<moe::Combine> : OfSlots<moe::Combine, &ReadCombine> {};

template <>
struct Kind<moe::RowExchange> {
  static Status Read(const ffi::AnyBuffer& x, ffi::RemainingArgs rest, const ffi::AnyBuffer& y,
                     ffi::RemainingRets more, moe::RowExchange* params) {
    return ReadExchange(x, rest, y, more, params);
  }
  static std::shared_ptr<executor::StreamProgram> Make(const moe::RowExchange& params, uint32_t) {
    return std::make_shared<moe::RowStream>(params);
  }
  static Status Enqueue(executor::StreamProgram* program, cuda::Stream stream,
                        const moe::RowExchange& params, uint32_t* waited) {
    return static_cast<moe::RowStream*>(program)->Enqueue(stream, params, waited);
  }
};

// What one execution is given, as either stage sees it.
template <class Params>
struct Given {
  Params params;
  uint32_t* waited = nullptr;
  std::shared_ptr<coll::StreamCall> call;
};

template <class Params>
Status Take(StreamState* state, int32_t ordinal, const ffi::AnyBuffer& x, ffi::RemainingArgs rest,
            const ffi::AnyBuffer& y, ffi::RemainingRets more, Given<Params>* given) {
  const auto ranks = state->site->spec().group_size;
  Status status = Kind<Params>::Read(x, rest, y, more, &given->params);
  if (status.ok()) status = ReadWaited(more, ranks, &given->waited);
  if (!status.ok()) return Refuse(*state->site, status.code, status.detail);
  auto call = CallOf(state, ordinal, x, [&] {
    return Kind<Params>::Make(given->params, static_cast<uint32_t>(ranks));
  });
  if (!call.ok()) return call.status();
  given->call = std::move(call.value());
  return Status::Ok();
}

template <class Params>
ffi::Error Initialize(StreamState* state, int32_t ordinal, ffi::AnyBuffer x,
                      ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                      ffi::RemainingRets more) {
  Given<Params> given;
  return ToError(Take(state, ordinal, x, rest, *y, more, &given));
}

template <class Params>
ffi::Error Execute(StreamState* state, cuda::Stream stream, int32_t ordinal, ffi::AnyBuffer x,
                   ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> y,
                   ffi::RemainingRets more) {
  Given<Params> given;
  Status status = Take(state, ordinal, x, rest, *y, more, &given);
  if (!status.ok()) return ToError(status);
  return ToError(given.call->EnqueueProgram(stream, [&](executor::StreamProgram* program) {
    return Kind<Params>::Enqueue(program, stream, given.params, given.waited);
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

// Compatible with command buffers, as in stream_handlers.cc.
XLA_FFI_DEFINE_HANDLER(kDispatchInitialize, Initialize<moe::Dispatch>, BindInitialize());
XLA_FFI_DEFINE_HANDLER(kDispatchExecute, Execute<moe::Dispatch>, BindExecute(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kCombineInitialize, Initialize<moe::Combine>, BindInitialize());
XLA_FFI_DEFINE_HANDLER(kCombineExecute, Execute<moe::Combine>, BindExecute(),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kExchangeInitialize, Initialize<moe::RowExchange>, BindInitialize());
XLA_FFI_DEFINE_HANDLER(kExchangeExecute, Execute<moe::RowExchange>, BindExecute(),
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
XLA_FFI_Error* UcclMoeStreamExchangeInitialize(XLA_FFI_CallFrame* frame) {
  return uccl::xla_ffi::kExchangeInitialize(frame);
}
XLA_FFI_Error* UcclMoeStreamExchangeExecute(XLA_FFI_CallFrame* frame) {
  return uccl::xla_ffi::kExchangeExecute(frame);
}
}
