// Every algorithm, forced by the setting, in every process model: the results are those of one
// process to the last bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "csrc/collectives/algorithms/registry.h"
#include "csrc/collectives/runtime.h"
#include "csrc/collectives/testing/every_operation.h"
#include "csrc/collectives/testing/fleet.h"

namespace uccl::coll {
namespace {

using testing::Fleet;
using testing::Outcome;
using testing::Vector;
using TestOp = testing::Operation;
using testing::CompileAll;
using testing::Expected;
using testing::RandomInputs;

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
