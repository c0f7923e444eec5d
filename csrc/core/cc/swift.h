// Swift (Kumar et al., SIGCOMM'20): holds the round-trip delay near a target; for data centres,
// also with thousands of senders into one port, since its window goes below one packet.
#pragma once

#include "csrc/core/cc/congestion_controller.h"

namespace uccl::core {

std::unique_ptr<CongestionController> MakeSwift(const CongestionParams& params);

}  // namespace uccl::core
