// What the handlers of operations share: the state of their custom calls, and what they read of
// them alike.
#pragma once

#include <memory>

#include "csrc/collectives/call_site.h"
#include "csrc/collectives/dtype.h"
#include "csrc/collectives/operation.h"
#include "xla/ffi/api/ffi.h"

namespace uccl::xla_ffi {

namespace ffi = ::xla::ffi;

// The FFI state of one custom call of one executable. The call site outlives it while operations
// are in flight. Made and registered by handlers.cc.
struct SiteState {
  static ffi::TypeId id;
  std::shared_ptr<coll::CallSite> site;
};

// What the execute stage of every operation is given: its state, the rank, the launch, and buffers.
inline auto BindOperation() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<SiteState>>()
      .Ctx<ffi::DeviceOrdinal>()
      .Ctx<ffi::RunId>()
      .Arg<ffi::AnyBuffer>()
      .RemainingArgs()
      .Ret<ffi::AnyBuffer>()
      .RemainingRets();
}

// kInvalid for what is not known here.
coll::DType ToDType(ffi::DataType type);

// The partition id, a u32 scalar among the last arguments where the module does not know its
// devices.
ffi::Error ReadPartition(ffi::RemainingArgs rest, coll::Call* call);

}  // namespace uccl::xla_ffi
