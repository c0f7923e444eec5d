// Tests of csrc/collectives/runtime.h: operations overtake each other. A short reduction that is
// issued behind a long exchange between the same processes ends while the exchange is under way.
//
// By order of events, not by time: if the long one ever held the short one back, the short one
// could never end first. One round that shows it is therefore proof; a round in which the machine
// ran the long one to its end before it came to issue the short one shows nothing and is repeated.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/collectives/runtime.h"
#include "csrc/collectives/testing/fleet.h"

namespace uccl::coll {
namespace {

using testing::Fleet;
using testing::Outcome;
using testing::Vector;
using TestOp = testing::Operation;

struct Way {
  const char* name;
  const char* shared_memory;
  bool one_copy, at_once;
};

class Overtaking : public ::testing::TestWithParam<Way> {
 protected:
  static Config Settings() {
    Config config;
    config.shared_memory = GetParam().shared_memory;
    config.shm_one_copy = GetParam().one_copy;
    if (GetParam().at_once) {
      config.shm_eager_bytes = kChunk;
      config.eager_buffer_bytes = 2 * kChunk;
    }
    return config;
  }
  static constexpr int64_t kChunk = 24 << 20;  // bytes from each rank to each
};

Vector Floats(float a, float b) {
  Vector v(8);
  std::memcpy(&v[0], &a, 4);
  std::memcpy(&v[4], &b, 4);
  return v;
}

// The peer has not even called the exchange: what was posted for it waits, and nothing waits for
// that.
TEST_P(Overtaking, BehindAnExchangeWhosePeerIsLate) {
  Fleet fleet({1, 1}, Settings());
  ASSERT_TRUE(fleet.Start());
  const TestOp exchange =
      fleet.Compile(OpKind::kAllToAll, DType::kU8, ReduceOp::kNone, {2, kChunk}, 1);
  const TestOp sum = fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {2}, 2);
  std::vector<std::shared_ptr<Outcome>> large(2);
  large[0] = fleet.Submit(exchange, 0, Vector(2 * kChunk, std::byte{1}), 0);
  for (int64_t run = 0; run < 3; ++run) {
    const auto small = fleet.SubmitAll(sum, {Floats(1, 2), Floats(3, 4)}, {0, 1}, run);
    for (const auto& outcome : small) {
      EXPECT_TRUE(outcome->Wait().ok());
      EXPECT_EQ(outcome->output, Floats(4, 6));
    }
  }
  EXPECT_FALSE(large[0]->done());
  large[1] = fleet.Submit(exchange, 1, Vector(2 * kChunk, std::byte{2}), 0);
  for (const auto& outcome : large) {
    EXPECT_TRUE(outcome->Wait().ok());
    EXPECT_EQ(outcome->output[0], std::byte{1});
    EXPECT_EQ(outcome->output[kChunk], std::byte{2});
  }
  fleet.Shutdown();
}

// Both sides have called it and part of its bytes has arrived. As in a program of XLA's, where
// independent operations are called by different threads.
TEST_P(Overtaking, BehindAnExchangeUnderWay) {
  Fleet fleet({1, 1}, Settings());
  ASSERT_TRUE(fleet.Start());
  const TestOp exchange =
      fleet.Compile(OpKind::kAllToAll, DType::kU8, ReduceOp::kNone, {2, kChunk}, 1);
  const TestOp sum = fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {2}, 2);
  // Of long messages, at both ends together; over the network with the short ones' few bytes.
  const auto arrived = [&fleet] {
    uint64_t bytes = 0;
    for (size_t p : {0, 1}) {
      const engine::EngineStats stats = fleet[p].Stats().engine;
      for (const auto& [peer, s] : stats.peers) bytes += s.payload_bytes_received;
      for (const auto& [peer, s] : stats.shared) bytes += s.fetched_bytes + s.fragment_bytes;
    }
    return bytes;
  };
  bool overtook = false;
  int64_t sums = 0;
  int rounds = 0;
  for (; !overtook && rounds < 50; ++rounds) {
    std::vector<std::shared_ptr<Outcome>> large(2);
    const uint64_t before = arrived();
    large[0] = fleet.Submit(exchange, 0, Vector(2 * kChunk, std::byte{1}), rounds);
    std::thread caller(
        [&] { large[1] = fleet.Submit(exchange, 1, Vector(2 * kChunk, std::byte{1}), rounds); });
    // Short operations one after the other, until one has run from begin to end while the long one
    // was under way.
    while (!overtook && !large[0]->done()) {
      const bool under_way = arrived() > before + 4096 + static_cast<uint64_t>(sums) * 64;
      const auto small = fleet.SubmitAll(sum, {Floats(1, 2), Floats(3, 4)}, {0, 1}, sums++);
      for (const auto& outcome : small) EXPECT_TRUE(outcome->Wait().ok());
      overtook = under_way && !large[0]->done();
    }
    caller.join();
    for (const auto& outcome : large) EXPECT_TRUE(outcome->Wait().ok());
  }
  EXPECT_TRUE(overtook) << "in none of " << rounds << " rounds";
  fleet.Shutdown();
}

INSTANTIATE_TEST_SUITE_P(Runtime, Overtaking,
                         ::testing::Values(Way{"Network", "off", false, false},
                                           Way{"OneCopy", "on", true, false},
                                           Way{"TwoCopies", "on", false, false},
                                           Way{"AtOnce", "on", true, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace uccl::coll
