// What the handlers on a stream of a device share: the state of their custom calls, and the way
// from it to the call of a rank.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "csrc/base/status.h"
#include "csrc/collectives/call_site.h"
#include "csrc/collectives/stream_call.h"
#include "csrc/cuda/device.h"
#include "csrc/executor/stream_program.h"
#include "xla/ffi/api/ffi.h"

namespace uccl::xla_ffi {

namespace ffi = ::xla::ffi;

// As SiteState. A type of its own, because the plugin of a device has a registry of its own, which
// gives the type another number. Made and registered by stream_handlers.cc.
struct StreamState {
  static ffi::TypeId id;
  std::shared_ptr<coll::CallSite> site;

  // The call of the device with this ordinal, which stays as long as the executable: what XLA has
  // recorded of its launches refers to its memory. So a later one cannot take its place:
  // kUnsupported.
  Status Keep(int32_t ordinal, const std::shared_ptr<coll::StreamCall>& call);

 private:
  std::mutex mutex_;  // guards calls_
  std::map<int32_t, std::shared_ptr<coll::StreamCall>> calls_;
};

Status Refuse(const coll::CallSite& site, StatusCode code, std::string detail);
// Null before the first one was attached.
const cuda::Device* AttachedDevice();
// That of the device with this ordinal; opened by the first call, with the program that `program`
// makes where it is not null. `x` says what is exchanged.
Result<std::shared_ptr<coll::StreamCall>> CallOf(
    StreamState* state, int32_t ordinal, const ffi::AnyBuffer& x,
    std::function<std::shared_ptr<executor::StreamProgram>()> program);

}  // namespace uccl::xla_ffi
