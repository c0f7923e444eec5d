// The simulator's functions of the extension module; see sim_bindings.cc.
#pragma once

#include <nanobind/nanobind.h>

namespace uccl::xla_ffi {

void DefineSim(nanobind::module_& m);

}  // namespace uccl::xla_ffi
