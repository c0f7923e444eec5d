// Tests of csrc/collectives/share_work.h.
#include "csrc/collectives/share_work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace uccl::coll {
namespace {

TEST(ShareWork, EveryPartOnce_WhateverTheNumbers) {
  WorkerPool pool(8);
  for (const uint64_t threads : {0u, 1u, 2u, 3u, 16u}) {
    for (const size_t parts : {0u, 1u, 2u, 5u, 100u}) {
      std::vector<std::atomic<int>> done(parts);
      ShareWork(&pool, threads, parts, [&](size_t i) { ++done[i]; });
      for (size_t i = 0; i < parts; ++i) EXPECT_EQ(done[i], 1) << threads << " " << i;
    }
  }
}

TEST(ShareWork, InsideAPoolThatIsFull_TheCallerDoesItAll) {
  WorkerPool pool(1);
  std::atomic<int> done{0};
  std::atomic<bool> over{false};
  pool.Run([&] {
    // The only thread is this one, so the helper it asks for starts when there is nothing left.
    ShareWork(&pool, 4, 10, [&](size_t) { ++done; });
    over = true;
    over.notify_all();
  });
  over.wait(false);
  EXPECT_EQ(done, 10);
}

}  // namespace
}  // namespace uccl::coll
