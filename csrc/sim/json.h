// A report as JSON text, for jax_uccl/_src/sim.py and whoever else reads it. docs/simulator.md
// names the fields.
#pragma once

#include <string>

#include "csrc/sim/settings.h"
#include "csrc/sim/simulator.h"

namespace uccl::sim {

std::string ToJson(const Settings& settings, const Report& report);

}  // namespace uccl::sim
