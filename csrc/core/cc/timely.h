// TIMELY (Mittal et al., SIGCOMM'15), patched as in "ECN or Delay" (Zhu et al., CoNEXT'16):
// rate-based on the gradient of the round trip; for data centres without ECN.
#pragma once

#include "csrc/core/cc/congestion_controller.h"

namespace uccl::core {

std::unique_ptr<CongestionController> MakeTimely(const CongestionParams& params);

}  // namespace uccl::core
