// Affinity of the calling thread, and the choice of cores.h.
#include "csrc/base/cores.h"

#include <sched.h>

#include <algorithm>

namespace uccl {

std::vector<int> AllowedCores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

int CurrentCore() { return sched_getcpu(); }

bool MoveToCore(int core) {
  cpu_set_t before;
  if (sched_getaffinity(0, sizeof(before), &before) != 0) return false;
  if (core < 0 || core >= CPU_SETSIZE || !CPU_ISSET(core, &before)) return false;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  // The system moves the thread when it binds it, and does not move it back when it lets go.
  if (sched_setaffinity(0, sizeof(only), &only) != 0) return false;
  return sched_setaffinity(0, sizeof(before), &before) == 0;
}

std::optional<int> BetterCore(int own, std::span<const int> others, std::span<const int> allowed) {
  if (allowed.empty()) return std::nullopt;
  const auto on = [&](int core) { return std::ranges::count(others, core); };
  const int best = *std::ranges::min_element(allowed, {}, on);
  return on(best) < on(own) ? std::optional(best) : std::nullopt;
}

}  // namespace uccl
