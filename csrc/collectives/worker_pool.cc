// Growth and end of the threads of worker_pool.h.
#include "csrc/collectives/worker_pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

namespace uccl::coll {
namespace {
// Long enough that steady traffic never pays for thread creation.
constexpr std::chrono::seconds kIdleLife{10};

// A thread inherits the processors of the one that starts it, which may be an engine thread that is
// bound to a single one. The main thread's are those of the process. What the system refuses leaves
// the thread where it is, which costs speed only.
void UseProcessCpus() {
  cpu_set_t set;
  if (sched_getaffinity(getpid(), sizeof(set), &set) != 0) return;
  (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}
}  // namespace

WorkerPool::~WorkerPool() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  work_.notify_all();
  empty_.wait(lock, [&] { return threads_ == 0; });
}

void WorkerPool::Run(std::function<void()> task) {
  std::unique_lock lock(mutex_);
  queue_.push_back(std::move(task));
  if (static_cast<int64_t>(queue_.size()) <= idle_ || threads_ >= max_threads_) {
    lock.unlock();  // or the woken thread would wait for it
    work_.notify_one();
    return;
  }
  ++threads_;
  lock.unlock();
  try {
    // Detached: the destructor waits for `threads_` to reach zero, which is each thread's last
    // access.
    std::thread([this] { Loop(); }).detach();
  } catch (const std::system_error&) {
    lock.lock();
    --threads_;
    if (threads_ > 0) {
      work_.notify_one();
      return;
    }
    auto only = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    only();
  }
}

int64_t WorkerPool::threads() const {
  std::lock_guard lock(mutex_);
  return threads_;
}

void WorkerPool::set_max_threads(int64_t max_threads) {
  std::lock_guard lock(mutex_);
  max_threads_ = max_threads;
}

void WorkerPool::Loop() {
  pthread_setname_np(pthread_self(), "uccl-worker");
  UseProcessCpus();
  std::unique_lock lock(mutex_);
  for (;;) {
    if (queue_.empty()) {
      ++idle_;
      const bool woken =
          work_.wait_for(lock, kIdleLife, [&] { return !queue_.empty() || stopping_; });
      --idle_;
      if (queue_.empty() && (stopping_ || !woken)) break;
      if (queue_.empty()) continue;
    }
    auto task = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
  --threads_;
  if (threads_ == 0) empty_.notify_all();
}

}  // namespace uccl::coll
