// The list of launchers.
#include "csrc/cuda/testing/launcher.h"

#include "csrc/cuda/testing/host_launchers.h"

namespace uccl::cuda {

const std::vector<Launcher*>& Launchers() {
  static const std::vector<std::unique_ptr<Launcher>> owned = [] {
    auto all = HostLaunchers();
#ifdef UCCL_HAVE_CUDA
    if (auto device = DeviceLauncher()) all.push_back(std::move(device));
#endif
    return all;
  }();
  static const std::vector<Launcher*> launchers = [] {
    std::vector<Launcher*> all;
    for (const auto& launcher : owned) all.push_back(launcher.get());
    return all;
  }();
  return launchers;
}

}  // namespace uccl::cuda
