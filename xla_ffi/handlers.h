// The custom calls: what XLA:CPU calls. Each has an instantiate stage, which parses the attributes
// once, and an execute stage, which hands one rank's call to the runtime and returns a future at
// once.
#pragma once

#include "xla/ffi/api/c_api.h"

extern "C" {
XLA_FFI_Error* UcclAllToAllInstantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclAllToAllExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclAllReduceInstantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclAllReduceExecute(XLA_FFI_CallFrame* frame);
}
