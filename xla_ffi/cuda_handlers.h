// Custom calls on a GPU: kernels on the stream that XLA gives, nothing on the host. They make up
// the shared object jax_uccl/_uccl_cuda.so, which jax_uccl/_src/cuda_module.py opens when JAX has a
// CUDA backend; this header and its .cc compile without CUDA.
#pragma once

#include "xla/ffi/api/c_api.h"

#define UCCL_EXPORTED __attribute__((visibility("default")))

extern "C" {
// Called once, before the handlers are registered, when the process has a CUDA context: makes what
// they share. Null, or why it failed.
UCCL_EXPORTED const char* UcclCudaPrepare();
// The table of csrc/cuda/device.h, for the handlers of collectives, which are part of _uccl.
UCCL_EXPORTED const void* UcclCudaDevice();
// jax_uccl_take_rows, jax_uccl_fold_rows: csrc/cuda/rows.h and fold.h, the same results as on CPU.
UCCL_EXPORTED XLA_FFI_Error* UcclCudaTakeRows(XLA_FFI_CallFrame* frame);
UCCL_EXPORTED XLA_FFI_Error* UcclCudaFoldRows(XLA_FFI_CallFrame* frame);
// jax_uccl_require: csrc/cuda/limit.h; what it finds is told by the next such call.
UCCL_EXPORTED XLA_FFI_Error* UcclCudaRequire(XLA_FFI_CallFrame* frame);
}
