// Custom calls of one rank, which communicate nothing: they return when they are done.
#pragma once

#include "xla/ffi/api/c_api.h"

extern "C" {
// jax_uccl_require: fails the program where a value is above a limit.
XLA_FFI_Error* UcclRequire(XLA_FFI_CallFrame* frame);
// jax_uccl_encode_fp8, jax_uccl_decode_fp8: csrc/moe/fp8.h.
XLA_FFI_Error* UcclEncodeFp8(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclDecodeFp8(XLA_FFI_CallFrame* frame);
// jax_uccl_count_before, jax_uccl_take_rows, jax_uccl_fold_rows: csrc/moe/rows.h.
XLA_FFI_Error* UcclCountBefore(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclTakeRows(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* UcclFoldRows(XLA_FFI_CallFrame* frame);
}
