// EQDS: receiver-driven credit with active, idle and retransmit lists.
#pragma once

#include <memory>

#include "csrc/core/credit/receiver_scheduler.h"

namespace uccl::core {

std::unique_ptr<ReceiverScheduler> MakeEqds(const CreditParams& params);

}  // namespace uccl::core
