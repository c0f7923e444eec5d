// The claiming of share_work.h.
#include "csrc/collectives/share_work.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace uccl::coll {

void ShareWork(WorkerPool* pool, uint64_t threads, size_t parts,
               const std::function<void(size_t)>& run) {
  if (threads <= 1 || parts <= 1) {
    for (size_t i = 0; i < parts; ++i) run(i);
    return;
  }
  struct Shared {
    std::atomic<size_t> next{0};
    std::mutex mutex;
    size_t finished = 0;  // guarded by mutex
    std::condition_variable all_done;
  };
  auto shared = std::make_shared<Shared>();
  const auto drain = [shared, &run, parts] {
    // Relaxed: only claims an index; the data is published by `finished` under the mutex.
    for (size_t i; (i = shared->next.fetch_add(1, std::memory_order_relaxed)) < parts;) {
      run(i);
      std::lock_guard done(shared->mutex);
      if (++shared->finished == parts) shared->all_done.notify_all();
    }
  };
  // A helper that starts late finds no index left and never touches `run`, whose frame may be gone.
  for (uint64_t i = 1; i < threads; ++i) pool->Run(drain);
  drain();
  std::unique_lock wait(shared->mutex);
  shared->all_done.wait(wait, [&] { return shared->finished == parts; });
}

}  // namespace uccl::coll
