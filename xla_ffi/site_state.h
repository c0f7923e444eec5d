// What the handlers of operations share: the state of their custom calls, and what they read of
// them alike.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "csrc/base/status.h"
#include "csrc/collectives/call_site.h"
#include "csrc/collectives/dtype.h"
#include "csrc/collectives/operation.h"
#include "xla/ffi/api/ffi.h"
#include "xla_ffi/status.h"

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

// The attributes of every operation (jax_uccl/_src/lowering.py), and the call site that they make.
inline auto BindSite() {
  return ffi::Ffi::BindInstantiate()
      .Attr<int64_t>("site")
      .Attr<int64_t>("position")
      .Attr<std::string_view>("label")
      .Attr<std::string_view>("module")
      .Attr<std::string_view>("kind")
      .Attr<int64_t>("group_size")
      .Attr<ffi::Span<const int64_t>>("groups")
      .Attr<ffi::Span<const int64_t>>("devices")
      .Attr<ffi::Span<const int64_t>>("processes")
      .Attr<int64_t>("ordered")
      .Attr<std::string_view>("reduction")
      .Attr<int64_t>("any_order")
      .Attr<ffi::Span<const int64_t>>("permutation")
      .Attr<int64_t>("root")
      .Attr<int64_t>("fill");
}
Result<std::shared_ptr<coll::CallSite>> MakeSite(
    int64_t site, int64_t position, std::string_view label, std::string_view module,
    std::string_view kind, int64_t group_size, ffi::Span<const int64_t> groups,
    ffi::Span<const int64_t> devices, ffi::Span<const int64_t> processes, int64_t ordered,
    std::string_view reduction, int64_t any_order, ffi::Span<const int64_t> permutation,
    int64_t root, int64_t fill);
// As the instantiate stage of a platform, whose state is `State`.
template <class State>
struct Instantiate {
  template <class... Attributes>
  ffi::ErrorOr<std::unique_ptr<State>> operator()(Attributes... attributes) const {
    auto made = MakeSite(attributes...);
    if (!made.ok()) return ffi::Unexpected(ToError(made.status()));
    auto state = std::make_unique<State>();
    state->site = std::move(made.value());
    return ffi::ErrorOr<std::unique_ptr<State>>(std::move(state));
  }
};

// What the operation needs of the buffers, or why it cannot take them.
Status CheckBuffers(const coll::CallSite& site, const ffi::AnyBuffer& x, const ffi::AnyBuffer& y,
                    coll::DType dtype);

// kInvalid for what is not known here.
coll::DType ToDType(ffi::DataType type);

// The partition id, a u32 scalar among the last arguments where the module does not know its
// devices.
ffi::Error ReadPartition(ffi::RemainingArgs rest, coll::Call* call);

}  // namespace uccl::xla_ffi
