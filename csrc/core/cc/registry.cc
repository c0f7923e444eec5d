// The table of congestion controllers.
#include "csrc/core/cc/registry.h"

#include "csrc/core/cc/none.h"

namespace uccl::core {
namespace {

constexpr CongestionControllerRow kRows[] = {
    {"none", &MakeFixedWindow, "fixed window"},
};

}  // namespace

std::span<const CongestionControllerRow> CongestionControllers() { return kRows; }

Result<std::unique_ptr<CongestionController>> MakeCongestionController(const std::string& name,
                                                                       const CongestionParams& params) {
  std::string known;
  for (const CongestionControllerRow& row : kRows) {
    if (name == row.name) return row.make(params);
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return Status::Error(StatusCode::kInvalidArgument,
                       "unknown congestion_control `" + name + "`; known: " + known);
}

}  // namespace uccl::core
