// The launchers of launcher.h that need no GPU.
#pragma once

#include <memory>
#include <vector>

#include "csrc/cuda/testing/launcher.h"

namespace uccl::cuda {

std::vector<std::unique_ptr<Launcher>> HostLaunchers();

// The GPU's, null where there is none. Only builds with CUDA define it.
std::unique_ptr<Launcher> DeviceLauncher();

}  // namespace uccl::cuda
