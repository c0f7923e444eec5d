// One status line, with the XLA code of its row in csrc/base/status_codes.inc.
#include "xla_ffi/status.h"

namespace uccl::xla_ffi {

xla::ffi::Error ToError(const Status& status) {
  switch (status.code) {
    case StatusCode::kOk:
      return xla::ffi::Error::Success();
#define UCCL_STATUS(enumerator, name, ffi_code, python, meaning) \
  case StatusCode::enumerator:                                   \
    return xla::ffi::Error(xla::ffi::ErrorCode::ffi_code, status.ToString());
#include "csrc/base/status_codes.inc"
#undef UCCL_STATUS
  }
  return xla::ffi::Error(xla::ffi::ErrorCode::kInternal, "uccl: status with an unknown code");
}

}  // namespace uccl::xla_ffi
