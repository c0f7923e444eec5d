// The custom calls: what XLA:CPU calls. Each has an instantiate stage, which parses the attributes
// once, and an execute stage, which hands one rank's call to the runtime and returns a future at
// once.
#pragma once

#include "xla/ffi/api/c_api.h"

extern "C" {
// Of every operation; which one it is, is an attribute.
XLA_FFI_Error* UcclCollectiveInstantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclCollectiveExecute(XLA_FFI_CallFrame* frame);
}
