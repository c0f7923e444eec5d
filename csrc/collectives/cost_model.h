// What a schedule costs, without running it: LogGP (Alexandrov et al., SPAA'95) with a class of
// link for processes of one host and one for hosts, and linear terms for copies and reductions.
//
// A stage takes as long as its slowest process; stages follow one another. All arithmetic is in
// integers, because all processes must come to the same choice, whatever their compilers do with
// fractions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/collectives/algorithms/registry.h"
#include "csrc/collectives/schedule.h"

namespace uccl::coll {

struct CostParams {
#define UCCL_COST(name, def, help) int64_t name = def;
#include "csrc/collectives/cost_params.inc"
#undef UCCL_COST
  bool operator==(const CostParams&) const = default;
};
// Above it nothing is believed: a second for a message, a microsecond for a byte.
inline constexpr int64_t kMaxCostParam = 1'000'000'000;

struct CostRow {
  std::string name, help;
  int64_t default_value = 0;
  int64_t CostParams::* member = nullptr;
};
const std::vector<CostRow>& CostRows();
// Equal where all parameters are.
uint64_t DigestOf(const CostParams& params);

// Of an operation, in picoseconds. Of more than kExactProcesses it looks at kSampledProcesses, the
// same ones everywhere: the choice is made once for every call site and size, and may not take
// longer than the operation.
inline constexpr uint32_t kExactProcesses = 32, kSampledProcesses = 16;
uint64_t CostOf(const CostParams& params, const Algorithm& algorithm, const PlanRequest& request,
                const std::vector<Member>& group);

}  // namespace uccl::coll
