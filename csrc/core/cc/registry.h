// The congestion controllers that exist. To add one: a file beside this one, a row in registry.cc
// and one in docs/congestion_control.md.
#pragma once

#include <span>
#include <string>

#include "csrc/base/status.h"
#include "csrc/core/cc/congestion_controller.h"

namespace uccl::core {

// What makes a controller slow down. Property tests hold each row to exactly these; a timeout slows
// down every one that has any.
struct CongestionSignals {
  bool loss = false, ecn = false, delay = false;
};

struct CongestionControllerRow {
  const char* name;
  std::unique_ptr<CongestionController> (*make)(const CongestionParams& params);
  const char* summary;
  CongestionSignals signals;
  const char* source;    // where it was published
  const char* good_for;  // on which networks
};
std::span<const CongestionControllerRow> CongestionControllers();

// kInvalidArgument with the known names for an unknown one.
Result<std::unique_ptr<CongestionController>> MakeCongestionController(
    const std::string& name, const CongestionParams& params);

}  // namespace uccl::core
