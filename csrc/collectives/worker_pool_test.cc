// Tests of csrc/collectives/worker_pool.h.
#include "csrc/collectives/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <latch>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace uccl::coll {
namespace {

TEST(WorkerPool, TasksThatBlockEachOther_AllRun) {
  constexpr int kTasks = 64;
  std::latch all(kTasks);  // outlives the pool, as its last user is a worker
  WorkerPool pool(kTasks);
  // Each waits for all others: fewer threads than tasks would hang.
  for (int i = 0; i < kTasks; ++i) pool.Run([&all] { all.arrive_and_wait(); });
  all.wait();
  EXPECT_EQ(pool.threads(), kTasks);
}

TEST(WorkerPool, IdleThreads_AreUsedAgain) {
  WorkerPool pool(100);
  for (int i = 0; i < 1000; ++i) {
    std::latch done(1);
    pool.Run([&done] { done.count_down(); });
    done.wait();
  }
  // One task at a time; a few more threads, as a worker is not idle at once when its task has
  // ended.
  EXPECT_LT(pool.threads(), 50);
}

TEST(WorkerPool, PastTheLimit_TasksWaitTheirTurn) {
  constexpr int kLimit = 3, kTasks = 200;
  std::mutex mutex;
  int running = 0, most = 0, finished = 0;
  std::set<std::thread::id> threads;
  {
    WorkerPool pool(kLimit);
    for (int i = 0; i < kTasks; ++i) {
      pool.Run([&] {
        {
          std::lock_guard lock(mutex);
          most = std::max(most, ++running);
          threads.insert(std::this_thread::get_id());
        }
        std::this_thread::yield();
        std::lock_guard lock(mutex);
        --running;
        ++finished;
      });
    }
  }
  EXPECT_EQ(finished, kTasks);
  EXPECT_LE(most, kLimit);
  EXPECT_LE(threads.size(), static_cast<size_t>(kLimit));
}

TEST(WorkerPool, Destructor_RunsWhatIsQueued) {
  std::atomic<int> ran{0};
  {
    WorkerPool pool(1);
    for (int i = 0; i < 100; ++i) pool.Run([&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 100);
}

TEST(WorkerPool, Destructor_EndsIdleThreadsAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  {
    std::latch done(8);
    WorkerPool pool(8);
    for (int i = 0; i < 8; ++i) pool.Run([&done] { done.arrive_and_wait(); });
    done.wait();
  }
  // Idle threads live for ten seconds; ending must not wait for that.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
}

TEST(WorkerPool, SetMaxThreads_TakesEffect) {
  std::latch all(4);
  WorkerPool pool(1);
  pool.set_max_threads(4);
  for (int i = 0; i < 4; ++i) pool.Run([&all] { all.arrive_and_wait(); });
  all.wait();
  EXPECT_EQ(pool.threads(), 4);
}

TEST(WorkerPool, Task_IsDestroyedBeforeTheNextRuns) {
  // A task keeps an operation alive; it must not until the thread finds other work.
  std::latch done(1);
  std::weak_ptr<int> seen;
  {
    WorkerPool pool(1);
    auto held = std::make_shared<int>(1);
    seen = held;
    pool.Run([held = std::move(held)] {});
    pool.Run([&] {
      EXPECT_TRUE(seen.expired());
      done.count_down();
    });
    done.wait();
  }
  EXPECT_TRUE(seen.expired());
}

TEST(WorkerPool, RunFromManyThreads) {
  std::atomic<int> ran{0};
  {
    WorkerPool pool(16);
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) pool.Run([&ran] { ++ran; });
      });
    }
    for (std::thread& t : threads) t.join();
  }
  EXPECT_EQ(ran, 4000);
}

}  // namespace
}  // namespace uccl::coll
