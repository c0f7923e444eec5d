// The table of receiver schedulers.
#include "csrc/core/credit/registry.h"

#include <utility>

#include "csrc/core/credit/eqds.h"

namespace uccl::core {
namespace {

constexpr ReceiverSchedulerRow kRows[] = {
    {"none", nullptr, "senders decide alone", "-"},
    {"eqds", &MakeEqds, "receivers pace credits at the rate of their link", "NSDI'22"},
};

}  // namespace

std::span<const ReceiverSchedulerRow> ReceiverSchedulers() { return kRows; }

Result<std::unique_ptr<ReceiverScheduler>> MakeReceiverScheduler(const std::string& name,
                                                                 const CreditParams& params) {
  std::string known;
  for (const ReceiverSchedulerRow& row : kRows) {
    known += (known.empty() ? "" : ", ") + std::string(row.name);
    if (name != row.name) continue;
    if (row.make == nullptr) return std::unique_ptr<ReceiverScheduler>();
    if (params.rate_bytes_per_s <= 0) {
      return Status::Error(StatusCode::kInvalidArgument,
                           "receiver_scheduler `" + name +
                               "` paces credits at the rate of this host's link, which is not "
                               "known; set line_rate_mbps (JAX_UCCL_LINE_RATE_MBPS)");
    }
    if (params.quantum_bytes <= 0) {
      return Status::Error(
          StatusCode::kInvalidArgument,
          "a credit of " + std::to_string(params.quantum_bytes) + " bytes, must be at least 1");
    }
    return row.make(params);
  }
  return Status::Error(StatusCode::kInvalidArgument,
                       "unknown receiver_scheduler `" + name + "`; known: " + known);
}

}  // namespace uccl::core
