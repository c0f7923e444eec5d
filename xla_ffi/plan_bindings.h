// Algorithms and their costs for Python; see plan_bindings.cc.
#pragma once

#include <nanobind/nanobind.h>

namespace uccl::xla_ffi {

void DefinePlans(nanobind::module_& m);

}  // namespace uccl::xla_ffi
