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

constexpr uint32_t kNoTime = 0x5a5a5a5a;  // the largest may be measured on a loaded machine
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

// Rows whose numbers both ends know, to two places each; or as they lie.
struct RowSide {
  static constexpr int32_t kEntries = 7, kRows = 40;

  RowSide(int32_t ranks, bool indexed)
      : x(kRows * kChannels),
        out(kRows * kChannels),
        index(indexed ? kEntries * static_cast<size_t>(ranks) : 0, -1),
        places(indexed ? static_cast<size_t>(kRows) : 0),
        vacant(static_cast<size_t>(kRows)),
        offsets(static_cast<size_t>(ranks)),
        counts(static_cast<size_t>(ranks)),
        comes(static_cast<size_t>(ranks)),
        waited(static_cast<size_t>(ranks)) {}

  std::vector<Array> Args() {
    const auto width = static_cast<int64_t>(places.empty() ? 0 : 2);
    return {{XLA_FFI_DataType_F32, {kRows, kChannels}, x.data()},
            testing::Integers(&index),
            testing::Integers(&offsets),
            testing::Integers(&counts),
            testing::Integers(&comes),
            {XLA_FFI_DataType_S32, {width == 0 ? 0 : kRows / width, width}, places.data()},
            testing::Integers(&vacant)};
  }
  std::vector<Array> Rets() {
    return {{XLA_FFI_DataType_F32, {kRows, kChannels}, out.data()},
            {XLA_FFI_DataType_U32, {static_cast<int64_t>(waited.size())}, waited.data()}};
  }

  std::vector<float> x, out;
  std::vector<int32_t> index, places, vacant, offsets, counts, comes;
  std::vector<uint32_t> waited;
};

