// The receiver schedulers that exist. To add one: a file beside this one, a row in registry.cc and
// one in docs/congestion_control.md.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "csrc/base/status.h"
#include "csrc/core/credit/receiver_scheduler.h"

namespace uccl::core {

struct ReceiverSchedulerRow {
  const char* name;
  std::unique_ptr<ReceiverScheduler> (*make)(const CreditParams& params);  // null: senders decide
  const char* summary;
  const char* source;  // where it was published
};
std::span<const ReceiverSchedulerRow> ReceiverSchedulers();

// Null for "none": senders are not held back by credit. kInvalidArgument for an unknown name, with
// the known ones, and for a rate or a quantum that is not above 0.
Result<std::unique_ptr<ReceiverScheduler>> MakeReceiverScheduler(const std::string& name,
                                                                 const CreditParams& params);

}  // namespace uccl::core
