// Tests of csrc/collectives/runtime.h and operation.h: values in every process model.
// runtime_failure_test.cc has what goes wrong.
#include "csrc/collectives/runtime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "csrc/base/testing/sanitized.h"
#include "csrc/collectives/reduce.h"
#include "csrc/collectives/testing/fleet.h"

namespace uccl::coll {
namespace {

using testing::Fleet;
using testing::Outcome;
using testing::Vector;
using TestOp = testing::Operation;

// float32 of moderate size for reductions, so that another order of adding shows; any bytes for the
// rest.
std::vector<Vector> RandomInputs(const TestOp& op, size_t ranks, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Vector> all(ranks, Vector(op.bytes()));
  for (Vector& v : all) {
    if (op.dtype == DType::kF32) {
      std::normal_distribution<float> normal;
      for (size_t i = 0; i < op.elements(); ++i) {
        const float f = normal(random);
        std::memcpy(&v[i * 4], &f, 4);
      }
    } else {
      for (std::byte& b : v) b = static_cast<std::byte>(random());
    }
  }
  return all;
}

std::vector<Vector> Expected(const TestOp& op, const std::vector<Vector>& in) {
  std::vector<Vector> out(in.size(), Vector(op.bytes()));
  if (op.kind == OpKind::kAllToAll) {
    const size_t chunk = op.bytes() / in.size();
    for (size_t to = 0; to < in.size(); ++to) {
      for (size_t from = 0; from < in.size(); ++from) {
        std::copy_n(in[from].begin() + static_cast<ptrdiff_t>(to * chunk), chunk,
                    out[to].begin() + static_cast<ptrdiff_t>(from * chunk));
      }
    }
    return out;
  }
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (const Vector& v : in) from.push_back(v.data());
  for (Vector& v : out) to.push_back(v.data());
  ReduceElements(op.dtype, op.reduction, from, to, op.elements());
  return out;
}

void ExpectResults(const std::vector<std::shared_ptr<Outcome>>& outcomes,
                   const std::vector<Vector>& want) {
  for (size_t r = 0; r < outcomes.size(); ++r) {
    const Status status = outcomes[r]->Wait();
    EXPECT_TRUE(status.ok()) << "rank " << r << ": " << status.ToString();
    EXPECT_TRUE(outcomes[r]->output == want[r]) << "rank " << r << " has wrong values";
  }
}

std::vector<size_t> Shuffled(size_t n, std::mt19937_64* random) {
  std::vector<size_t> order(n);
  for (size_t i = 0; i < n; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), *random);
  return order;
}

std::string Text(const std::vector<int>& devices) {
  std::string s = "devices by process:";
  for (int d : devices) s += " " + std::to_string(d);
  return s;
}

// Devices of each process, and how the processes talk: over the network, or over shared memory,
// where all but short messages are fetched with one copy, or with two, or are sent at once.
enum class Way { kNetwork, kOneCopy, kTwoCopies, kAtOnce };
class Placement : public ::testing::TestWithParam<std::tuple<std::vector<int>, Way>> {
 protected:
  static std::vector<int> Devices() { return std::get<0>(GetParam()); }
  static Config Settings() {
    Config config;
    const Way way = std::get<1>(GetParam());
    config.shared_memory = way == Way::kNetwork ? "off" : "on";
    config.shm_one_copy = way == Way::kOneCopy;
    if (way != Way::kAtOnce) config.shm_eager_bytes = 1024;
    return config;
  }
};

// Sizes around every switch of protocol: nothing, fewer elements than processes, direct, split,
// eager and large.
TEST_P(Placement, ResultsAreThoseOfOneProcess) {
  SCOPED_TRACE(Text(Devices()));
  Fleet fleet(Devices(), Settings());
  ASSERT_TRUE(fleet.Start());
  const auto n = static_cast<int64_t>(fleet.ranks());
  std::vector<TestOp> ops;
  int64_t site = 1;
  for (int64_t count : {0, 1, 3, 100, 2048, 2049, 5000, 300'000}) {
    ops.push_back(fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {count}, site++));
  }
  for (int64_t count : {0, 1, 100, 70'000}) {
    ops.push_back(
        fleet.Compile(OpKind::kAllToAll, DType::kU8, ReduceOp::kNone, {n, count}, site++));
  }
  ops.push_back(fleet.Compile(OpKind::kAllReduce, DType::kS16, ReduceOp::kMax, {10, 333}, site++));
  std::mt19937_64 random(5);
  for (int run = 0; run < 2; ++run) {
    // All operations of a run in flight at once, each in another order of the ranks.
    std::vector<std::vector<std::shared_ptr<Outcome>>> outcomes;
    std::vector<std::vector<Vector>> inputs;
    for (const TestOp& op : ops) {
      inputs.push_back(
          RandomInputs(op, fleet.ranks(), static_cast<uint64_t>(run) * 100 + inputs.size()));
      outcomes.push_back(fleet.SubmitAll(op, inputs.back(), Shuffled(fleet.ranks(), &random), run));
    }
    for (size_t i = 0; i < ops.size(); ++i) {
      SCOPED_TRACE("run " + std::to_string(run) + " " + ops[i].sites[0]->spec().label);
      ExpectResults(outcomes[i], Expected(ops[i], inputs[i]));
    }
    if (HasFailure()) return;
  }
  for (size_t p = 0; p < fleet.size(); ++p) {
    EXPECT_TRUE(fleet[p].last_error().ok()) << fleet[p].last_error().ToString();
  }
  fleet.Shutdown();
  for (size_t p = 0; p < fleet.size(); ++p) {
    const RuntimeStats stats = fleet[p].Stats();
    EXPECT_EQ(stats.operations_started, ops.size() * 2);
    EXPECT_EQ(stats.operations_failed, 0u);
    EXPECT_EQ(stats.operations_in_flight, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runtime, Placement,
    ::testing::Combine(::testing::Values(std::vector<int>{1}, std::vector<int>{8},
                                         std::vector<int>{4, 4}, std::vector<int>{1, 1, 1, 1},
                                         std::vector<int>{2, 2, 2}, std::vector<int>{3, 1, 2}),
                       ::testing::Values(Way::kNetwork, Way::kOneCopy, Way::kTwoCopies,
                                         Way::kAtOnce)));

// Nobody leaves before everybody has come, whoever comes last.
TEST(Runtime, Barrier_HoldsUntilTheLastRankIsThere) {
  for (const std::vector<int>& devices : {std::vector<int>{3}, {1, 1}, {2, 1, 2}}) {
    SCOPED_TRACE(Text(devices));
    Fleet fleet(devices);
    ASSERT_TRUE(fleet.Start());
    const TestOp barrier = fleet.Compile(OpKind::kBarrier, DType::kU8, ReduceOp::kNone, {0}, 1);
    const TestOp other = fleet.Compile(OpKind::kAllReduce, DType::kS32, ReduceOp::kSum, {3}, 2);
    std::mt19937_64 random(8);
    for (size_t last = 0; last < fleet.ranks(); ++last) {
      const auto run = static_cast<int64_t>(last);
      std::vector<std::shared_ptr<Outcome>> outcomes;
      for (size_t r = 0; r < fleet.ranks(); ++r) {
        if (r != last) outcomes.push_back(fleet.Submit(barrier, r, {}, run));
      }
      // Another operation from end to end, so that all that can happen has happened.
      const std::vector<Vector> in = RandomInputs(other, fleet.ranks(), last);
      ExpectResults(fleet.SubmitAll(other, in, Shuffled(fleet.ranks(), &random), run),
                    Expected(other, in));
      for (const auto& outcome : outcomes) EXPECT_FALSE(outcome->done());
      outcomes.push_back(fleet.Submit(barrier, last, {}, run));
      for (const auto& outcome : outcomes) EXPECT_TRUE(outcome->Wait().ok());
    }
    fleet.Shutdown();
  }
}

// As XLA runs it: each device on a thread of its own, independent calls in another order on each.
void RunDevices(Fleet* fleet, const std::vector<TestOp>& ops, int runs) {
  std::vector<std::vector<Vector>> inputs, want;
  for (const TestOp& op : ops) {
    inputs.push_back(RandomInputs(op, fleet->ranks(), inputs.size()));
    want.push_back(Expected(op, inputs.back()));
  }
  std::vector<std::thread> devices;
  for (size_t rank = 0; rank < fleet->ranks(); ++rank) {
    devices.emplace_back([&, rank] {
      std::mt19937_64 random(rank);
      for (int run = 0; run < runs; ++run) {
        std::vector<std::shared_ptr<Outcome>> outcomes(ops.size());
        for (size_t i : Shuffled(ops.size(), &random)) {
          outcomes[i] = fleet->Submit(ops[i], rank, inputs[i][rank], run);
        }
        for (size_t i = 0; i < ops.size(); ++i) {
          const Status status = outcomes[i]->Wait();
          ASSERT_TRUE(status.ok()) << status.ToString();
          ASSERT_TRUE(outcomes[i]->output == want[i][rank])
              << "rank " << rank << " run " << run << " op " << i;
        }
      }
    });
  }
  for (std::thread& t : devices) t.join();
}

// Equal sites, as when one traced function is called several times: instances 0 to 3.
std::vector<TestOp> MixedOperations(Fleet* fleet) {
  const auto n = static_cast<int64_t>(fleet->ranks());
  std::vector<TestOp> ops;
  for (int i = 0; i < 4; ++i) {
    ops.push_back(fleet->Compile(OpKind::kAllToAll, DType::kF32, ReduceOp::kNone, {n, 64}, 1));
    ops.push_back(fleet->Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {500}, 2));
  }
  ops.push_back(fleet->Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {20'000}, 3));
  return ops;
}

TEST(Runtime, OneProcess_EightThreadsManyOperations) {
  Fleet fleet({8});
  ASSERT_TRUE(fleet.Start());
  RunDevices(&fleet, MixedOperations(&fleet), 100);
}

TEST(Runtime, TwoProcesses_DeviceThreadsManyOperations) {
  for (const char* shared : {"off", "on"}) {
    SCOPED_TRACE(shared);
    Config config;
    config.shared_memory = shared;
    Fleet fleet({2, 2}, config);
    ASSERT_TRUE(fleet.Start());
    RunDevices(&fleet, MixedOperations(&fleet), 50);
    fleet.Shutdown();
  }
}

// One rank each, so that calls wait on their own threads for what the other sends.
TEST(Runtime, TwoProcesses_CallsThatStay) {
  Config config;
  config.shared_memory = "on";
  config.stay_us = 2000;  // where the order of calls differs, in vain
  Fleet fleet({1, 1}, config);
  ASSERT_TRUE(fleet.Start());
  RunDevices(&fleet, MixedOperations(&fleet), 15);
  fleet.Shutdown();
}

// Partial results are sent out of scratch memory, which no rank's call keeps alive, and which the
// next operation takes over.
TEST(Runtime, MessagesOutOfScratch_KeepTheirMemory) {
  Config config;
  config.shared_memory = "off";
  config.algorithms = "all_reduce=partials";
  Fleet fleet({2, 2}, config);
  // What process 0 sends creeps, so that its ranks have their results long before it is through.
  config.window_bytes = 4096;
  config.cc_scope = "connection";
  config.congestion_control = "none";
  fleet.Use(0, config);
  ASSERT_TRUE(fleet.Start());
  const TestOp op =
      fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {200'000}, /*site=*/1);
  const TestOp next =
      fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {200'000}, /*site=*/2);
  const std::vector<Vector> first = RandomInputs(op, 4, 1), second = RandomInputs(op, 4, 2);
  for (int run = 0; run < 5; ++run) {
    const auto early = fleet.SubmitAll(op, first, {0, 1, 2, 3}, run);
    for (const size_t rank : {0, 1}) EXPECT_TRUE(early[rank]->Wait().ok());
    const auto late = fleet.SubmitAll(next, second, {0, 1, 2, 3}, run);
    ExpectResults(early, Expected(op, first));
    ExpectResults(late, Expected(next, second));
    if (HasFailure()) return;
  }
  fleet.Shutdown();
}

// Three ranks on a process own two nodes of the tree, which are added up in two reductions, the
// second of which reads the first: large enough for several threads.
TEST(Runtime, ReductionsThatReadEachOther_InOneStage) {
  for (const char* algorithm : {"partials", "two_level", "halving", "doubling"}) {
    SCOPED_TRACE(algorithm);
    Config config;
    config.shared_memory = "off";  // so that a process has more than one thread for them
    config.algorithms = std::string("all_reduce=") + algorithm;
    Fleet fleet({3, 4, 5}, config);
    ASSERT_TRUE(fleet.Start());
    const TestOp op =
        fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {60'000}, /*site=*/1);
    const std::vector<Vector> in = RandomInputs(op, fleet.ranks(), 1);
    const std::vector<Vector> want = Expected(op, in);
    std::vector<size_t> order(fleet.ranks());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (int run = 0; run < 8; ++run) {
      ExpectResults(fleet.SubmitAll(op, in, order, run), want);
      if (HasFailure()) return;
    }
    fleet.Shutdown();
  }
}

// Large messages that a reduction reads once stay where they were sent from.
TEST(Runtime, LargeReductions_ReadWhatTheyNeedWhereItIs) {
  if (Fleet::OtherExecutor() != nullptr) GTEST_SKIP() << "what the engine does by itself";
  struct Case {
    std::vector<int> devices;
    const char* algorithms;
    DType dtype;
  };
  for (const Case& c : {Case{{1, 1}, "all_reduce=split", DType::kF32},
                        Case{{1, 1, 1}, "all_reduce=direct", DType::kBF16},
                        Case{{2, 1}, "all_reduce=split", DType::kF32},
                        Case{{2, 2}, "all_reduce=partials", DType::kBF16}}) {
    SCOPED_TRACE(Text(c.devices) + c.algorithms);
    Config config;
    config.shared_memory = "on";
    config.algorithms = c.algorithms;
    Fleet fleet(c.devices, config);
    ASSERT_TRUE(fleet.Start());
    // Parts of 1 MB and more that end in the middle of everything.
    const auto elements = static_cast<int64_t>((5 << 20) / DTypeBytes(c.dtype) + 4097);
    const TestOp op = fleet.Compile(OpKind::kAllReduce, c.dtype, ReduceOp::kMax, {elements}, 1);
    std::mt19937_64 random(7);
    for (int64_t run = 1; run <= UnderSanitizers(1, 3); ++run) {
      const std::vector<Vector> inputs = RandomInputs(op, fleet.ranks(), 10 + run);
      ExpectResults(fleet.SubmitAll(op, inputs, Shuffled(fleet.ranks(), &random), run),
                    Expected(op, inputs));
    }
    uint64_t lent = 0;
    for (size_t p = 0; p < fleet.size(); ++p) {
      for (const auto& [peer, link] : fleet[p].Stats().engine.shared) {
        if (link.one_copy) lent += link.lent_messages;
        if (!link.one_copy) lent = UINT64_MAX;  // this machine does not allow it
      }
    }
    EXPECT_GT(lent, 0u);
    fleet.Shutdown();
  }
}

TEST(Runtime, RowsAndColumnsOfAMesh_AtOnce) {
  for (const std::vector<int>& devices : {std::vector<int>{6}, {2, 2, 2}, {3, 3}}) {
    SCOPED_TRACE(Text(devices));
    Fleet fleet(devices);
    ASSERT_TRUE(fleet.Start());
    const std::vector<std::vector<int64_t>> rows = {{0, 1, 2}, {3, 4, 5}},
                                            columns = {{0, 3}, {1, 4}, {2, 5}};
    const TestOp row =
        fleet.Compile(OpKind::kAllReduce, DType::kS64, ReduceOp::kSum, {1000}, 1, rows);
    const TestOp column =
        fleet.Compile(OpKind::kAllReduce, DType::kS64, ReduceOp::kSum, {1000}, 2, columns);
    const TestOp alone = fleet.Compile(OpKind::kAllReduce, DType::kS64, ReduceOp::kSum, {1000}, 3,
                                       {{0}, {1}, {2}, {3}, {4}, {5}});
    std::mt19937_64 random(3);
    for (int run = 0; run < 20; ++run) {
      const std::vector<Vector> in = RandomInputs(row, 6, static_cast<uint64_t>(run));
      const auto by_row = fleet.SubmitAll(row, in, Shuffled(6, &random), run);
      const auto by_column = fleet.SubmitAll(column, in, Shuffled(6, &random), run);
      const auto by_itself = fleet.SubmitAll(alone, in, Shuffled(6, &random), run);
      const auto sums = [&](const std::vector<std::vector<int64_t>>& groups) {
        std::vector<Vector> want(6);
        for (const auto& g : groups) {
          std::vector<Vector> part;
          for (int64_t r : g) part.push_back(in[static_cast<size_t>(r)]);
          for (int64_t r : g) want[static_cast<size_t>(r)] = Expected(row, part)[0];
        }
        return want;
      };
      ExpectResults(by_row, sums(rows));
      ExpectResults(by_column, sums(columns));
      ExpectResults(by_itself, in);
      if (HasFailure()) return;
    }
    fleet.Shutdown();
  }
}

// Shared among threads, and streamed past the caches: parts end where neither pages nor vectors do.
TEST(Runtime, LargeOperations_InOneProcess) {
  Fleet fleet({3});
  const TestOp ops[] = {
      fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {1'400'001}, 1),
      fleet.Compile(OpKind::kAllReduce, DType::kF16, ReduceOp::kSum, {90'003}, 2),
      fleet.Compile(OpKind::kAllReduce, DType::kU8, ReduceOp::kMax, {3'000'017}, 3),
      fleet.Compile(OpKind::kAllToAll, DType::kU8, ReduceOp::kNone, {3, 1'500'001}, 4),
  };
  for (int run = 0; run < UnderSanitizers(1, 3); ++run) {
    for (const TestOp& op : ops) {
      SCOPED_TRACE("run " + std::to_string(run) + " " + op.sites[0]->spec().label);
      const auto in = RandomInputs(op, 3, static_cast<uint64_t>(run));
      ExpectResults(fleet.SubmitAll(op, in, {2, 0, 1}, run), Expected(op, in));
    }
  }
}

TEST(Runtime, OneProcessRunsAhead) {
  // Process 0 needs nothing from process 1 to go on with later runs: it only gives. Here all its
  // calls of many runs are in flight at other sites before process 1 makes the first.
  Fleet fleet({1, 1});
  ASSERT_TRUE(fleet.Start());
  std::vector<TestOp> ops;
  std::vector<std::vector<Vector>> inputs;
  std::vector<std::shared_ptr<Outcome>> first, second;
  for (int i = 0; i < 50; ++i) {
    ops.push_back(fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum,
                                {i % 2 ? 10 : 10'000}, 100 + i));
    inputs.push_back(RandomInputs(ops.back(), 2, static_cast<uint64_t>(i)));
    first.push_back(fleet.Submit(ops.back(), 0, inputs.back()[0], i));
  }
  for (size_t i = ops.size(); i-- > 0;) {
    second.insert(second.begin(), fleet.Submit(ops[i], 1, inputs[i][1], static_cast<int64_t>(i)));
  }
  for (size_t i = 0; i < ops.size(); ++i)
    ExpectResults({first[i], second[i]}, Expected(ops[i], inputs[i]));
  fleet.Shutdown();
}

TEST(Runtime, StartAgain_AfterShutdown) {
  Fleet fleet({2, 1});
  TestOp op = fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {3000}, 1);
  for (int epoch = 0; epoch < 3; ++epoch) {
    ASSERT_TRUE(fleet.Start(/*session=*/100 + static_cast<uint64_t>(epoch)));
    // Another number of runs in each process model's life must not matter: numbering starts again.
    for (int run = 0; run < 3; ++run) {
      const auto in = RandomInputs(op, 3, static_cast<uint64_t>(run));
      ExpectResults(fleet.SubmitAll(op, in, {2, 0, 1}, 10 * epoch + run), Expected(op, in));
    }
    fleet.Shutdown();
  }
}

TEST(Runtime, OperationsBeforeConnect_Wait) {
  Fleet fleet({1, 1});
  TestOp op = fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {3000}, 1);
  std::vector<std::string> addresses;
  for (size_t p = 0; p < 2; ++p) {
    auto address = fleet[p].Start(Config{});
    ASSERT_TRUE(address.ok());
    addresses.push_back(address.value());
  }
  const auto in = RandomInputs(op, 2, 1);
  const auto outcomes = fleet.SubmitAll(op, in, {0, 1}, 1);
  EXPECT_FALSE(outcomes[0]->done());
  for (size_t p = 0; p < 2; ++p) {
    ASSERT_TRUE(
        fleet[p].Connect(static_cast<ProcessId>(static_cast<int32_t>(p)), addresses, 7).ok());
  }
  ExpectResults(outcomes, Expected(op, in));
  fleet.Shutdown();
}

TEST(Runtime, InFlight_ShowsWhoIsMissing) {
  Config config;
  config.algorithms = "all_reduce=direct";  // its messages leave with the first rank
  Fleet fleet({2, 1}, config);
  ASSERT_TRUE(fleet.Start());
  TestOp op = fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {3}, 1);
  const auto in = RandomInputs(op, 3, 1);
  auto outcomes = fleet.SubmitAll(op, in, {0}, 1);
  const std::vector<OperationStatus> seen = fleet[0].InFlight();
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].op, "all_reduce site 1");
  EXPECT_EQ(seen[0].seq, 0);
  EXPECT_EQ(seen[0].waiting_for_local, std::vector<int64_t>{fleet.device(1)});
  EXPECT_EQ(seen[0].waiting_for_remote, (std::vector<Member>{{fleet.device(2), ProcessId{1}}}));
  EXPECT_GE(seen[0].elapsed.count(), 0);
  EXPECT_TRUE(fleet[1].InFlight().empty());
  for (size_t r : {1, 2}) outcomes[r] = fleet.Submit(op, r, in[r], 1);
  ExpectResults(outcomes, Expected(op, in));
  fleet.Shutdown();
}

TEST(Runtime, Stats_CountBytesOnTheWire) {
  Config config;
  config.shared_memory = "off";
  Fleet fleet({1, 1}, config);
  ASSERT_TRUE(fleet.Start());
  TestOp op = fleet.Compile(OpKind::kAllToAll, DType::kU8, ReduceOp::kNone, {2, 100'000}, 1);
  const auto in = RandomInputs(op, 2, 1);
  ExpectResults(fleet.SubmitAll(op, in, {0, 1}, 1), Expected(op, in));
  const RuntimeStats stats = fleet[0].Stats();
  ASSERT_TRUE(stats.engine.peers.contains(1));
  // Half of the operand stays here; what travels is what was passed, not a wider type.
  const core::ConnectionStats& peer = stats.engine.peers.at(1);
  EXPECT_GE(peer.payload_bytes_received, 100'000u);
  EXPECT_LT(peer.payload_bytes_received, 110'000u);
  EXPECT_TRUE(stats.engine.shared.empty());
  fleet.Shutdown();
}

TEST(Runtime, Stats_CountBytesInSharedMemory) {
  if (Fleet::OtherExecutor() != nullptr) GTEST_SKIP() << "what the engine does by itself";
  Fleet fleet({1, 1});
  ASSERT_TRUE(fleet.Start());
  TestOp op = fleet.Compile(OpKind::kAllToAll, DType::kU8, ReduceOp::kNone, {2, 100'000}, 1);
  const auto in = RandomInputs(op, 2, 1);
  ExpectResults(fleet.SubmitAll(op, in, {0, 1}, 1), Expected(op, in));
  const RuntimeStats stats = fleet[0].Stats();
  ASSERT_TRUE(stats.engine.shared.contains(1)) << stats.engine.not_shared_because;
  EXPECT_EQ(stats.engine.shared.at(1).bytes_received, 100'000u);
  EXPECT_EQ(stats.engine.shared.at(1).bytes_sent, 100'000u);
  EXPECT_EQ(stats.engine.peers.at(1).payload_bytes_received, 0u);
  fleet.Shutdown();
}

}  // namespace
}  // namespace uccl::coll
