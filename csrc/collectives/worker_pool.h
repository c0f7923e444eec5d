// Threads that run completions and large reductions.
//
// Completing an XLA promise runs the rest of that device's program on the completing thread, and
// that program may block in one of XLA's own collectives until other devices catch up, whose
// completions may wait in this very pool. So a task must never wait for another task: the pool adds
// a thread whenever none is idle, up to a limit far above the operations that can be in flight.
// Threads that stay idle end, so that a burst does not leave hundreds behind.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

namespace uccl::coll {

class WorkerPool final {
 public:
  explicit WorkerPool(int64_t max_threads) : max_threads_(max_threads) {}
  // Waits until no task is queued or running. Tasks must have stopped being added.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Never blocks. Past the limit the task waits for a thread to become free. When the system
  // refuses a thread the task is queued likewise, and runs on the caller only if there is no thread
  // at all.
  void Run(std::function<void()> task);

  int64_t threads() const;
  void set_max_threads(int64_t max_threads);

 private:
  void Loop();

  mutable std::mutex mutex_;  // guards all below
  int64_t max_threads_;
  std::condition_variable work_, empty_;
  std::deque<std::function<void()>> queue_;
  int64_t threads_ = 0, idle_ = 0;
  bool stopping_ = false;
};

}  // namespace uccl::coll
