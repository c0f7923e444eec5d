// CUBIC, RFC 9438: loss-based, for any network that drops; the growth of the window is a cubic
// function of the time since the last reduction, so flows of different round trips share alike.
#pragma once

#include "csrc/core/cc/congestion_controller.h"

namespace uccl::core {

std::unique_ptr<CongestionController> MakeCubic(const CongestionParams& params);

}  // namespace uccl::core
