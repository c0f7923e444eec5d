// Threads of the library inside somebody else's process: they receive no signal (Python's handlers
// belong to other threads), and may be bound to a processor.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "csrc/base/status.h"

namespace uccl {

// Runs `run` on a new thread. `what` it is ("the engine thread"), for the error.
Result<std::thread> StartQuietThread(const std::string& what, std::function<void()> run);

// Binds a thread to one processor. `setting` asked for it, `what` it is ("an engine thread").
Status BindThread(std::thread* thread, int cpu, const std::string& setting,
                  const std::string& what);

}  // namespace uccl
