// Every algorithm, forced by the setting, in every process model: the results are those of one
// process to the last bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/collectives/algorithms/registry.h"
#include "csrc/collectives/reduce.h"
#include "csrc/collectives/runtime.h"
#include "csrc/collectives/testing/fleet.h"

namespace uccl::coll {
namespace {

using testing::Fleet;
using testing::Outcome;
using testing::Vector;
using TestOp = testing::Operation;

// Bytes that are numbers of moderate size in the 16-bit and 32-bit floats, so that another order of
// adding shows, and that are no NaN.
std::vector<Vector> RandomInputs(const TestOp& op, size_t ranks, uint64_t seed) {
  std::mt19937_64 random(seed);
  const size_t width = DTypeBytes(op.dtype);
  const bool floating = op.dtype == DType::kF32 || op.dtype == DType::kBF16;
  std::vector<Vector> all(ranks, Vector(op.bytes()));
  for (Vector& v : all) {
    for (std::byte& b : v) b = static_cast<std::byte>(random());
    for (size_t last = width - 1; floating && last < v.size(); last += width) {
      // Sign, and an exponent around 1.
      v[last] = static_cast<std::byte>(0x3f | (random() & 0x80));
    }
  }
  return all;
}

// What op is to do besides its kind.
constexpr int64_t kRoot = 5;
const std::vector<int64_t> kPermutation = {0, 3, 3, 7, 7, 0, 1, 2, 4, 4, 6, 5};

std::vector<Vector> Expected(const TestOp& op, const std::vector<Vector>& in) {
  const size_t n = in.size(), bytes = op.bytes(), row = bytes / n;
  std::vector<Vector> out(n, Vector(op.output_bytes(n)));
  const auto reduce = [&](size_t offset, size_t length, std::byte* to) {
    std::vector<const std::byte*> from;
    for (const Vector& v : in) from.push_back(v.data() + offset);
    ReduceElements(op.dtype, op.reduction, from, std::span(&to, 1), length / DTypeBytes(op.dtype));
  };
  for (size_t r = 0; r < n; ++r) {
    std::byte* const to = out[r].data();
    switch (op.kind) {
      case OpKind::kAllReduce:
        reduce(0, bytes, to);
        break;
      case OpKind::kReduceScatter:
        reduce(r * row, row, to);
        break;
      case OpKind::kAllGather:
        for (size_t m = 0; m < n; ++m) std::memcpy(to + m * bytes, in[m].data(), bytes);
        break;
      case OpKind::kAllToAll:
        for (size_t m = 0; m < n; ++m) std::memcpy(to + m * row, in[m].data() + r * row, row);
        break;
      case OpKind::kBroadcast:
        std::memcpy(to, in[kRoot].data(), bytes);
        break;
      case OpKind::kPermute:
        for (size_t k = 0; k < kPermutation.size(); k += 2) {
          if (kPermutation[k + 1] == static_cast<int64_t>(r))
            std::memcpy(to, in[static_cast<size_t>(kPermutation[k])].data(), bytes);
        }
        break;
      default:
        break;
    }
  }
  return out;
}

// For the k-th time the k-th algorithm of each collective, as long as one has so many.
std::string Forced(size_t k) {
  std::string setting;
  for (OpKind kind : OpKinds()) {
    std::vector<std::string> names;
    for (const Algorithm& a : Algorithms()) {
      if (a.kind == kind) names.emplace_back(a.name);
    }
    const std::string item = std::string(OpKindName(kind)) + "=";
    setting += (setting.empty() ? "" : ",") + item + names[k % names.size()];
    // Where that one adds in an order of its own and may not, a second one that always fits.
    setting += "," + item + names[0];
  }
  return setting;
}
size_t MostAlgorithms() {
  size_t most = 0;
  for (OpKind kind : OpKinds()) {
    size_t count = 0;
    for (const Algorithm& a : Algorithms()) count += a.kind == kind ? 1 : 0;
    most = std::max(most, count);
  }
  return most;
}

std::vector<TestOp> CompileAll(Fleet* fleet) {
  std::vector<TestOp> ops;
  int64_t site = 1;
  const auto n = static_cast<int64_t>(fleet->ranks());
  const auto add = [&](OpKind kind, DType dtype, ReduceOp op, std::vector<int64_t> shape) {
    ops.push_back(
        fleet->Compile(kind, dtype, op, std::move(shape), site++, {}, [](CallSiteSpec* spec) {
          spec->root = kRoot;
          spec->permutation = kPermutation;
        }));
  };
  // Fewer elements than ranks, messages that go at once, and messages that wait for the receiver.
  for (int64_t count : {3, 1000, 9000}) {
    add(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {count});
    add(OpKind::kAllReduce, DType::kBF16, ReduceOp::kSum, {count});
    add(OpKind::kAllReduce, DType::kS32, ReduceOp::kSum, {count});
    add(OpKind::kReduceScatter, DType::kF32, ReduceOp::kSum, {n, count});
    add(OpKind::kReduceScatter, DType::kBF16, ReduceOp::kProd, {n, count});
    add(OpKind::kReduceScatter, DType::kS16, ReduceOp::kMax, {n, count});
    add(OpKind::kAllGather, DType::kF32, ReduceOp::kNone, {count});
    add(OpKind::kAllToAll, DType::kU8, ReduceOp::kNone, {n, count});
    add(OpKind::kBroadcast, DType::kF64, ReduceOp::kNone, {count});
    add(OpKind::kPermute, DType::kF32, ReduceOp::kNone, {count});
  }
  add(OpKind::kBarrier, DType::kU8, ReduceOp::kNone, {0});
  return ops;
}

class EveryAlgorithm : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(EveryAlgorithm, ResultsAreThoseOfOneProcess) {
  // By operation; the same for every algorithm.
  std::vector<std::vector<Vector>> inputs, wanted;
  for (size_t k = 0; k < MostAlgorithms(); ++k) {
    Config config;
    config.algorithms = Forced(k);
    SCOPED_TRACE(config.algorithms);
    Fleet fleet(GetParam(), config);
    ASSERT_TRUE(fleet.Start());
    const std::vector<TestOp> ops = CompileAll(&fleet);
    for (size_t i = inputs.size(); i < ops.size(); ++i) {
      inputs.push_back(RandomInputs(ops[i], fleet.ranks(), i));
      wanted.push_back(Expected(ops[i], inputs[i]));
    }
    for (int64_t run = 0; run < 2; ++run) {
      std::vector<std::vector<std::shared_ptr<Outcome>>> outcomes;
      for (size_t i = 0; i < ops.size(); ++i) {
        std::vector<size_t> order;
        for (size_t r = 0; r < fleet.ranks(); ++r) order.push_back((r + i) % fleet.ranks());
        outcomes.push_back(fleet.SubmitAll(ops[i], inputs[i], order, run));
      }
      for (size_t i = 0; i < ops.size(); ++i) {
        SCOPED_TRACE(ops[i].sites[0]->spec().label + " " + DTypeName(ops[i].dtype));
        for (size_t r = 0; r < wanted[i].size(); ++r) {
          const Status status = outcomes[i][r]->Wait();
          ASSERT_TRUE(status.ok()) << "rank " << r << ": " << status.ToString();
          ASSERT_TRUE(outcomes[i][r]->output == wanted[i][r])
              << "rank " << r << " has wrong values";
        }
      }
    }
    // The setting was followed: what it names ran, and nothing else but what follows where it may
    // not.
    const std::map<std::string, uint64_t> ran = fleet[0].Stats().algorithms;
    uint64_t operations = 0;
    for (const auto& [name, count] : ran) {
      operations += count;
      std::string item = name;
      std::replace(item.begin(), item.end(), ' ', '=');
      EXPECT_NE(config.algorithms.find(item), std::string::npos) << name;
    }
    EXPECT_EQ(operations, 2 * ops.size());
    EXPECT_EQ(ran.count("all_reduce direct"),
              k == 0 || config.algorithms.find("all_reduce=ring") != std::string::npos)
        << config.algorithms;
    fleet.Shutdown();
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EveryAlgorithm,
                         ::testing::Values(std::vector<int>{8}, std::vector<int>{4, 4},
                                           std::vector<int>{2, 2, 2, 2},
                                           std::vector<int>{1, 1, 1, 1, 1, 1, 1, 1},
                                           std::vector<int>{3, 5}),
                         [](const auto& info) {
                           std::string name = "devices";
                           for (int d : info.param) name += "_" + std::to_string(d);
                           return name;
                         });

TEST(RuntimeAlgorithms, OneThatCannotKeepTheOrder_IsRefusedOnEveryRank) {
  Config config;
  config.algorithms = "all_reduce=ring";
  Fleet fleet({1, 2}, config);
  ASSERT_TRUE(fleet.Start());
  const TestOp floats = fleet.Compile(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, {4}, 1);
  const TestOp integers = fleet.Compile(OpKind::kAllReduce, DType::kS32, ReduceOp::kSum, {4}, 2);
  for (int64_t run = 0; run < 2; ++run) {
    for (size_t r = 0; r < 3; ++r) {
      const Status status = fleet.Submit(floats, r, Vector(16), run)->Wait();
      EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
      EXPECT_NE(status.ToString().find("allows only ring"), std::string::npos) << status.ToString();
    }
    // The communicator goes on.
    std::vector<std::shared_ptr<Outcome>> outcomes;
    for (size_t r = 0; r < 3; ++r) outcomes.push_back(fleet.Submit(integers, r, Vector(16), run));
    for (const auto& outcome : outcomes) EXPECT_TRUE(outcome->Wait().ok());
  }
  fleet.Shutdown();
}

TEST(RuntimeAlgorithms, HostsOfAnotherNumberOfProcesses_AreRefused) {
  Config config;
  config.processes_per_host = "2,1";
  Runtime runtime;
  const Result<std::string> address = runtime.Start(config);
  ASSERT_TRUE(address.ok());
  const Status status = runtime.Connect(ProcessId{0}, {address.value(), address.value()}, 1);
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_NE(status.detail.find("adds up to 3 processes, the job has 2"), std::string::npos)
      << status.detail;
}

// The ranks of a host are no neighbours here.
TEST(RuntimeAlgorithms, TwoLevelsOverHosts) {
  Config config;
  config.algorithms = "all_reduce=two_level";
  config.processes_per_host = "2,1,2";
  Fleet fleet({1, 2, 1, 3, 1}, config);
  ASSERT_TRUE(fleet.Start());
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const TestOp op = fleet.Compile(OpKind::kAllReduce, dtype, ReduceOp::kSum, {9000},
                                    static_cast<int64_t>(dtype), {{0, 4, 1, 5, 2, 6, 3, 7}});
    const std::vector<Vector> in = RandomInputs(op, fleet.ranks(), 9);
    std::vector<Vector> in_order;  // of the group
    for (size_t r : {0, 4, 1, 5, 2, 6, 3, 7}) in_order.push_back(in[r]);
    const Vector want = Expected(op, in_order)[0];
    for (const auto& outcome : fleet.SubmitAll(op, in, {7, 6, 5, 4, 3, 2, 1, 0}, 1)) {
      EXPECT_TRUE(outcome->Wait().ok());
      EXPECT_TRUE(outcome->output == want) << DTypeName(dtype);
    }
  }
  fleet.Shutdown();
}

// Settings are compared at start-up; where that was left out, the ranks still notice.
TEST(RuntimeAlgorithms, ProcessesThatChooseDifferently_AreToldSo) {
  std::vector<std::unique_ptr<Runtime>> runtimes;
  std::vector<std::string> addresses;
  for (const char* name : {"direct", "split"}) {
    Config config;
    config.algorithms = std::string("all_reduce=") + name;
    config.mismatch_grace_ms = 1;
    runtimes.push_back(std::make_unique<Runtime>());
    const Result<std::string> address = runtimes.back()->Start(config);
    ASSERT_TRUE(address.ok());
    addresses.push_back(address.value());
  }
  std::vector<std::shared_ptr<Outcome>> outcomes;
  for (int32_t p = 0; p < 2; ++p) {
    Runtime& runtime = *runtimes[static_cast<size_t>(p)];
    ASSERT_TRUE(runtime.Connect(static_cast<ProcessId>(p), addresses, 7).ok());
    CallSiteSpec spec;
    spec.kind = OpKind::kAllReduce;
    spec.reduction = ReduceOp::kSum;
    spec.site = spec.position = 1;
    spec.group_size = 2;
    spec.groups = spec.devices = spec.processes = {0, 1};
    outcomes.push_back(std::make_shared<Outcome>());
    const auto outcome = outcomes.back();
    outcome->input.resize(64);
    outcome->output.resize(64);
    Call call;
    call.site = CallSite::Make(spec, &runtime.instances(), 1).value();
    call.device = p;
    call.dtype = DType::kF32;
    call.shape = {16};
    call.elements = 16;
    call.input = outcome->input.data();
    call.output = outcome->output.data();
    call.done = [outcome](const Status& status) { outcome->Set(status); };
    runtime.Submit(std::move(call));
  }
  for (const auto& outcome : outcomes) {
    const std::string text = outcome->Wait().ToString();
    EXPECT_NE(text.find("by direct"), std::string::npos) << text;
    EXPECT_NE(text.find("by split"), std::string::npos) << text;
  }
  for (auto& runtime : runtimes) (void)runtime->Shutdown(std::chrono::seconds(1));
}

TEST(RuntimeAlgorithms, SettingThatNamesNothing_IsRefusedAtStart) {
  Config config;
  config.algorithms = "all_reduce=best";
  Runtime runtime;
  const Status started = runtime.Start(config).status();
  EXPECT_EQ(started.code, StatusCode::kInvalidArgument);
  EXPECT_NE(started.detail.find("\"best\""), std::string::npos) << started.detail;
  EXPECT_EQ(runtime.SetConfig(config).code, StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace uccl::coll
