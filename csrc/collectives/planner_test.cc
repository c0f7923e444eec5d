// Tests of csrc/collectives/planner.h: the setting, and which algorithm is chosen where.
#include "csrc/collectives/planner.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "csrc/collectives/testing/layouts.h"

namespace uccl::coll {
namespace {

using testing::GroupOf;
using testing::RandomGroup;

PlanRequest Request(OpKind kind, DType dtype, uint64_t elements) {
  PlanRequest request;
  request.kind = kind;
  request.dtype = dtype;
  request.reduction = kind == OpKind::kAllReduce || kind == OpKind::kReduceScatter
                          ? ReduceOp::kSum
                          : ReduceOp::kNone;
  request.elements = elements;
  return request;
}
PlanPolicy Policy(const std::string& algorithms) {
  PlanPolicy policy;
  policy.choices = ParseAlgorithms(algorithms).value();
  return policy;
}
std::string Choice(const PlanRequest& request, const std::vector<Member>& group,
                   const PlanPolicy& policy) {
  const Result<const Algorithm*> r = ChooseAlgorithm(request, group, policy);
  return r.ok() ? r.value()->name : r.status().detail;
}
std::string ErrorOf(const std::string& setting) {
  const Result<AlgorithmChoices> r = ParseAlgorithms(setting);
  return r.ok() ? "no error" : r.status().detail;
}
bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Planner, ParseAlgorithms_ErrorsNameWhatThereIs) {
  EXPECT_EQ(ErrorOf(""), "no error");
  EXPECT_EQ(ErrorOf("all_reduce=ring,all_gather=bruck"), "no error");
  EXPECT_TRUE(Contains(ErrorOf("all_reduce"), "\"all_reduce\""));
  EXPECT_TRUE(
      Contains(ErrorOf("allreduce=ring"), "\"allreduce\"; there are all_to_all, all_reduce"));
  EXPECT_TRUE(
      Contains(ErrorOf("barrier=ring"), "\"ring\"; for barrier there are direct, dissemination"));
  EXPECT_TRUE(Contains(ErrorOf("barrier=direct,"), "no error"));
  EXPECT_TRUE(Contains(ErrorOf("barrier=direct,,"), "\"\""));
  EXPECT_TRUE(Contains(ErrorOf("barrier= direct"), "JAX_UCCL_ALGORITHMS"));
}

TEST(Planner, SettingWins) {
  const std::vector<Member> group = GroupOf({2, 2, 2});
  for (const Algorithm& a : Algorithms()) {
    const PlanRequest request = Request(a.kind, DType::kS32, 60);
    const std::string setting = std::string(OpKindName(a.kind)) + "=" + a.name;
    EXPECT_EQ(Choice(request, group, Policy(setting)), a.name);
  }
}

TEST(Planner, FirstThatFits_OrAnError) {
  const std::vector<Member> group = GroupOf({1, 1, 1});
  const PlanRequest floats = Request(OpKind::kAllReduce, DType::kF32, 60);
  const PlanRequest integers = Request(OpKind::kAllReduce, DType::kS32, 60);
  const PlanPolicy both = Policy("all_reduce=ring,all_reduce=halving");
  EXPECT_EQ(Choice(floats, group, both), "halving");
  EXPECT_EQ(Choice(integers, group, both), "ring");
  const std::string error = Choice(floats, group, Policy("all_reduce=ring"));
  EXPECT_TRUE(Contains(error, "allows only ring for all_reduce")) << error;
  EXPECT_TRUE(Contains(error, "sum of float32")) << error;
  EXPECT_TRUE(Contains(error, "halving")) << error;
}

TEST(Planner, CheapestIsChosen) {
  std::mt19937 random(5);
  for (int i = 0; i < 60; ++i) {
    const std::vector<Member> group = RandomGroup(2 + random() % 12, 1 + random() % 6, &random);
    for (OpKind kind : OpKinds()) {
      PlanRequest request =
          Request(kind, i % 2 == 0 ? DType::kF32 : DType::kS32, group.size() << random() % 16);
      request.hosts = std::vector<int32_t>(64);
      for (int32_t& host : request.hosts) host = static_cast<int32_t>(random() % 2);
      const PlanPolicy policy;
      const Algorithm* chosen = ChooseAlgorithm(request, group, policy).value();
      ASSERT_TRUE(IsEligible(*chosen, request));
      bool alone = true;
      for (const Member& m : group) alone &= m.process == group[0].process;
      if (alone) continue;
      for (const Algorithm& a : Algorithms()) {
        if (!IsEligible(a, request)) continue;
        EXPECT_LE(CostOf(policy.costs, *chosen, request, group),
                  CostOf(policy.costs, a, request, group))
            << chosen->name << " " << a.name;
      }
    }
  }
}

// With the defaults, the shapes that everybody knows.
TEST(Planner, SmallInFewSteps_LargeInFewBytes) {
  const PlanPolicy policy;
  const std::vector<Member> pairs = GroupOf({1, 1}), many = GroupOf(std::vector<int>(32, 1));
  const std::vector<Member> shared = GroupOf({4, 4});
  const auto all_reduce = [](uint64_t floats) {
    return Request(OpKind::kAllReduce, DType::kF32, floats);
  };
  EXPECT_EQ(Choice(all_reduce(1), pairs, policy), "direct");
  EXPECT_EQ(Choice(all_reduce(1), many, policy), "doubling");
  EXPECT_EQ(Choice(all_reduce(4 << 20), pairs, policy), "split");
  // One message of a partial result instead of four.
  EXPECT_EQ(Choice(all_reduce(1), shared, policy), "partials");
  EXPECT_EQ(Choice(all_reduce(4 << 20), shared, policy), "two_level");
  EXPECT_EQ(Choice(Request(OpKind::kBarrier, DType::kU8, 0), many, policy), "dissemination");
  EXPECT_EQ(Choice(Request(OpKind::kAllGather, DType::kF32, 1), many, policy), "bruck");
  EXPECT_EQ(Choice(Request(OpKind::kAllToAll, DType::kF32, 32), many, policy), "bruck");
  EXPECT_EQ(Choice(Request(OpKind::kAllToAll, DType::kF32, 32 << 16), many, policy), "direct");
  EXPECT_EQ(Choice(Request(OpKind::kAllToAll, DType::kF32, 8), shared, policy), "packed");
}

TEST(Planner, OneProcessOrNothingToMove_TakesTheFirst) {
  const PlanPolicy policy;
  for (OpKind kind : OpKinds()) {
    EXPECT_EQ(Choice(Request(kind, DType::kF32, 64), GroupOf({8}), policy), "direct");
    if (kind == OpKind::kBarrier) continue;
    EXPECT_EQ(Choice(Request(kind, DType::kF32, 0), GroupOf({1, 1, 1}), policy), "direct");
  }
}

TEST(Planner, ParseHosts) {
  const auto hosts = [](const std::string& text) { return ParseHosts(text).value(); };
  EXPECT_EQ(hosts(""), std::vector<int32_t>{});
  EXPECT_EQ(hosts("3"), (std::vector<int32_t>{0, 0, 0}));
  EXPECT_EQ(hosts("2,1"), (std::vector<int32_t>{0, 0, 1}));
  EXPECT_EQ(hosts("2(x2),1"), (std::vector<int32_t>{0, 0, 1, 1, 2}));
  EXPECT_EQ(hosts("1(x3)"), (std::vector<int32_t>{0, 1, 2}));
  for (const char* text : {",", "1,", ",1", "0", "-1", "1(2)", "1(x2", "1(x0)", "1 ,2", "a", "1;2",
                           "99999999999999999999", "2000000", "1024(x1025)"}) {
    const Result<std::vector<int32_t>> r = ParseHosts(text);
    ASSERT_FALSE(r.ok()) << text;
    EXPECT_TRUE(Contains(r.status().detail, std::string("\"") + text + "\"")) << r.status().detail;
  }
}

// Reducing on the host first pays where the link between hosts is slow and large vectors share it.
TEST(Planner, HostsDecide) {
  const std::vector<Member> group = GroupOf({1, 1, 1, 1, 1, 1, 1, 1});
  PlanPolicy policy;
  policy.costs.network_byte_ps = 20 * policy.costs.host_byte_ps;
  PlanRequest request = Request(OpKind::kAllReduce, DType::kF32, 1 << 20);
  request.hosts = ParseHosts("4,4").value();
  EXPECT_EQ(Choice(request, group, policy), "two_level");
  request.hosts = {};
  EXPECT_NE(Choice(request, group, policy), "halving");
}

TEST(Planner, MakePolicy_ReadsSettings) {
  Config config;
  config.algorithms = "barrier=direct";
  config.processes_per_host = "1,1";
  const auto policy = MakePolicy(config);
  ASSERT_TRUE(policy.ok());
  EXPECT_EQ(policy.value()->choices.size(), 1u);
  EXPECT_EQ(policy.value()->hosts, (std::vector<int32_t>{0, 1}));
  EXPECT_NE(MakePolicy(config).value()->id, policy.value()->id);
  config.tuning_file = "/nowhere";
  EXPECT_FALSE(MakePolicy(config).ok());
}

}  // namespace
}  // namespace uccl::coll
