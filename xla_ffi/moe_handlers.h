// The custom calls of dispatch and combine through commands and proxies; their instantiate stage is
// that of all operations (handlers.h).
#pragma once

#include "xla/ffi/api/c_api.h"

extern "C" {
XLA_FFI_Error* UcclMoeDispatch(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclMoeCombine(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclMoeExchange(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclMoeRelay(XLA_FFI_CallFrame* frame);
}
