// Tests of moe_stream_handlers.h: dispatch and combine called as XLA would call them, on streams of
// the host; and what they enqueue, between several processes.
#include "xla_ffi/moe_stream_handlers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/collectives/testing/fleet.h"
#include "csrc/moe/slot_stream.h"
#include "xla_ffi/testing/custom_call.h"

namespace uccl::xla_ffi {
namespace {

using coll::StreamCall;
using coll::testing::Fleet;
using cuda::HostGraph;
using cuda::HostStream;
using testing::Array;
using testing::CustomCall;
using MoeStreamHandlers = testing::OnStreams;

constexpr int32_t kTokens = 4, kWidth = 2, kChannels = 3;

// One rank of a dispatch to the ranks that its choices name, and of the combine that brings every
// copy back doubled; buffers stay where they are.
struct Side {
  explicit Side(int32_t ranks)
      : ranks(ranks),
        copies(static_cast<size_t>(ranks * kTokens * kChannels)),
        waited(static_cast<size_t>(ranks)),
        waited_back(static_cast<size_t>(ranks)),
        back(copies.size()),
        entries(static_cast<size_t>(ranks * kTokens)),
        to(entries.size()),
        at(entries.size()) {}

  // Tokens of this rank and where they go: another choice in each use, of two ranks or fewer.
  void Choose(int32_t rank, int use) {
    std::mt19937 random(static_cast<uint32_t>(use * 100 + rank));
    std::vector<int32_t> numbers(static_cast<size_t>(ranks));
    for (int32_t t = 0; t < kTokens; ++t) {
      for (int32_t c = 0; c < kChannels; ++c)
        x[static_cast<size_t>(t * kChannels + c)] =
            static_cast<float>(use * 10'000 + rank * 1000 + t * 10 + c);
      const auto first = static_cast<int32_t>(random() % static_cast<uint32_t>(ranks + 1)) - 1;
      for (int32_t j = 0; j < kWidth; ++j) {
        const auto i = static_cast<size_t>(t * kWidth + j);
        peers[i] = first < 0 ? -1 : (first + j) % ranks;
        if (j >= ranks) peers[i] = -1;
        places[i] = peers[i] < 0 ? -1 : numbers[static_cast<size_t>(peers[i])]++;
        table[i] = peers[i] < 0 ? -1 : static_cast<int32_t>(i);
      }
    }
  }
  // What a rank gets, and where it sends it back to.
  std::vector<float> Expect(int32_t rank, const std::vector<Side>& all) {
    std::vector<float> want(copies.size());
    std::fill(to.begin(), to.end(), -1);
    size_t row = 0;
    for (int32_t from = 0; from < ranks; ++from) {
      const Side& there = all[static_cast<size_t>(from)];
      for (int32_t i = 0; i < kTokens * kWidth; ++i) {
        if (there.peers[static_cast<size_t>(i)] != rank) continue;
        std::copy_n(there.x.begin() + i / kWidth * kChannels, kChannels,
                    want.begin() + static_cast<ptrdiff_t>(row) * kChannels);
        entries[row] = static_cast<int32_t>(row), to[row] = from, at[row] = i;
        ++row;
      }
    }
    return want;
  }
  void Answer() {
    for (size_t i = 0; i < copies.size(); ++i) back[i] = 2 * copies[i];
  }
  // Each token doubled, for each choice.
  std::vector<float> Sums() const {
    std::vector<float> want(x.size());
    for (size_t t = 0; t < kTokens; ++t) {
      for (size_t j = 0; j < kWidth; ++j) {
        if (peers[t * kWidth + j] < 0) continue;
        for (size_t c = 0; c < kChannels; ++c) want[t * kChannels + c] += 2 * x[t * kChannels + c];
      }
    }
    return want;
  }

  std::vector<Array> DispatchArgs() { return {Rows(&x), Table(&peers), Table(&places)}; }
  std::vector<Array> DispatchRets() { return {Rows(&copies), Times(&waited)}; }
  std::vector<Array> CombineArgs() {
    return {Rows(&back), testing::Integers(&entries), testing::Integers(&to),
            testing::Integers(&at), Table(&table)};
  }
  std::vector<Array> CombineRets() { return {Rows(&sums), Times(&waited_back)}; }

  moe::Dispatch MakeDispatch() {
    moe::Dispatch d;
    d.x = reinterpret_cast<const std::byte*>(x.data()), d.tokens = kTokens;
    d.x_stride = d.out_stride = d.channels = kChannels * sizeof(float);
    d.peers = peers.data(), d.slots = places.data(), d.width = kWidth;
    d.out = reinterpret_cast<std::byte*>(copies.data());
    d.out_rows = static_cast<uint64_t>(ranks) * kTokens;
    d.waited = waited.data();
    return d;
  }

  int32_t ranks;
  std::vector<float> x = std::vector<float>(kTokens * kChannels), sums = x;
  std::vector<int32_t> peers = std::vector<int32_t>(kTokens * kWidth), places = peers,
                       table = peers;
  std::vector<float> copies;
  std::vector<uint32_t> waited, waited_back;
  std::vector<float> back;
  std::vector<int32_t> entries, to, at;

 private:
  static Array Rows(std::vector<float>* rows) {
    return {XLA_FFI_DataType_F32,
            {static_cast<int64_t>(rows->size()) / kChannels, kChannels},
            rows->data()};
  }
  static Array Table(std::vector<int32_t>* table) {
    return {XLA_FFI_DataType_S32, {kTokens, kWidth}, table->data()};
  }
  static Array Times(std::vector<uint32_t>* times) {
    return {XLA_FFI_DataType_U32, {static_cast<int64_t>(times->size())}, times->data()};
  }
};

struct MoeCalls {
  MoeCalls(int64_t site, int64_t ranks)
      : dispatch("ragged_all_to_all", site, ranks, "none", &UcclMoeStreamDispatchInitialize,
                 &UcclMoeStreamDispatchExecute),
        combine("ragged_all_to_all", site + 1, ranks, "none", &UcclMoeStreamCombineInitialize,
                &UcclMoeStreamCombineExecute) {
    EXPECT_EQ(dispatch.Instantiate(), "");
    EXPECT_EQ(combine.Instantiate(), "");
  }
  CustomCall dispatch, combine;
};

TEST_F(MoeStreamHandlers, DispatchAndCombine_DirectlyAndFromAGraph) {
  constexpr int32_t kRanks = 3;
  MoeCalls calls(1, kRanks);
  std::vector<Side> sides(kRanks, Side(kRanks));
  std::vector<HostGraph> there(kRanks), back(kRanks);
  for (int use = 0; use < 7; ++use) {
    SCOPED_TRACE("use " + std::to_string(use));
    std::vector<std::vector<float>> want;
    for (int32_t r = 0; r < kRanks; ++r) sides[static_cast<size_t>(r)].Choose(r, use);
    for (int32_t r = 0; r < kRanks; ++r)
      want.push_back(sides[static_cast<size_t>(r)].Expect(r, sides));
    // Recorded once the buffers have been used an odd number of times.
    const bool record = use == 3;
    for (int32_t r = 0; r < kRanks; ++r) {
      Side& side = sides[static_cast<size_t>(r)];
      HostStream* const stream = streams_[r].get();
      ASSERT_EQ(calls.dispatch.Initialize(r, side.DispatchArgs(), side.DispatchRets()), "");
      if (use <= 3) {
        if (record) stream->BeginCapture();
        ASSERT_EQ(calls.dispatch.Execute(r, stream, side.DispatchArgs(), side.DispatchRets()), "");
        if (record) there[static_cast<size_t>(r)] = stream->EndCapture();
      }
      if (use >= 3) stream->Replay(there[static_cast<size_t>(r)]);
    }
    Wait();
    for (int32_t r = 0; r < kRanks; ++r) {
      Side& side = sides[static_cast<size_t>(r)];
      ASSERT_EQ(side.copies, want[static_cast<size_t>(r)]) << "rank " << r;
      side.Answer();
      HostStream* const stream = streams_[r].get();
      ASSERT_EQ(calls.combine.Initialize(r, side.CombineArgs(), side.CombineRets()), "");
      if (use <= 3) {
        if (record) stream->BeginCapture();
        ASSERT_EQ(calls.combine.Execute(r, stream, side.CombineArgs(), side.CombineRets()), "");
        if (record) back[static_cast<size_t>(r)] = stream->EndCapture();
      }
      if (use >= 3) stream->Replay(back[static_cast<size_t>(r)]);
    }
    Wait();
    for (int32_t r = 0; r < kRanks; ++r)
      ASSERT_EQ(sides[static_cast<size_t>(r)].sums, sides[static_cast<size_t>(r)].Sums());
  }
}

TEST_F(MoeStreamHandlers, WhatTheyCannotTake_IsRefusedInWords) {
  MoeCalls calls(11, 2);
  Side side(2);
  const auto refused = [&](auto change) {
    auto args = side.DispatchArgs(), rets = side.DispatchRets();
    change(&args, &rets);
    return calls.dispatch.Initialize(0, args, rets);
  };
  EXPECT_NE(refused([](auto* args, auto*) { args->pop_back(); }).find("peers and places"),
            std::string::npos);
  EXPECT_NE(refused([](auto* args, auto*) { (*args)[1].dims = {3}; }).find("for each token"),
            std::string::npos);
  EXPECT_NE(refused([](auto*, auto* rets) { rets->pop_back(); }).find("must be uint32[2]"),
            std::string::npos);
  EXPECT_NE(refused([](auto*, auto* rets) { (*rets)[0].dims = {4, 7}; }).find("of one type"),
            std::string::npos);
  auto args = side.CombineArgs();
  args[4].dims = {7};
  EXPECT_NE(calls.combine.Initialize(0, args, side.CombineRets()).find("the table must have"),
            std::string::npos);
}

// Ranks of a job, whose calls are opened as the handlers open them.
struct Job {
  Job(std::vector<int> devices, const Config& config)
      : fleet(std::move(devices), config), launchers(cuda::HostLaunchers()) {
    EXPECT_TRUE(fleet.Start());
    for (size_t r = 0; r < fleet.ranks(); ++r) {
      streams.push_back(std::make_unique<HostStream>(launchers[0].get()));
      sides.emplace_back(static_cast<int32_t>(fleet.ranks()));
      sides.back().Choose(static_cast<int32_t>(r), 3);
    }
    op = fleet.Compile(coll::OpKind::kRaggedAllToAll, coll::DType::kF32, coll::ReduceOp::kNone,
                       {kTokens, kChannels}, 1);
  }
  static Config WithFifos(int64_t op_timeout_ms = 60'000) {
    Config config;
    config.executor = "fifo";
    config.op_timeout_ms = op_timeout_ms;
    return config;
  }
  Result<std::shared_ptr<StreamCall>> Open(size_t rank) {
    coll::Call call = fleet.CallOf(op, rank, 0);
    call.stream_program = [&] {
      return std::make_shared<moe::SlotStream>(sides[rank].MakeDispatch(),
                                               static_cast<uint32_t>(fleet.ranks()));
    };
    return fleet[fleet.process_of(rank)].StreamFor(call, &cuda::HostDevice());
  }
  Status Enqueue(size_t rank) {
    auto call = Open(rank);
    if (!call.ok()) return call.status();
    const cuda::Stream stream = streams[rank]->stream();
    return call.value()->EnqueueProgram(stream, [&](executor::StreamProgram* program) {
      return static_cast<moe::SlotStream*>(program)->Enqueue(stream, sides[rank].MakeDispatch());
    });
  }
  // Until the watchdog has told, and with what.
  Status FailureOf(size_t rank) {
    const auto call = Open(rank).value();
    while (call->failure().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return call->failure();
  }

  Fleet fleet;
  const std::vector<std::unique_ptr<cuda::Launcher>> launchers;
  std::vector<Side> sides;
  std::vector<std::unique_ptr<HostStream>> streams;
  coll::testing::Operation op;
};

// Nobody waits between the executions: each rank is at most one use ahead of the slowest.
TEST(MoeStream, RepeatedBetweenProcesses_EachAtItsOwnPace) {
  for (const std::vector<int>& devices : {std::vector<int>{2, 1}, {1, 1, 1, 1}}) {
    Job job(devices, Job::WithFifos());
    constexpr int kUses = 8;
    std::vector<HostGraph> graphs;
    for (size_t r = 0; r < job.fleet.ranks(); ++r) {
      ASSERT_TRUE(job.Open(r).ok()) << job.Open(r).status().ToString();
      job.streams[r]->BeginCapture();
      ASSERT_TRUE(job.Enqueue(r).ok());
      graphs.push_back(job.streams[r]->EndCapture());
    }
    const auto ranks = static_cast<int32_t>(job.fleet.ranks());
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        const auto me = static_cast<size_t>(r);
        for (int use = 0; use < kUses; ++use) {
          // What the others choose is known to all, so each can tell what it is to get.
          std::vector<Side> all(job.fleet.ranks(), Side(ranks));
          for (int32_t other = 0; other < ranks; ++other)
            all[static_cast<size_t>(other)].Choose(other, use);
          job.sides[me].Choose(r, use);
          if ((use + r) % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          job.streams[me]->Replay(graphs[me]);
          EXPECT_TRUE(job.streams[me]->Wait().ok());
          EXPECT_EQ(job.sides[me].copies, all[me].Expect(r, all)) << "use " << use << " rank " << r;
        }
      });
    }
    for (std::thread& t : threads) t.join();
    for (size_t r = 0; r < job.fleet.ranks(); ++r) EXPECT_EQ(job.Open(r).value()->begun(), kUses);
    job.fleet.Shutdown();
  }
}

TEST(MoeStream, ARankThatDoesNotCome_IsNamedAndTheKernelsEnd) {
  Job job({1, 1, 1}, Job::WithFifos(/*op_timeout_ms=*/200));
  for (size_t r : {0u, 1u}) ASSERT_TRUE(job.Enqueue(r).ok());
  const Status status = job.FailureOf(0);
  EXPECT_EQ(status.code, StatusCode::kPeerTimeout) << status.ToString();
  EXPECT_EQ(status.process, 2) << status.ToString();
  EXPECT_NE(status.detail.find("no data from ranks"), std::string::npos) << status.ToString();
  for (size_t r : {0u, 1u}) EXPECT_TRUE(job.streams[r]->Wait().ok());  // no kernel hangs
  EXPECT_EQ(job.Enqueue(0).code, StatusCode::kAborted);
  job.fleet.Shutdown();
}

TEST(MoeStream, AProcessThatDies_IsNamedLongBeforeTheDeadline) {
  Job job({1, 1}, Job::WithFifos());
  ASSERT_TRUE(job.Open(1).ok());
  ASSERT_TRUE(job.Enqueue(0).ok());
  const auto call = job.Open(0).value();
  job.fleet.Destroy(1);
  while (call->failure().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(call->failure().code, StatusCode::kPeerLost) << call->failure().ToString();
  EXPECT_TRUE(job.streams[0]->Wait().ok());
  job.fleet.Shutdown();
}

TEST(MoeStream, AChoiceThatIsNoRank_FailsTheCommunicator) {
  Job job({2}, Job::WithFifos());
  job.sides[1].peers.assign(job.sides[1].peers.size(), 2);
  for (size_t r : {0u, 1u}) ASSERT_TRUE(job.Enqueue(r).ok());
  for (size_t r : {0u, 1u}) EXPECT_TRUE(job.streams[r]->Wait().ok());
  while (job.fleet[0].last_error().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const Status status = job.fleet[0].last_error();
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument) << status.ToString();
  EXPECT_NE(status.detail.find("entry 0 of the rows to send lies outside"), std::string::npos)
      << status.ToString();
  EXPECT_FALSE(job.Enqueue(0).ok());
}

TEST(MoeStream, Shutdown_WaitsForWhatIsUnderWay) {
  Job job({1, 1}, Job::WithFifos());
  std::vector<std::vector<float>> want;
  for (int32_t r = 0; r < 2; ++r)
    want.push_back(job.sides[static_cast<size_t>(r)].Expect(r, job.sides));
  for (size_t r : {0u, 1u}) ASSERT_TRUE(job.Enqueue(r).ok());
  for (size_t r : {0u, 1u}) {
    const auto call = job.Open(r).value();
    while (call->begun() == 0) std::this_thread::yield();
  }
  job.fleet.Shutdown();
  for (size_t r : {0u, 1u}) {
    EXPECT_TRUE(job.streams[r]->Wait().ok());
    EXPECT_EQ(job.sides[r].copies, want[r]);
  }
}

}  // namespace
}  // namespace uccl::xla_ffi
