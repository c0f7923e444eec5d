// Counters of several engines of one process as those of one.
#pragma once

#include "csrc/engine/engine.h"

namespace uccl::engine {

// Adds `from` to `into`: counts and bytes add up; round trips are those of the engine that has the
// longer one; the paths of `from` follow those of `into`.
void MergeStats(const EngineStats& from, EngineStats* into);

}  // namespace uccl::engine
