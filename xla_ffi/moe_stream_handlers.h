// The custom calls of dispatch and combine in low-latency mode, and of the exchange of throughput
// mode in one level, where XLA runs on a stream of a device; their instantiate stage and their
// rules are those of stream_handlers.h.
#pragma once

#include "xla/ffi/api/c_api.h"

extern "C" {
XLA_FFI_Error* UcclMoeStreamDispatchInitialize(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclMoeStreamDispatchExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclMoeStreamCombineInitialize(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclMoeStreamCombineExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclMoeStreamExchangeInitialize(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclMoeStreamExchangeExecute(XLA_FFI_CallFrame* frame);
}
