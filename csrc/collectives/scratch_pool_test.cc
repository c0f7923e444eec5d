// Tests of csrc/collectives/scratch_pool.h.
#include "csrc/collectives/scratch_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

namespace uccl::coll {
namespace {

TEST(ScratchPool, MemoryComesBack) {
  ScratchPool pool;
  pool.set_keep_bytes(1 << 20);
  std::byte* first = nullptr;
  {
    ScratchPool::Buffer a = pool.Take(10'000);
    first = a.data();
    std::memset(first, 1, 10'000);
    EXPECT_EQ(pool.kept_bytes(), 0u);
  }
  EXPECT_GE(pool.kept_bytes(), 10'000u);
  ScratchPool::Buffer b = pool.Take(9'000);  // a little less will do
  EXPECT_EQ(b.data(), first);
  ScratchPool::Buffer c = pool.Take(9'000);  // in use: another one
  EXPECT_NE(c.data(), first);
  ScratchPool::Buffer d = std::move(b);
  EXPECT_EQ(d.data(), first);
}

TEST(ScratchPool, ALargeBufferIsNotWastedOnASmallRequest) {
  ScratchPool pool;
  pool.set_keep_bytes(10 << 20);
  {
    ScratchPool::Buffer large = pool.Take(8 << 20);
  }
  const uint64_t kept = pool.kept_bytes();
  ScratchPool::Buffer small = pool.Take(4096);
  EXPECT_EQ(pool.kept_bytes(), kept);
}

TEST(ScratchPool, KeepsNoMoreThanItMay) {
  ScratchPool pool;
  {
    ScratchPool::Buffer a = pool.Take(5000);  // the default: nothing
  }
  EXPECT_EQ(pool.kept_bytes(), 0u);
  pool.set_keep_bytes(3 * 4096);
  std::vector<ScratchPool::Buffer> buffers;
  for (int i = 0; i < 10; ++i) buffers.push_back(pool.Take(4096));
  buffers.clear();
  EXPECT_EQ(pool.kept_bytes(), 3u * 4096);
  pool.set_keep_bytes(4096);
  EXPECT_EQ(pool.kept_bytes(), 4096u);
}

}  // namespace
}  // namespace uccl::coll
