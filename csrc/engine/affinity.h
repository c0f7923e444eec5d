// Which processor each engine thread is bound to: the setting engine_cpus against the processors
// that the process may use. Pure, but for AllowedCpus.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "csrc/base/status.h"

namespace uccl::engine {

// Those the calling thread may run on, ascending; threads that it starts inherit them. Empty where
// the system does not tell.
std::vector<int> AllowedCpus();

// "0-3,8" for 0, 1, 2, 3, 8.
std::string CpuListText(std::span<const int> cpus);

// The processor of each of `threads` threads of process number `process`; empty: they stay unbound.
// `name` and `variable` are those of the setting, for errors.
//   ""       unbound
//   "auto"   the allowed ones in turn, process after process: of those on one host each gets its
//   own
//            as long as there are enough
//   "3,5-7"  these in turn; kInvalidArgument for a text that is no such list, and for a processor
//            that is not allowed
Result<std::vector<int>> PlanCpus(const std::string& setting, std::span<const int> allowed,
                                  int threads, int process, const char* name = "engine_cpus",
                                  const char* variable = "JAX_UCCL_ENGINE_CPUS");

}  // namespace uccl::engine
