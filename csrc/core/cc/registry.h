// The congestion controllers that exist. To add one: a file beside this one and a row in registry.cc.
#pragma once

#include <span>
#include <string>

#include "csrc/base/status.h"
#include "csrc/core/cc/congestion_controller.h"

namespace uccl::core {

struct CongestionControllerRow {
  const char* name;
  std::unique_ptr<CongestionController> (*make)(const CongestionParams& params);
  const char* summary;
};
std::span<const CongestionControllerRow> CongestionControllers();

// kInvalidArgument with the known names for an unknown one.
Result<std::unique_ptr<CongestionController>> MakeCongestionController(const std::string& name,
                                                                       const CongestionParams& params);

}  // namespace uccl::core
