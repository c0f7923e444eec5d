// Which cores the threads that poll stand on.
//
// Two threads that poll for each other on one core take turns of the scheduler, at three times the
// cost of a message, while another core may be free: the system moves them apart, but only after
// some milliseconds. They know at once.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace uccl {

// Cores that this thread may run on.
std::vector<int> AllowedCores();

// Negative where the system does not say.
int CurrentCore();

// Has this thread go on at `core`; what it may run on stays as it was. False when the system
// refuses.
bool MoveToCore(int core);

// Where a thread that polls on `own` had better be, if anywhere: on the core of `allowed` with the
// fewest of `others`, the cores of other threads that poll, if those are fewer than on its own.
std::optional<int> BetterCore(int own, std::span<const int> others, std::span<const int> allowed);

}  // namespace uccl