// What all ranks send in one use, by chance; and what each is to have then.
std::vector<std::vector<float>> ChooseRows(std::vector<RowSide>* sides, uint32_t seed) {
  std::mt19937 random(seed);
  const size_t ranks = sides->size();
  const bool indexed = !(*sides)[0].index.empty();
  for (RowSide& side : *sides) {
    for (float& v : side.x) v = static_cast<float>(random() % 100'000);
    int32_t next = 0;
    for (size_t to = 0; to < ranks; ++to) {
      side.offsets[to] = next;
      next += side.counts[to] = static_cast<int32_t>(random() % (RowSide::kEntries + 1));
    }
    for (size_t i = 0; i < side.index.size(); ++i)
      side.index[i] =
          i < static_cast<size_t>(next) ? static_cast<int32_t>(random() % RowSide::kRows) : -1;
  }
  std::vector<std::vector<float>> want;
  for (size_t me = 0; me < ranks; ++me) {
    RowSide& side = (*sides)[me];
    std::vector<float> rows(side.out.size());
    std::vector<int32_t> free(RowSide::kRows);  // places that nothing has taken
    for (int32_t i = 0; i < RowSide::kRows; ++i) free[static_cast<size_t>(i)] = i;
    if (indexed) std::shuffle(free.begin(), free.end(), random);
    std::fill(side.places.begin(), side.places.end(), -1);
    size_t landed = 0, taken = 0;
    for (size_t from = 0; from < ranks; ++from) {
      const RowSide& there = (*sides)[from];
      side.comes[from] = there.counts[me];
      for (int32_t n = 0; n < there.counts[me]; ++n, ++landed) {
        const int32_t entry = there.offsets[me] + n;
        const int32_t row = indexed ? there.index[static_cast<size_t>(entry)] : entry;
        for (size_t j = 0; j < (indexed ? 2 : 1); ++j) {
          if (indexed && random() % 3 == 0) continue;
          const int32_t at = free[taken++];
          if (indexed) side.places[landed * 2 + j] = at;
          std::copy_n(there.x.begin() + row * kChannels, kChannels, rows.begin() + at * kChannels);
        }
      }
    }
    std::fill(side.vacant.begin(), side.vacant.end(), -1);
    std::copy(free.begin() + static_cast<ptrdiff_t>(taken), free.end(), side.vacant.begin());
    std::fill(side.out.begin(), side.out.end(), -1.0f);
    std::fill(side.waited.begin(), side.waited.end(), kNoTime);
    want.push_back(std::move(rows));
  }
  return want;
}

class RowExchange : public MoeStreamHandlers, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(IndexedOrAsTheyLie, RowExchange, ::testing::Bool());

TEST_P(RowExchange, DirectlyAndFromAGraph) {
  constexpr int32_t kRanks = 2;
  CustomCall call("ragged_all_to_all", GetParam() ? 21 : 22, kRanks, "none",
                  &UcclMoeStreamExchangeInitialize, &UcclMoeStreamExchangeExecute);
  ASSERT_EQ(call.Instantiate(), "");
  std::vector<RowSide> sides(kRanks, RowSide(kRanks, GetParam()));
  std::vector<HostGraph> graphs(kRanks);
  for (uint32_t use = 0; use < 8; ++use) {
    const auto want = ChooseRows(&sides, use);
    for (int32_t r = 0; r < kRanks; ++r) {
      const auto me = static_cast<size_t>(r);
      HostStream* const stream = streams_[r].get();
      ASSERT_EQ(call.Initialize(r, sides[me].Args(), sides[me].Rets()), "");
      if (use <= 2) {
        if (use == 2) stream->BeginCapture();
        ASSERT_EQ(call.Execute(r, stream, sides[me].Args(), sides[me].Rets()), "");
        if (use == 2) graphs[me] = stream->EndCapture();
      }
      if (use >= 2) stream->Replay(graphs[me]);
    }
    Wait();
    for (size_t r = 0; r < kRanks; ++r) {
      EXPECT_EQ(sides[r].out, want[r]) << "use " << use << ", rank " << r;
      for (const uint32_t ns : sides[r].waited) EXPECT_NE(ns, kNoTime);
    }
  }
}

TEST_F(MoeStreamHandlers, RowsThatAreOutside_FailTheCommunicator) {
  const auto failure = [&](int64_t site, auto change) {
    CustomCall call("ragged_all_to_all", site, 1, "none", &UcclMoeStreamExchangeInitialize,
                    &UcclMoeStreamExchangeExecute);
    EXPECT_EQ(call.Instantiate(), "");
    std::vector<RowSide> sides(1, RowSide(1, true));
    (void)ChooseRows(&sides, 4);
    change(&sides[0]);
    EXPECT_EQ(call.Execute(0, streams_[0].get(), sides[0].Args(), sides[0].Rets()), "");
    Wait();
    std::string told;
    for (int looks = 0; told.empty() && looks < 60'000; ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      told = call.Initialize(0, sides[0].Args(), sides[0].Rets());
    }
    EXPECT_TRUE(coll::TheRuntime().Shutdown(Nanos(0)).ok());
    return told;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  std::string told = failure(31, [](RowSide* side) { side->index[0] = RowSide::kRows; });
  EXPECT_TRUE(has(told, "the row to send of entry 0 lies outside")) << told;
  told = failure(32,
                 [](RowSide* side) { side->offsets[0] = 5, side->counts[0] = side->comes[0] = 3; });
  EXPECT_TRUE(has(told, "what is sent to rank 0 lies outside")) << told;
  told = failure(33, [](RowSide* side) { side->places[1] = RowSide::kRows; });
  EXPECT_TRUE(has(told, "the place of what comes, number 1 lies outside")) << told;
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
  // Kept: unlike a device, a stream of the host is not waited for by who frees what it reads.
  std::vector<std::shared_ptr<StreamCall>> calls;
  for (size_t r : {0u, 1u}) {
    calls.push_back(job.Open(r).value());
    while (calls.back()->begun() == 0) std::this_thread::yield();
  }
  job.fleet.Shutdown();
  for (size_t r : {0u, 1u}) {
    EXPECT_TRUE(job.streams[r]->Wait().ok());
    EXPECT_EQ(job.sides[r].copies, want[r]);
  }
}

}  // namespace
}  // namespace uccl::xla_ffi
