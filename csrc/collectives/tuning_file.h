// The file that `jax-uccl bench --tune` writes and the setting `tuning_file` names: one flat JSON
// object with the parameters of the cost model.
//
//   {"jax_uccl_tuning": 1, "note": "measured on ...", "host_latency_ns": 11000, ...}
//
// Parameters that are not given have their defaults; `note` is for people.
#pragma once

#include <string>
#include <string_view>

#include "csrc/base/status.h"
#include "csrc/collectives/cost_model.h"

namespace uccl::coll {

inline constexpr int64_t kTuningVersion = 1;

// kInvalidArgument names the file, the place and what is allowed there.
Result<CostParams> ReadTuningFile(const std::string& path);
// The same from text; `name` is for errors.
Result<CostParams> ParseTuning(std::string_view text, const std::string& name);

}  // namespace uccl::coll
