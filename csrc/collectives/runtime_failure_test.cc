// Tests of csrc/collectives/runtime.h when something goes wrong: deadlines, aborts, mismatches,
// lost peers, start-up. Whatever happens, every rank is completed, with a status that names the
// cause.
#include <gtest/gtest.h>

#include <chrono>
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
using Outcomes = std::vector<std::shared_ptr<Outcome>>;

TestOp Sum(Fleet* fleet, int64_t count, int64_t site = 1) {
  return fleet->Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {count}, site);
}

Outcomes SubmitSome(Fleet* fleet, const TestOp& op, const std::vector<size_t>& ranks, int64_t run) {
  Outcomes outcomes;
  for (size_t r : ranks) outcomes.push_back(fleet->Submit(op, r, Vector(op.bytes()), run));
  return outcomes;
}

void ExpectWorks(Fleet* fleet, const TestOp& op, int64_t run) {
  std::vector<size_t> all;
  for (size_t r = 0; r < fleet->ranks(); ++r) all.push_back(r);
  for (const auto& outcome : SubmitSome(fleet, op, all, run)) {
    const Status status = outcome->Wait();
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

bool Has(const Status& status, const std::string& words) {
  return status.detail.find(words) != std::string::npos;
}

Config ShortDeadline(int64_t ms = 100) {
  Config config;
  // More threads take part in an operation there, and all need a turn on a busy machine.
  config.op_timeout_ms = Fleet::OtherExecutor() != nullptr ? 10 * ms : ms;
  return config;
}

TEST(RuntimeFailure, Deadline_OneProcessNamesTheMissingDevices) {
  Fleet fleet({4}, ShortDeadline());
  ASSERT_TRUE(fleet.Start());
  const TestOp op = Sum(&fleet, 10);
  for (const auto& outcome : SubmitSome(&fleet, op, {0, 2}, 1)) {
    const Status status = outcome->Wait();
    EXPECT_EQ(status.code, StatusCode::kPeerTimeout);
    EXPECT_TRUE(Has(status, "did not call: 1, 3")) << status.ToString();
    EXPECT_EQ(status.peer, 1);
    EXPECT_EQ(status.process, 0);
    EXPECT_EQ(status.op, "all_reduce site 1");
    EXPECT_EQ(status.seq, 0);
    EXPECT_GE(status.elapsed, std::chrono::milliseconds(100));
  }
  EXPECT_EQ(fleet[0].last_error().code, StatusCode::kPeerTimeout);
  EXPECT_TRUE(fleet[0].InFlight().empty());

  // The late ones learn the first cause at once.
  for (const auto& outcome : SubmitSome(&fleet, op, {1, 3}, 1)) {
    const Status status = outcome->Wait();
    EXPECT_EQ(status.code, StatusCode::kAborted);
    EXPECT_TRUE(Has(status, "uccl.PeerTimeout")) << status.ToString();
  }
  fleet.Shutdown();
  ExpectWorks(&fleet, op, 2);
}

TEST(RuntimeFailure, Deadline_OtherCommunicatorsGoOn) {
  Fleet fleet({4}, ShortDeadline(200));
  ASSERT_TRUE(fleet.Start());
  const TestOp op =
      fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {10}, 1, {{0, 1}, {2, 3}});
  const Outcomes stuck = SubmitSome(&fleet, op, {0}, 1);
  EXPECT_EQ(stuck[0]->Wait().code, StatusCode::kPeerTimeout);
  for (const auto& outcome : SubmitSome(&fleet, op, {2, 3}, 1)) EXPECT_TRUE(outcome->Wait().ok());
}

// What ranks send for themselves (all of them, where they have programs of their own) says who is
// late, what a process sends for all of its ranks only whose they are.
TEST(RuntimeFailure, Deadline_OfPartialResultsNamesAllRanksOfTheProcess) {
  Config config = ShortDeadline(300);
  config.algorithms = "all_reduce=partials";
  Fleet fleet({1, 2}, config);
  ASSERT_TRUE(fleet.Start());
  const Outcomes outcomes = SubmitSome(&fleet, Sum(&fleet, 50'000), {0, 1}, 1);
  const Status status = outcomes[0]->Wait();
  EXPECT_EQ(status.code, StatusCode::kPeerTimeout) << status.ToString();
  EXPECT_EQ(status.process, 1) << status.ToString();
  EXPECT_TRUE(Has(status, "ranks 2048, 2049") || Has(status, "ranks 2049") ||
              Has(status, "did not call: 2049"))
      << status.ToString();
  fleet.Shutdown();
}

TEST(RuntimeFailure, Deadline_OtherProcessIsNamedAndToldToo) {
  Config config = ShortDeadline(300);
  config.algorithms = "all_reduce=split";
  Fleet fleet({2, 2}, config);
  ASSERT_TRUE(fleet.Start());
  const TestOp op = Sum(&fleet, 50'000);
  const Outcomes outcomes = SubmitSome(&fleet, op, {0, 1, 2}, 1);  // device 2049 is stuck
  for (const auto& outcome : outcomes) {
    const Status status = outcome->Wait();
    EXPECT_EQ(status.code, StatusCode::kPeerTimeout) << status.ToString();
    EXPECT_EQ(status.process, 1) << status.ToString();
    EXPECT_EQ(status.peer, fleet.device(3)) << status.ToString();
    EXPECT_TRUE(Has(status, "2049")) << status.ToString();
  }
  fleet.Shutdown();
  ASSERT_TRUE(fleet.Start(/*session=*/43));
  ExpectWorks(&fleet, op, 2);
  fleet.Shutdown();
}

// What is still with its sender when the operation fails goes back to him: else he would wait for
// ever.
TEST(RuntimeFailure, Deadline_GivesBackWhatIsLent) {
  Config config = ShortDeadline(300);
  config.algorithms = "all_reduce=direct";
  Fleet fleet({1, 1, 1}, config);
  ASSERT_TRUE(fleet.Start());
  const TestOp op = Sum(&fleet, 1 << 19);                        // 2 MB
  for (const auto& outcome : SubmitSome(&fleet, op, {0, 1}, 1))  // rank 2 is stuck
    EXPECT_EQ(outcome->Wait().code, StatusCode::kPeerTimeout) << outcome->Wait().ToString();
  fleet.Shutdown();
  ASSERT_TRUE(fleet.Start(/*session=*/43));
  ExpectWorks(&fleet, op, 2);
  fleet.Shutdown();
}

TEST(RuntimeFailure, SlowRankBelowTheDeadline_IsNoError) {
  Config config = ShortDeadline(60'000);
  config.mismatch_grace_ms = 1;
  Fleet fleet({1, 1}, config);
  ASSERT_TRUE(fleet.Start());
  const TestOp op = Sum(&fleet, 50'000), other = Sum(&fleet, 10, 2);
  const Outcomes early = SubmitSome(&fleet, op, {0}, 1);
  for (int run = 0; run < 100; ++run)
    ExpectWorks(&fleet, other, run);  // the watchdog has looked meanwhile
  EXPECT_FALSE(early[0]->done());
  const Outcomes late = SubmitSome(&fleet, op, {1}, 1);
  EXPECT_TRUE(early[0]->Wait().ok());
  EXPECT_TRUE(late[0]->Wait().ok());
  fleet.Shutdown();
}

TEST(RuntimeFailure, Abort_FailsOperationsNowAndLaterUntilShutdown) {
  for (const std::vector<int>& devices : {std::vector<int>{3}, {2, 1}}) {
    Fleet fleet(devices);
    ASSERT_TRUE(fleet.Start());
    const TestOp op = Sum(&fleet, 50'000);
    const Outcomes outcomes = SubmitSome(&fleet, op, {0}, 1);
    EXPECT_FALSE(outcomes[0]->done());
    fleet[0].Abort("the user said so");
    const Status status = outcomes[0]->Wait();
    EXPECT_EQ(status.code, StatusCode::kAborted);
    EXPECT_TRUE(Has(status, "the user said so")) << status.ToString();
    const Status later = SubmitSome(&fleet, op, {1}, 1)[0]->Wait();
    EXPECT_EQ(later.code, StatusCode::kAborted);
    EXPECT_TRUE(Has(later, "the user said so")) << later.ToString();
    fleet.Shutdown();
    ASSERT_TRUE(fleet.Start(/*session=*/43));
    ExpectWorks(&fleet, op, 2);
    fleet.Shutdown();
  }
}

// The engine goes on after an abort, so what was sent ahead for receives that were never posted
// must not stay in its buffers.
TEST(RuntimeFailure, Abort_DropsWhatWasSentAhead) {
  if (Fleet::OtherExecutor() != nullptr) GTEST_SKIP() << "what the engine does by itself";
  for (const char* shared : {"off", "on"}) {
    SCOPED_TRACE(shared);
    Config config = ShortDeadline(1000);
    config.shared_memory = shared;
    // Rank 1 waits for its own message then, so that what comes before it is taken in.
    config.algorithms = "all_to_all=direct";
    Fleet fleet({2, 1}, config);
    ASSERT_TRUE(fleet.Start());
    const TestOp op =
        fleet.Compile(OpKind::kAllToAll, DType::kF32, ReduceOp::kNone, {3, 100}, /*site=*/1);
    // Rank 2 sends to ranks 0 and 1 of the other process; rank 0 never comes to receive.
    const Outcomes stuck = SubmitSome(&fleet, op, {1, 2}, 1);
    const auto buffered = [&] {
      const engine::EngineStats stats = fleet[0].Stats().engine;
      return stats.shared.empty() ? stats.peers.at(1).eager_bytes_buffered
                                  : stats.shared.at(1).kept_bytes;
    };
    while (buffered() == 0 && !stuck[0]->done()) std::this_thread::yield();
    EXPECT_GT(buffered(), 0u);
    for (const auto& outcome : stuck) EXPECT_EQ(outcome->Wait().code, StatusCode::kPeerTimeout);
    EXPECT_EQ(buffered(), 0u);
    fleet.Shutdown();
  }
}

TEST(RuntimeFailure, Abort_WithNothingInFlightEndsWithShutdown) {
  Fleet fleet({2});
  ASSERT_TRUE(fleet.Start());
  const TestOp op = Sum(&fleet, 10);
  fleet[0].Abort("early");
  EXPECT_EQ(SubmitSome(&fleet, op, {0}, 1)[0]->Wait().code, StatusCode::kAborted);
  fleet.Shutdown();
  ExpectWorks(&fleet, op, 2);
}

TEST(RuntimeFailure, Abort_ReachesTheOtherProcesses) {
  Fleet fleet({1, 1});
  ASSERT_TRUE(fleet.Start());
  const TestOp op = Sum(&fleet, 10), never = Sum(&fleet, 10, 2);
  ExpectWorks(&fleet, op, 1);
  const Outcomes theirs = SubmitSome(&fleet, never, {1}, 2);
  fleet[0].Abort("enough");
  const Status status = theirs[0]->Wait();
  EXPECT_EQ(status.code, StatusCode::kAborted);
  EXPECT_TRUE(Has(status, "enough") && Has(status, "process 0")) << status.ToString();
  fleet.Shutdown();
}

// Same call site, another shape: no byte is placed, both sides say what they have.
TEST(RuntimeFailure, Mismatch_OfShapes) {
  for (const auto& [here, there] :
       {std::pair<int64_t, int64_t>{10, 11}, {50'000, 10}, {50'000, 60'000}}) {
    Fleet fleet({1, 1});
    ASSERT_TRUE(fleet.Start());
    TestOp op = Sum(&fleet, here), other = op;
    other.shape = {there};
    const Outcomes mine = SubmitSome(&fleet, op, {0}, 1),
                   theirs = SubmitSome(&fleet, other, {1}, 1);
    for (const Status& status : {mine[0]->Wait(), theirs[0]->Wait()}) {
      EXPECT_EQ(status.code, StatusCode::kProtocol) << status.ToString();
      EXPECT_TRUE(Has(status, std::to_string(here) + " elements")) << status.ToString();
      EXPECT_TRUE(Has(status, std::to_string(there) + " elements")) << status.ToString();
    }
    fleet.Shutdown();
  }
}

TEST(RuntimeFailure, Mismatch_OfOperationsWithEqualSizes) {
  Fleet fleet({1, 1});
  ASSERT_TRUE(fleet.Start());
  const TestOp sum = Sum(&fleet, 10);
  TestOp ints = sum;
  ints.dtype = DType::kS32;
  const Outcomes mine = SubmitSome(&fleet, sum, {0}, 1), theirs = SubmitSome(&fleet, ints, {1}, 1);
  for (const Status& status : {mine[0]->Wait(), theirs[0]->Wait()}) {
    EXPECT_EQ(status.code, StatusCode::kProtocol) << status.ToString();
    EXPECT_TRUE(Has(status, "float32") && Has(status, "int32")) << status.ToString();
  }
  fleet.Shutdown();
}

// The peer is at the same position of its program with another operation, under another key.
TEST(RuntimeFailure, Mismatch_OfCallSitesIsFoundAfterTheGrace) {
  Config config;
  config.mismatch_grace_ms = 20;
  Fleet fleet({1, 1}, config);
  ASSERT_TRUE(fleet.Start());
  const TestOp op = Sum(&fleet, 10);
  TestOp other = fleet.Compile(OpKind::kAllToAll, DType::kF32, ReduceOp::kNone, {2, 5}, 1);
  const Outcomes mine = SubmitSome(&fleet, op, {0}, 1), theirs = SubmitSome(&fleet, other, {1}, 1);
  for (const Status& status : {mine[0]->Wait(), theirs[0]->Wait()}) {
    EXPECT_EQ(status.code, StatusCode::kProtocol) << status.ToString();
    EXPECT_TRUE(Has(status, "all_reduce sum float32") && Has(status, "all_to_all float32"))
        << status.ToString();
  }
  fleet.Shutdown();
}

TEST(RuntimeFailure, OverlappingLaunches_AreAmbiguousOnAllRanks) {
  Fleet fleet({1, 1});
  ASSERT_TRUE(fleet.Start());
  const TestOp op = Sum(&fleet, 10);
  const Outcomes first = SubmitSome(&fleet, op, {0}, 1), second = SubmitSome(&fleet, op, {0}, 2);
  for (const Status& status : {first[0]->Wait(), second[0]->Wait()}) {
    EXPECT_EQ(status.code, StatusCode::kProtocol) << status.ToString();
    EXPECT_TRUE(Has(status, "ambiguous call site")) << status.ToString();
  }
  // Before it has heard of it, rank 1 may find the data that rank 0 sent for its first call, and be
  // content with it.
  const auto deadline = std::chrono::steady_clock::now() + Outcome::kPatience;
  while (fleet[1].last_error().ok()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "nobody told the other process";
    std::this_thread::yield();
  }
  const Status theirs = SubmitSome(&fleet, op, {1}, 1)[0]->Wait();
  EXPECT_EQ(theirs.code, StatusCode::kAborted) << theirs.ToString();
  EXPECT_TRUE(Has(theirs, "ambiguous call site")) << theirs.ToString();
  fleet.Shutdown();
}

TEST(RuntimeFailure, ChangedRunOffset_IsNoticed) {
  // Each process counts its launches; a launch that only one of them made shows in the difference
  // of RunIds.
  Fleet fleet({1, 1});
  ASSERT_TRUE(fleet.Start());
  const TestOp op = Sum(&fleet, 10);
  const auto both = [&](int64_t mine, int64_t theirs) {
    const Outcomes a = SubmitSome(&fleet, op, {0}, mine), b = SubmitSome(&fleet, op, {1}, theirs);
    return std::pair(a[0]->Wait(), b[0]->Wait());
  };
  for (int run = 0; run < 3; ++run) {
    const auto [a, b] = both(100 + run, 7000 + run);
    EXPECT_TRUE(a.ok()) << a.ToString();
    EXPECT_TRUE(b.ok()) << b.ToString();
  }
  (void)both(103, 7004);  // each side may notice before or after its data has arrived
  const auto [a, b] = both(104, 7005);
  EXPECT_FALSE(a.ok());
  EXPECT_FALSE(b.ok());
  EXPECT_TRUE(Has(a, "ambiguous call site")) << a.ToString();
  fleet.Shutdown();
}

TEST(RuntimeFailure, PeerThatDies_IsNamedByAllOthers) {
  Config config;
  config.peer_silence_ms = 1000;
  Fleet fleet({2, 1, 1}, config);
  ASSERT_TRUE(fleet.Start());
  const TestOp op = Sum(&fleet, 50'000);
  ExpectWorks(&fleet, op, 1);
  const Outcomes outcomes = SubmitSome(&fleet, op, {0, 1, 3}, 2);
  fleet.Destroy(1);
  for (const auto& outcome : outcomes) {
    const Status status = outcome->Wait();
    EXPECT_EQ(status.code, StatusCode::kPeerLost) << status.ToString();
    EXPECT_EQ(status.process, 1) << status.ToString();
    EXPECT_EQ(status.peer, fleet.device(2)) << status.ToString();
    EXPECT_EQ(status.op, "all_reduce site 1");
    EXPECT_EQ(status.seq, 1);
  }
  // Later operations with it are refused at once, those without it work.
  const Status later = SubmitSome(&fleet, op, {0}, 3)[0]->Wait();
  EXPECT_TRUE(later.code == StatusCode::kPeerLost || Has(later, "uccl.PeerLost"))
      << later.ToString();
  EXPECT_EQ(later.process, 1);
}

TEST(RuntimeFailure, CommunicatorWithoutTheLostPeer_GoesOn) {
  Config config;
  config.peer_silence_ms = 1000;
  Fleet fleet({1, 1, 1}, config);
  ASSERT_TRUE(fleet.Start());
  const TestOp all = Sum(&fleet, 50'000);
  const TestOp pair =
      fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {50'000}, 2, {{0, 2}});
  ExpectWorks(&fleet, all, 1);
  const Outcomes outcomes = SubmitSome(&fleet, all, {0, 2}, 2);
  fleet.Destroy(1);
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome->Wait().code, StatusCode::kPeerLost);
  for (const auto& outcome : SubmitSome(&fleet, pair, {0, 2}, 3)) {
    const Status status = outcome->Wait();
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

// A process that leaves after its part must not fail what the others still do among themselves.
TEST(RuntimeFailure, PeerThatLeavesAfterItsPart_FailsNothingInFlight) {
  Fleet fleet({1, 1, 1});
  ASSERT_TRUE(fleet.Start());
  const TestOp op = Sum(&fleet, 10), stuck = Sum(&fleet, 10, 2);
  const Outcomes early = SubmitSome(&fleet, op, {0, 1}, 1);
  const auto deadline = std::chrono::steady_clock::now() + Outcome::kPatience;
  const std::vector<Member> only_the_third = {{fleet.device(2), ProcessId{2}}};
  while (fleet[1].InFlight()[0].waiting_for_remote != only_the_third) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
  const Outcomes needs_it = SubmitSome(&fleet, stuck, {1}, 1);

  fleet[1].OnPeerLost(ProcessId{0}, Status::Error(StatusCode::kPeerLost, "left"));
  EXPECT_EQ(needs_it[0]->Wait().code, StatusCode::kPeerLost);
  EXPECT_FALSE(early[1]->done());
  // A second abort of the communicator reaches what the first one spared.
  fleet[1].OnPeerLost(ProcessId{2}, Status::Error(StatusCode::kPeerLost, "left too"));
  EXPECT_TRUE(Has(early[1]->Wait(), "left too"));
}

TEST(RuntimeFailure, PeerThatLeavesAfterItsPart_TheOthersFinish) {
  Fleet fleet({1, 1, 1});
  ASSERT_TRUE(fleet.Start());
  const TestOp op = Sum(&fleet, 10);
  const Outcomes early = SubmitSome(&fleet, op, {0, 1}, 1);
  const auto deadline = std::chrono::steady_clock::now() + Outcome::kPatience;
  while (fleet[1].InFlight()[0].waiting_for_remote.size() != 1) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
  fleet[1].OnPeerLost(ProcessId{0}, Status::Error(StatusCode::kPeerLost, "left"));
  const Outcomes late = SubmitSome(&fleet, op, {2}, 1);
  for (const auto& outcome : {early[0], early[1], late[0]}) {
    const Status status = outcome->Wait();
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  const Status next = SubmitSome(&fleet, op, {1}, 2)[0]->Wait();
  EXPECT_TRUE(Has(next, "left")) << next.ToString();
  EXPECT_EQ(next.process, 0);
}

TEST(RuntimeFailure, Shutdown_FailsWhatIsInFlight) {
  for (const std::vector<int>& devices : {std::vector<int>{2}, {1, 1}}) {
    Fleet fleet(devices);
    ASSERT_TRUE(fleet.Start());
    const TestOp op = Sum(&fleet, 50'000);
    const Outcomes outcomes = SubmitSome(&fleet, op, {0}, 1);
    (void)fleet[0].Shutdown(Nanos(0));  // peers may or may not have acknowledged all
    const Status status = outcomes[0]->Wait();
    EXPECT_EQ(status.code, StatusCode::kAborted);
    EXPECT_TRUE(Has(status, "shut down while")) << status.ToString();
    EXPECT_TRUE(fleet[0].InFlight().empty());
  }
}

TEST(RuntimeFailure, Start_Twice) {
  Fleet fleet({1, 1});
  ASSERT_TRUE(fleet.Start());
  const auto again = fleet[0].Start(Config{});
  ASSERT_FALSE(again.ok());
  EXPECT_TRUE(Has(again.status(), "shutdown() first"));
  fleet.Shutdown();
}

TEST(RuntimeFailure, RemoteOperationWithoutStart_NamesTheFix) {
  Fleet fleet({1, 1});
  const Status status = SubmitSome(&fleet, Sum(&fleet, 10), {0}, 1)[0]->Wait();
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_TRUE(Has(status, "jax_uccl.init()")) << status.ToString();
  EXPECT_EQ(fleet[0].Connect(ProcessId{0}, {"", ""}, 1).code, StatusCode::kInvalidArgument);
}

TEST(RuntimeFailure, FailStartup_FailsRemoteOperationsOnly) {
  Fleet fleet({2, 1});
  ASSERT_TRUE(fleet[0].Start(Config{}).ok());
  const TestOp all = Sum(&fleet, 10);
  const TestOp local =
      fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {10}, 2, {{0, 1}});
  const Outcomes waiting = SubmitSome(&fleet, all, {0}, 1);
  EXPECT_FALSE(waiting[0]->done());
  Status cause = Status::Error(StatusCode::kPeerTimeout, "process 1 did not start");
  cause.process = 1;
  fleet[0].FailStartup(cause);
  const Outcomes later = SubmitSome(&fleet, all, {1}, 1);
  for (const Status& status : {waiting[0]->Wait(), later[0]->Wait()}) {
    EXPECT_TRUE(Has(status, "process 1 did not start")) << status.ToString();
    EXPECT_EQ(status.process, 1);
  }
  EXPECT_EQ(waiting[0]->Wait().code, StatusCode::kPeerTimeout);
  for (const auto& outcome : SubmitSome(&fleet, local, {0, 1}, 1))
    EXPECT_TRUE(outcome->Wait().ok());
}

// Operations that fail while Connect waits for the engine thread, which then calls back into the
// runtime.
TEST(RuntimeFailure, ConnectWhileOperationsFail) {
  for (int round = 0; round < 20; ++round) {
    Fleet fleet({1, 1});
    std::vector<std::string> addresses;
    for (size_t p = 0; p < 2; ++p) addresses.push_back(fleet[p].Start(Config{}).value());
    const TestOp op = Sum(&fleet, 50'000);
    const Outcomes outcomes = SubmitSome(&fleet, op, {0, 1}, 1);
    std::thread abort([&] { fleet[0].Abort("meanwhile"); });
    for (size_t p = 0; p < 2; ++p) {
      EXPECT_TRUE(
          fleet[p].Connect(static_cast<ProcessId>(static_cast<int32_t>(p)), addresses, 9).ok());
    }
    abort.join();
    for (const auto& outcome : outcomes)
      (void)outcome->Wait();  // done in time or aborted; never lost
  }
}

TEST(RuntimeFailure, OperationsFromManyThreadsDuringAborts_AreAllCompleted) {
  Fleet fleet({4});
  ASSERT_TRUE(fleet.Start());
  const TestOp op = Sum(&fleet, 20'000);
  std::vector<std::thread> devices;
  for (size_t rank = 0; rank < 4; ++rank) {
    devices.emplace_back([&, rank] {
      for (int run = 0; run < 300; ++run) {
        const Status status = fleet.Submit(op, rank, Vector(op.bytes()), run)->Wait();
        EXPECT_TRUE(status.ok() || status.code == StatusCode::kAborted) << status.ToString();
        if (!status.ok()) return;
      }
    });
  }
  fleet[0].Abort("now");
  for (std::thread& t : devices) t.join();
  EXPECT_TRUE(fleet[0].InFlight().empty());
}

TEST(RuntimeFailure, DeviceOutsideTheMesh_IsTold) {
  Fleet fleet({2});
  ASSERT_TRUE(fleet.Start());
  const TestOp op = Sum(&fleet, 10);
  Call call;
  call.site = op.sites[0];
  call.device = 77;
  call.dtype = op.dtype;
  call.shape = op.shape;
  call.elements = op.elements();
  Outcome outcome;
  call.done = [&](const Status& status) { outcome.Set(status); };
  fleet[0].Submit(std::move(call));
  const Status status = outcome.Wait();
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(status.op, "all_reduce site 1");
  EXPECT_EQ(fleet[0].last_error().code, StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace uccl::coll
