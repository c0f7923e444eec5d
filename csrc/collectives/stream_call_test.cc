// Tests of stream_call.h and runtime_streams.cc: what is enqueued for a CUDA stream, on streams of
// the host whose launches run the same kernels.
#include "csrc/collectives/stream_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/collectives/testing/every_operation.h"
#include "csrc/collectives/testing/fleet.h"
#include "csrc/cuda/testing/host_device.h"
#include "csrc/cuda/testing/host_launchers.h"

namespace uccl::coll {
namespace {

using cuda::HostDevice;
using cuda::HostGraph;
using cuda::HostStream;
using testing::Fleet;
using testing::Vector;
using TestOp = testing::Operation;

Config WithFifos(int64_t op_timeout_ms = 60'000) {
  Config config;
  config.executor = "fifo";
  config.executor_staging_bytes = 65536;  // the least: messages are longer than their pipes
  config.op_timeout_ms = op_timeout_ms;
  return config;
}

// One rank's buffers.
struct Buffers {
  Vector input, output;
};

// A stream for each rank.
class Streams final {
 public:
  explicit Streams(Fleet* fleet, size_t launcher = 0)
      : fleet_(fleet), launchers_(cuda::HostLaunchers()) {
    for (size_t r = 0; r < fleet->ranks(); ++r)
      streams_.push_back(std::make_unique<HostStream>(launchers_[launcher].get()));
  }
  HostStream& operator[](size_t rank) { return *streams_[rank]; }

  Result<std::shared_ptr<StreamCall>> Open(const TestOp& op, size_t rank) {
    return (*fleet_)[fleet_->process_of(rank)].StreamFor(fleet_->CallOf(op, rank, 0),
                                                         &HostDevice());
  }
  // As a handler would: find the call, enqueue.
  Status Enqueue(const TestOp& op, size_t rank, Buffers* buffers) {
    auto call = Open(op, rank);
    if (!call.ok()) return call.status();
    buffers->output.assign(op.output_bytes(fleet_->ranks()), std::byte{0xdb});
    return call.value()->Enqueue(streams_[rank]->stream(), buffers->input.data(),
                                 buffers->output.data());
  }

