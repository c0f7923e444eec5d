// The custom calls where XLA runs on a stream of a device: an execution launches kernels, and
// nothing else (csrc/collectives/stream_call.h). The device is a table that a shared object with
// kernels brings (csrc/cuda/device.h), so this compiles without CUDA.
//
// Stages: instantiate parses the attributes; initialize opens the call, which is where memory and
// regions come from, and refuses what has failed; execute launches. XLA calls initialize before
// each execution, recorded ones too.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/cuda/device.h"
#include "xla/ffi/api/c_api.h"

namespace uccl::xla_ffi {

// Before the handlers are registered. `device` stays valid for good; `ids` are the jax.Device.ids
// by the ordinals that XLA gives to handlers. kInvalidArgument when it is of another build.
Status AttachDevice(const cuda::Device* device, std::vector<int64_t> ids);

}  // namespace uccl::xla_ffi

extern "C" {
XLA_FFI_Error* UcclStreamInstantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclStreamInitialize(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclStreamExecute(XLA_FFI_CallFrame* frame);
}
