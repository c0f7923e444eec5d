// "none": a fixed window. For networks without loss and for loopback, where the window is set from
// the peer's receive buffer.
#pragma once

#include "csrc/core/cc/congestion_controller.h"

namespace uccl::core {

std::unique_ptr<CongestionController> MakeFixedWindow(const CongestionParams& params);

}  // namespace uccl::core
