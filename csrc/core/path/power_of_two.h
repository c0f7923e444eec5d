// Power of two choices on smoothed RTT: see power_of_two.cc.
#pragma once

#include <memory>

#include "csrc/core/path/path_selector.h"

namespace uccl::core {

std::unique_ptr<PathSelector> MakePowerOfTwo(uint64_t seed);

}  // namespace uccl::core