 private:
  Fleet* const fleet_;
  const std::vector<std::unique_ptr<cuda::Launcher>> launchers_;
  std::vector<std::unique_ptr<HostStream>> streams_;
};

std::vector<Buffers> BuffersOf(const std::vector<Vector>& inputs) {
  std::vector<Buffers> buffers(inputs.size());
  for (size_t r = 0; r < inputs.size(); ++r) buffers[r].input = inputs[r];
  return buffers;
}

class Placement : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(Placement, EveryCollective_GivesTheBitsOfOneProcess) {
  Fleet fleet(GetParam(), WithFifos());
  ASSERT_TRUE(fleet.Start());
  Streams streams(&fleet);
  const std::vector<TestOp> ops = CompileAll(&fleet);
  std::vector<std::vector<Vector>> wanted;
  std::vector<std::vector<Buffers>> buffers;
  for (int run = 0; run < 2; ++run) {
    // All of them behind each other, and nobody waits between.
    for (size_t i = 0; i < ops.size(); ++i) {
      const auto inputs = RandomInputs(ops[i], fleet.ranks(), buffers.size());
      wanted.push_back(Expected(ops[i], inputs));
      buffers.push_back(BuffersOf(inputs));
      for (size_t r = 0; r < fleet.ranks(); ++r) {
        const Status status = streams.Enqueue(ops[i], r, &buffers.back()[r]);
        ASSERT_TRUE(status.ok()) << ops[i].sites[0]->spec().label << ": " << status.ToString();
      }
    }
  }
  for (size_t r = 0; r < fleet.ranks(); ++r) {
    const Status status = streams[r].Wait();
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  for (size_t n = 0; n < buffers.size(); ++n) {
    for (size_t r = 0; r < fleet.ranks(); ++r) {
      EXPECT_TRUE(buffers[n][r].output == wanted[n][r])
          << ops[n % ops.size()].sites[0]->spec().label << " "
          << DTypeName(ops[n % ops.size()].dtype) << ": rank " << r << " has wrong values";
    }
  }
  for (size_t p = 0; p < fleet.size(); ++p) EXPECT_TRUE(fleet[p].last_error().ok());
  fleet.Shutdown();
}

INSTANTIATE_TEST_SUITE_P(Models, Placement,
                         ::testing::Values(std::vector<int>{8}, std::vector<int>{4, 4},
                                           std::vector<int>{1, 1, 1, 1, 1, 1, 1, 1},
                                           std::vector<int>{3, 5}));

// Groups of several threads and several groups, as blocks on a GPU.
TEST(StreamCall, KernelsOfManyThreads) {
  for (size_t launcher = 1; launcher < cuda::HostLaunchers().size(); ++launcher) {
    Fleet fleet({2, 1}, WithFifos());
    ASSERT_TRUE(fleet.Start());
    Streams streams(&fleet, launcher);
    for (const OpKind kind : {OpKind::kAllReduce, OpKind::kAllToAll, OpKind::kBarrier}) {
      const TestOp op =
          fleet.Compile(kind, DType::kF32, ReduceOp::kSum, {3, 7001}, static_cast<int64_t>(kind));
      const auto inputs = RandomInputs(op, 3, 1);
      auto buffers = BuffersOf(inputs);
      for (size_t r = 0; r < 3; ++r) ASSERT_TRUE(streams.Enqueue(op, r, &buffers[r]).ok());
      for (size_t r = 0; r < 3; ++r) ASSERT_TRUE(streams[r].Wait().ok());
      const auto want = Expected(op, inputs);
      for (size_t r = 0; r < 3 && kind != OpKind::kBarrier; ++r)
        EXPECT_TRUE(buffers[r].output == want[r]) << "launcher " << launcher << ", rank " << r;
    }
    fleet.Shutdown();
  }
}

// The host does nothing while a graph is repeated.
TEST(StreamCall, ARecordedExecution_RepeatsWithTheContentsOfItsBuffers) {
  Fleet fleet({2, 1}, WithFifos());
  ASSERT_TRUE(fleet.Start());
  Streams streams(&fleet);
  const TestOp sum = fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {9000}, 1);
  const TestOp all = fleet.Compile(OpKind::kAllToAll, DType::kU8, ReduceOp::kNone, {3, 50'000}, 2);
  auto first = BuffersOf(RandomInputs(sum, 3, 1)), second = BuffersOf(RandomInputs(all, 3, 2));
  std::vector<HostGraph> graphs;
  for (size_t r = 0; r < 3; ++r) {
    ASSERT_TRUE(streams.Open(sum, r).ok());  // what a graph cannot hold: memory, regions
    ASSERT_TRUE(streams.Open(all, r).ok());
    streams[r].BeginCapture();
    ASSERT_TRUE(streams.Enqueue(sum, r, &first[r]).ok());
    ASSERT_TRUE(streams.Enqueue(all, r, &second[r]).ok());
    graphs.push_back(streams[r].EndCapture());
  }
  for (uint64_t repeat = 0; repeat < 5; ++repeat) {
    const auto in1 = RandomInputs(sum, 3, 10 + repeat), in2 = RandomInputs(all, 3, 20 + repeat);
    for (size_t r = 0; r < 3; ++r) {
      std::ranges::copy(in1[r], first[r].input.begin());
      std::ranges::copy(in2[r], second[r].input.begin());
      streams[r].Replay(graphs[r]);
    }
    for (size_t r = 0; r < 3; ++r) ASSERT_TRUE(streams[r].Wait().ok());
    const auto want1 = Expected(sum, in1), want2 = Expected(all, in2);
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_TRUE(first[r].output == want1[r]) << "repeat " << repeat << ", rank " << r;
      EXPECT_TRUE(second[r].output == want2[r]) << "repeat " << repeat << ", rank " << r;
    }
  }
  fleet.Shutdown();
}

// Each site has a lane of its own: two streams of a rank need not agree about their order.
TEST(StreamCall, SitesOnSeveralStreams_InAnyOrder) {
  Fleet fleet({1, 1}, WithFifos());
  ASSERT_TRUE(fleet.Start());
  Streams one(&fleet), other(&fleet);
  const TestOp a = fleet.Compile(OpKind::kAllReduce, DType::kS32, ReduceOp::kSum, {40'000}, 1);
  const TestOp b = fleet.Compile(OpKind::kAllReduce, DType::kS32, ReduceOp::kSum, {40'000}, 2);
  const auto in_a = RandomInputs(a, 2, 1), in_b = RandomInputs(b, 2, 2);
  auto to_a = BuffersOf(in_a), to_b = BuffersOf(in_b);
  ASSERT_TRUE(one.Enqueue(a, 0, &to_a[0]).ok());
  ASSERT_TRUE(one.Enqueue(b, 1, &to_b[1]).ok());
  ASSERT_TRUE(other.Enqueue(b, 0, &to_b[0]).ok());
  ASSERT_TRUE(other.Enqueue(a, 1, &to_a[1]).ok());
  for (size_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(one[r].Wait().ok());
    ASSERT_TRUE(other[r].Wait().ok());
    EXPECT_TRUE(to_a[r].output == Expected(a, in_a)[r]);
    EXPECT_TRUE(to_b[r].output == Expected(b, in_b)[r]);
  }
  fleet.Shutdown();
}

// Sizes are data that only kernels see: other ones in each run, none for some.
TEST(StreamCall, RaggedExchanges) {
  Fleet fleet({2, 1}, WithFifos());
  ASSERT_TRUE(fleet.Start());
  Streams streams(&fleet);
  constexpr int32_t kRows = 90, kRanks = 3;
  constexpr uint64_t kRowBytes = 44;
  const TestOp op = fleet.Compile(OpKind::kRaggedAllToAll, DType::kF32, ReduceOp::kNone,
                                  {kRows, kRowBytes / 4}, 1);
  std::mt19937 random(4);
  for (int run = 0; run < 6; ++run) {
    const auto inputs = RandomInputs(op, kRanks, 10 + run);
    // How many rows go from one to the other; sums fit.
    int32_t rows[kRanks][kRanks];
    for (auto& of : rows) {
      for (int32_t& n : of) n = static_cast<int32_t>(random() % 4 == 0 ? 0 : random() % 30);
    }
    struct Vectors {
      int32_t input_offsets[kRanks], send_sizes[kRanks], output_offsets[kRanks],
          receive_sizes[kRanks];
    } vectors[kRanks];
    std::vector<Vector> want(kRanks,
                             Vector(op.bytes(), run % 2 == 0 ? std::byte{0x11} : std::byte{0}));
    const Vector start(op.bytes(), std::byte{0x11});
    for (int32_t me = 0; me < kRanks; ++me) {
      int32_t out = 0, in = 0;
      for (int32_t other = 0; other < kRanks; ++other) {
        vectors[me].input_offsets[other] = out, vectors[me].output_offsets[other] = in;
        out += vectors[me].send_sizes[other] = rows[me][other];
        in += vectors[me].receive_sizes[other] = rows[other][me];
      }
    }
    for (int32_t me = 0; me < kRanks; ++me) {
      for (int32_t from = 0; from < kRanks; ++from) {
        std::memcpy(want[me].data() + vectors[me].output_offsets[from] * kRowBytes,
                    inputs[from].data() + vectors[from].input_offsets[me] * kRowBytes,
                    rows[from][me] * kRowBytes);
      }
    }
    auto buffers = BuffersOf(inputs);
    for (size_t r = 0; r < kRanks; ++r) {
      buffers[r].output.assign(op.bytes(), std::byte{0xdb});
      StreamCall::Ragged ragged;
      ragged.input_offsets = vectors[r].input_offsets;
      ragged.send_sizes = vectors[r].send_sizes;
      ragged.output_offsets = vectors[r].output_offsets;
      ragged.receive_sizes = vectors[r].receive_sizes;
      ragged.row_bytes = kRowBytes;
      ragged.input_rows = ragged.output_rows = kRows;
      ragged.start = run % 2 == 0 ? start.data() : nullptr;
      ragged.fill = true;
      const auto call = streams.Open(op, r);
      ASSERT_TRUE(call.ok()) << call.status().ToString();
      ASSERT_TRUE(call.value()
                      ->EnqueueRagged(streams[r].stream(), buffers[r].input.data(),
                                      buffers[r].output.data(), ragged)
                      .ok());
    }
    for (size_t r = 0; r < kRanks; ++r) {
      ASSERT_TRUE(streams[r].Wait().ok());
      EXPECT_TRUE(buffers[r].output == want[r]) << "run " << run << ", rank " << r;
    }
  }
  fleet.Shutdown();
}

// Until the watchdog has told, and with what.
Status FailureOf(const std::shared_ptr<StreamCall>& call) {
  while (call->failure().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return call->failure();
}

TEST(StreamCall, ARankThatDoesNotCome_IsNamedAndTheKernelsEnd) {
  Fleet fleet({1, 1, 1}, WithFifos(/*op_timeout_ms=*/200));
  ASSERT_TRUE(fleet.Start());
  Streams streams(&fleet);
  const TestOp op = fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {10}, 1);
  auto buffers = BuffersOf(RandomInputs(op, 3, 1));
  for (size_t r : {0u, 1u}) ASSERT_TRUE(streams.Enqueue(op, r, &buffers[r]).ok());
  const Status status = FailureOf(streams.Open(op, 0).value());
  EXPECT_EQ(status.code, StatusCode::kPeerTimeout) << status.ToString();
  EXPECT_EQ(status.process, 2) << status.ToString();
  EXPECT_NE(status.ToString().find("deadline of 200 ms"), std::string::npos) << status.ToString();
  for (size_t r : {0u, 1u}) EXPECT_TRUE(streams[r].Wait().ok());  // no kernel hangs
  // The communicator is over, on all members, and says why.
  const Status again = streams.Enqueue(op, 0, &buffers[0]);
  EXPECT_EQ(again.code, StatusCode::kAborted);
  EXPECT_NE(again.detail.find("deadline of 200 ms"), std::string::npos) << again.ToString();
  fleet.Shutdown();
}

TEST(StreamCall, RanksThatDisagree_GetAnErrorAndNoData) {
  Fleet fleet({1, 1}, WithFifos());
  ASSERT_TRUE(fleet.Start());
  Streams streams(&fleet);
  const TestOp op = fleet.Compile(OpKind::kAllGather, DType::kS32, ReduceOp::kNone, {64}, 1);
  TestOp turned = op;
  turned.shape = {8, 8};
  auto buffers = BuffersOf(RandomInputs(op, 2, 1));
  auto mine = streams.Open(op, 0), theirs = streams.Open(turned, 1);
  ASSERT_TRUE(mine.ok() && theirs.ok());
  ASSERT_TRUE(streams.Enqueue(op, 0, &buffers[0]).ok());
  ASSERT_TRUE(streams.Enqueue(turned, 1, &buffers[1]).ok());
  for (const auto& call : {mine.value(), theirs.value()}) {
    const Status status = FailureOf(call);
    EXPECT_EQ(status.code, StatusCode::kProtocol) << status.ToString();
    EXPECT_NE(status.detail.find("this one expects 256 bytes"), std::string::npos);
  }
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_TRUE(streams[r].Wait().ok());
    const size_t theirs_at = (1 - r) * 256;  // what the other one would have sent
    EXPECT_TRUE(std::all_of(buffers[r].output.begin() + static_cast<ptrdiff_t>(theirs_at),
                            buffers[r].output.begin() + static_cast<ptrdiff_t>(theirs_at + 256),
                            [](std::byte b) { return b == std::byte{0xdb}; }));
  }
  (void)fleet[0].Shutdown(Nanos(0));
  (void)fleet[1].Shutdown(Nanos(0));
}

TEST(StreamCall, RaggedRowsThatAreOutside_FailTheCommunicator) {
  Fleet fleet({1}, WithFifos());
  ASSERT_TRUE(fleet.Start());
  Streams streams(&fleet);
  const TestOp op =
      fleet.Compile(OpKind::kRaggedAllToAll, DType::kF32, ReduceOp::kNone, {10, 1}, 1);
  const auto call = streams.Open(op, 0).value();
  const int32_t zero = 0, size = 5, far = 7;
  Vector from(40), to(40, std::byte{0xdb});
  StreamCall::Ragged ragged;
  ragged.input_offsets = &zero, ragged.send_sizes = &size;
  ragged.output_offsets = &far, ragged.receive_sizes = &size;
  ragged.row_bytes = 4, ragged.input_rows = ragged.output_rows = 10;
  ASSERT_TRUE(call->EnqueueRagged(streams[0].stream(), from.data(), to.data(), ragged).ok());
  const Status status = FailureOf(call);
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument) << status.ToString();
  EXPECT_NE(status.detail.find("output_offsets and recv_sizes of rank 0 are not within"),
            std::string::npos)
      << status.ToString();
  EXPECT_TRUE(streams[0].Wait().ok());
  EXPECT_TRUE(to == Vector(40, std::byte{0xdb}));
}

TEST(StreamCall, AProcessThatDies_IsNamedLongBeforeTheDeadline) {
  Fleet fleet({1, 1}, WithFifos());
  ASSERT_TRUE(fleet.Start());
  Streams streams(&fleet);
  const TestOp op = fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {10}, 1);
  auto buffers = BuffersOf(RandomInputs(op, 2, 1));
  ASSERT_TRUE(streams.Open(op, 1).ok());
  const auto call = streams.Open(op, 0).value();
  ASSERT_TRUE(streams.Enqueue(op, 0, &buffers[0]).ok());
  fleet.Destroy(1);
  const Status status = FailureOf(call);
  EXPECT_EQ(status.code, StatusCode::kPeerLost) << status.ToString();
  EXPECT_TRUE(streams[0].Wait().ok());
  EXPECT_FALSE(streams.Enqueue(op, 0, &buffers[0]).ok());
  fleet.Shutdown();
}

TEST(StreamCall, Shutdown_WaitsForWhatIsUnderWay_AndANewEpochWorks) {
  Fleet fleet({2}, WithFifos());
  ASSERT_TRUE(fleet.Start());
  Streams streams(&fleet);
  const TestOp op = fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {10'000}, 1);
  const auto inputs = RandomInputs(op, 2, 1);
  for (int epoch = 0; epoch < 2; ++epoch) {
    auto buffers = BuffersOf(inputs);
    for (size_t r = 0; r < 2; ++r) ASSERT_TRUE(streams.Enqueue(op, r, &buffers[r]).ok());
    const auto call = streams.Open(op, 0).value();
    while (call->begun() == 0) std::this_thread::yield();
    fleet.Shutdown();
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_TRUE(streams[r].Wait().ok());
      EXPECT_TRUE(buffers[r].output == Expected(op, inputs)[r]);
    }
    ASSERT_TRUE(fleet.Start());
  }
}

TEST(StreamCall, WhatHasNoKernel_IsRefusedInWords) {
  Fleet fleet({2}, WithFifos());
  ASSERT_TRUE(fleet.Start());
  Streams streams(&fleet);
  const TestOp op = fleet.Compile(OpKind::kAllReduce, DType::kC64, ReduceOp::kProd, {10}, 1);
  const Status refused = streams.Open(op, 0).status();
  EXPECT_EQ(refused.code, StatusCode::kUnsupported);
  EXPECT_NE(refused.detail.find("no kernel for prod"), std::string::npos) << refused.ToString();
  ASSERT_TRUE(fleet[0].SetConfig(Config()).ok());
  const TestOp other = fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {10}, 2);
  EXPECT_NE(streams.Open(other, 0).status().detail.find("executor=fifo"), std::string::npos);
}

}  // namespace
}  // namespace uccl::coll
