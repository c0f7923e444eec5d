// The table of congestion controllers.
#include "csrc/core/cc/registry.h"

#include "csrc/core/cc/cubic.h"
#include "csrc/core/cc/dcqcn.h"
#include "csrc/core/cc/none.h"
#include "csrc/core/cc/swift.h"
#include "csrc/core/cc/timely.h"

namespace uccl::core {
namespace {

constexpr CongestionControllerRow kRows[] = {
    {"none", &MakeFixedWindow, "fixed window", {}, "-", "loopback, networks without contention"},
    {"cubic",
     &MakeCubic,
     "window grows with the cube of the time since the last loss",
     {.loss = true, .ecn = true},
     "RFC 9438",
     "any network that drops, long round trips"},
    {"timely",
     &MakeTimely,
     "rate follows the gradient of the round trip",
     {.loss = true, .delay = true},
     "SIGCOMM'15, patched as in CoNEXT'16",
     "data centre without ECN, steady round trips"},
    {"swift",
     &MakeSwift,
     "window holds the round trip at a target",
     {.loss = true, .delay = true},
     "SIGCOMM'20",
     "data centre, large incasts"},
    {"dcqcn",
     &MakeDcqcn,
     "rate cut by ECN marks, recovered by timer and byte counter",
     {.loss = true, .ecn = true},
     "SIGCOMM'15",
     "RoCE-like data centre whose switches mark"},
};

}  // namespace

std::span<const CongestionControllerRow> CongestionControllers() { return kRows; }

Result<std::unique_ptr<CongestionController>> MakeCongestionController(
    const std::string& name, const CongestionParams& params) {
  std::string known;
  for (const CongestionControllerRow& row : kRows) {
    if (name == row.name) return row.make(params);
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return Status::Error(StatusCode::kInvalidArgument,
                       "unknown congestion_control `" + name + "`; known: " + known);
}

}  // namespace uccl::core
