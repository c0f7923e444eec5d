// The custom calls of dispatch and combine that move rows, by commands and proxies or in memory;
// their instantiate stage is that of all operations (handlers.h).
#pragma once

#include "xla/ffi/api/c_api.h"

extern "C" {
XLA_FFI_Error* UcclMoeDispatch(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclMoeCombine(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclMoeExchange(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclMoeReturn(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclMoeRelay(XLA_FFI_CallFrame* frame);
}
