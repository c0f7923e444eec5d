// One engine thread: the queue of commands, the loop, the thread. An Engine owns one or several.
//
// Any thread may push; Start, Pin and the two calls that end it belong to the owner, one at a time.
#pragma once

#include <memory>
#include <thread>
#include <utility>

#include "csrc/base/config.h"
#include "csrc/base/status.h"
#include "csrc/engine/command.h"
#include "csrc/engine/engine.h"
#include "csrc/engine/loop.h"

namespace uccl::engine {

class Worker final {
 public:
  // Opens the backend and starts the thread. `sink` must outlive the worker.
  static Result<std::unique_ptr<Worker>> Start(const Config& config, EngineSink* sink);
  ~Worker();  // the thread must have been joined

  const Hello& hello() const { return loop_.hello(); }
  // Queues, and wakes the thread. After its end the command is answered here, on the caller's
  // thread.
  void Push(Command command);
  // Binds the thread to one processor.
  Status Pin(int cpu);
  // After a ShutdownCommand: waits for the thread's end, once; its outcome.
  Status Join();

 private:
  Worker(const Config& config, std::unique_ptr<nic::NicBackend> nic, EngineSink* sink)
      : loop_(config, std::move(nic), sink, &queue_) {}

  CommandQueue queue_;
  Loop loop_;  // the thread's until it is joined
  std::thread thread_;
  Status outcome_;  // of Run; written by the thread, read after joining it
};

}  // namespace uccl::engine
