// DCQCN (Zhu et al., SIGCOMM'15): rate-based on ECN marks; for RoCE-like networks whose switches
// mark early.
#pragma once

#include "csrc/core/cc/congestion_controller.h"

namespace uccl::core {

std::unique_ptr<CongestionController> MakeDcqcn(const CongestionParams& params);

}  // namespace uccl::core
