// Recycled entropies: see reps.cc.
#pragma once

#include <memory>

#include "csrc/core/path/path_selector.h"

namespace uccl::core {

std::unique_ptr<PathSelector> MakeReps(uint64_t seed);

}  // namespace uccl::core
