// The one place where native Status becomes an XLA FFI error.
#pragma once

#include "csrc/base/status.h"
#include "xla/ffi/api/ffi.h"

namespace uccl::xla_ffi {

xla::ffi::Error ToError(const Status& status);

}  // namespace uccl::xla_ffi
