// Tests of csrc/collectives/algorithms: every row of the registry on every layout is proved right
// by schedule_checker.h, and sends as many bytes as it says.
#include "csrc/collectives/algorithms/registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "csrc/collectives/schedule_checker.h"
#include "csrc/collectives/testing/layouts.h"

namespace uccl::coll {
namespace {

using testing::GroupOf;
using testing::LayoutsOf;
using testing::Text;

constexpr int kRanks[] = {1, 2, 3, 5, 6, 7, 8, 12, 24};

PlanRequest Request(OpKind kind, DType dtype, ReduceOp reduction, uint64_t elements) {
  PlanRequest request;
  request.kind = kind;
  request.dtype = dtype;
  request.reduction = reduction;
  request.elements = elements;
  return request;
}

struct Arithmetic {
  DType dtype{};
  ReduceOp op{};
  bool any_order = false;
};
// The tree, the tree with partial results in float32, any order, and any order with those.
const std::vector<Arithmetic> kArithmetic = {{DType::kF64, ReduceOp::kSum, false},
                                             {DType::kBF16, ReduceOp::kSum, false},
                                             {DType::kF16, ReduceOp::kMax, false},
                                             {DType::kS32, ReduceOp::kSum, false},
                                             {DType::kF16, ReduceOp::kProd, true}};

// Requests of all shapes that make a difference, on n ranks.
std::vector<PlanRequest> RequestsOf(OpKind kind, uint64_t n, std::mt19937* random) {
  std::vector<PlanRequest> requests;
  switch (kind) {
    case OpKind::kAllReduce:
      // Fewer elements than processes leave some without a part.
      for (uint64_t count : {0, 1, 3, 10, 29}) {
        if (n > 8 && count < 10) continue;  // time grows with both
        for (const Arithmetic& a : kArithmetic) {
          requests.push_back(Request(kind, a.dtype, a.op, count));
          requests.back().any_order = a.any_order;
        }
      }
      break;
    case OpKind::kReduceScatter:
      for (uint64_t row : {0, 1, 2}) {
        for (const Arithmetic& a : kArithmetic) {
          requests.push_back(Request(kind, a.dtype, a.op, n * row));
          requests.back().any_order = a.any_order;
        }
      }
      break;
    case OpKind::kAllToAll:
      for (uint64_t row : {0, 1, 2})
        requests.push_back(Request(kind, DType::kS16, ReduceOp::kNone, n * row));
      break;
    case OpKind::kBroadcast:
      for (uint64_t count : {0, 1, 3}) {
        requests.push_back(Request(kind, DType::kF32, ReduceOp::kNone, count));
        requests.back().root = static_cast<uint32_t>((*random)() % n);
      }
      break;
    case OpKind::kPermute:
      for (uint64_t count : {0, 1, 3}) {
        requests.push_back(Request(kind, DType::kF32, ReduceOp::kNone, count));
        // A random part of a random permutation.
        std::vector<int64_t> targets(n);
        for (size_t i = 0; i < n; ++i) targets[i] = static_cast<int64_t>(i);
        std::shuffle(targets.begin(), targets.end(), *random);
        for (size_t i = 0; i < n; ++i) {
          if ((*random)() % 4 == 0) continue;
          requests.back().permutation.push_back(static_cast<int64_t>(i));
          requests.back().permutation.push_back(targets[i]);
        }
      }
      break;
    default:
      for (uint64_t count : {0, 1, 3})
        requests.push_back(Request(kind, DType::kF32, ReduceOp::kNone, count));
      break;
  }
  return requests;
}

// Which host the processes are on, by process number: nothing known, blocks of two, a host that has
// one process and a host that has the rest, alternating.
std::vector<std::vector<int32_t>> HostsOf(const std::vector<Member>& group) {
  int32_t most = 0;
  for (const Member& m : group) most = std::max(most, ToInt(m.process));
  std::vector<std::vector<int32_t>> all(4);
  for (int32_t p = 0; p <= most; ++p) {
    all[1].push_back(p / 2);
    all[2].push_back(p == 0 ? 0 : 1);
    all[3].push_back(p % 2);
  }
  return all;
}

class EveryAlgorithm : public ::testing::TestWithParam<Algorithm> {};

TEST_P(EveryAlgorithm, IsRightOnEveryLayout) {
  const Algorithm& algorithm = GetParam();
  std::mt19937 random(31);
  size_t checked = 0;
  for (int n : kRanks) {
    for (const std::vector<Member>& group : LayoutsOf(n, &random)) {
      for (const PlanRequest& plain :
           RequestsOf(algorithm.kind, static_cast<uint64_t>(n), &random)) {
        if (!IsEligible(algorithm, plain)) continue;
        for (const std::vector<int32_t>& hosts : HostsOf(group)) {
          PlanRequest request = plain;
          request.hosts = hosts;
          const std::string fault = CheckSchedules(request, group, [&](ProcessId p) {
            return MakeSchedule(algorithm, request, group, p);
          });
          ASSERT_EQ(fault, "") << Text(group) << ", " << request.elements << " "
                               << DTypeName(request.dtype) << ", host of process 0 and 1: "
                               << (hosts.size() > 1 ? hosts[1] - hosts[0] : -1);
          ++checked;
          // Only this one looks at hosts.
          if (std::string(algorithm.name) != "two_level") break;
        }
      }
    }
  }
  EXPECT_GT(checked, 100u);
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryAlgorithm,
                         ::testing::ValuesIn(Algorithms().begin(), Algorithms().end()),
                         [](const auto& info) {
                           return std::string(OpKindName(info.param.kind)) + "_" + info.param.name;
                         });

TEST(Registry, NamesAndCodesAreUnique) {
  std::set<std::pair<OpKind, std::string>> names;
  std::set<std::pair<OpKind, int>> codes;
  for (const Algorithm& a : Algorithms()) {
    EXPECT_TRUE(names.emplace(a.kind, a.name).second) << a.name;
    EXPECT_TRUE(codes.emplace(a.kind, a.code).second) << a.name;
    EXPECT_GT(a.code, 0) << a.name;
    EXPECT_LT(a.code, 32) << a.name;
    EXPECT_EQ(FindAlgorithm(a.kind, a.name)->code, a.code);
    EXPECT_EQ(AlgorithmName(a.kind, a.code), a.name);
  }
  EXPECT_EQ(FindAlgorithm(OpKind::kBarrier, "ring"), nullptr);
  EXPECT_EQ(AlgorithmName(OpKind::kBarrier, 31), "algorithm 31");
}

TEST(Registry, EveryCollectiveHasOneThatIsAlwaysEligible) {
  for (OpKind kind : OpKinds()) {
    bool any = false;
    for (const Algorithm& a : Algorithms()) any |= a.kind == kind && !a.free_order;
    EXPECT_TRUE(any) << OpKindName(kind);
  }
}

TEST(Registry, FreeOrder_OnlyWhereBitsCannotDiffer) {
  const Algorithm& ring = *FindAlgorithm(OpKind::kAllReduce, "ring");
  PlanRequest request = Request(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, 8);
  EXPECT_FALSE(IsEligible(ring, request));
  // The order decides between -0 and +0.
  request.reduction = ReduceOp::kMax;
  EXPECT_FALSE(IsEligible(ring, request));
  request.any_order = true;
  EXPECT_TRUE(IsEligible(ring, request));
  EXPECT_TRUE(IsEligible(ring, Request(OpKind::kAllReduce, DType::kU8, ReduceOp::kProd, 8)));
}

struct Traffic {
  uint64_t bytes = 0, messages = 0;  // of all processes together
  size_t steps = 0;                  // stages with messages
  uint64_t between_hosts = 0;        // bytes
};
Traffic TrafficOf(OpKind kind, const char* name, const PlanRequest& request,
                  const std::vector<int>& devices) {
  const std::vector<Member> group = GroupOf(devices);
  Traffic traffic;
  std::set<size_t> steps;
  for (size_t p = 0; p < devices.size(); ++p) {
    const Schedule s = MakeSchedule(*FindAlgorithm(kind, name), request, group,
                                    static_cast<ProcessId>(static_cast<int32_t>(p)));
    for (size_t k = 0; k < s.stages.size(); ++k) {
      for (const Transfer& t : s.stages[k].sends) {
        steps.insert(k);
        ++traffic.messages;
        traffic.bytes += t.slice.bytes;
        const auto q = static_cast<size_t>(ToInt(t.peer));
        if (!request.hosts.empty() && request.hosts[p] != request.hosts[q])
          traffic.between_hosts += t.slice.bytes;
      }
    }
  }
  traffic.steps = steps.size();
  return traffic;
}

TEST(Registry, AllReduce_BytesMessagesAndSteps) {
  // 4 processes of 2 ranks, 6 float32 for each rank of each process.
  const uint64_t s = 48 * 4, p = 4, l = 2;
  const PlanRequest request = Request(OpKind::kAllReduce, DType::kF32, ReduceOp::kSum, 48);
  const auto of = [&](const char* name) {
    return TrafficOf(OpKind::kAllReduce, name, request, {2, 2, 2, 2});
  };
  EXPECT_EQ(of("direct").bytes, p * l * s * (p - 1));
  EXPECT_EQ(of("direct").messages, p * l * (p - 1));
  EXPECT_EQ(of("direct").steps, 1u);
  EXPECT_EQ(of("partials").bytes, p * s * (p - 1));
  EXPECT_EQ(of("partials").messages, p * (p - 1));
  EXPECT_EQ(of("partials").steps, 1u);
  EXPECT_EQ(of("doubling").bytes, p * s * 2);
  EXPECT_EQ(of("doubling").messages, p * 2);
  EXPECT_EQ(of("doubling").steps, 2u);
  EXPECT_EQ(of("split").bytes, p * (l + 1) * s * (p - 1) / p);
  EXPECT_EQ(of("split").messages, p * (l + 1) * (p - 1));
  EXPECT_EQ(of("split").steps, 2u);
  EXPECT_EQ(of("halving").bytes, p * 2 * s * (p - 1) / p);
  EXPECT_EQ(of("halving").messages, p * 4);
  EXPECT_EQ(of("halving").steps, 4u);
  EXPECT_EQ(of("two_level").bytes, p * 2 * s * (p - 1) / p);
  EXPECT_EQ(of("two_level").messages, p * 2 * (p - 1));
  EXPECT_EQ(of("two_level").steps, 2u);

  PlanRequest integers = request;
  integers.dtype = DType::kS32;
  const Traffic ring = TrafficOf(OpKind::kAllReduce, "ring", integers, {2, 2, 2, 2});
  EXPECT_EQ(ring.bytes, p * 2 * s * (p - 1) / p);
  EXPECT_EQ(ring.messages, p * 2 * (p - 1));
  EXPECT_EQ(ring.steps, 6u);

  // Of two hosts with two processes each, a process sends its half to the host beside it.
  PlanRequest hosts = request;
  hosts.hosts = {0, 0, 1, 1};
  const Traffic levels = TrafficOf(OpKind::kAllReduce, "two_level", hosts, {2, 2, 2, 2});
  EXPECT_EQ(levels.between_hosts, p * 2 * s / 4);
  EXPECT_EQ(levels.bytes, levels.between_hosts + p * 2 * s / 2);
  EXPECT_EQ(levels.steps, 4u);
  EXPECT_EQ(levels.messages, p * 4);
}

TEST(Registry, PartialResultsOfHalfTypesAreTwiceAsLong) {
  const PlanRequest request = Request(OpKind::kAllReduce, DType::kBF16, ReduceOp::kSum, 64);
  EXPECT_EQ(TrafficOf(OpKind::kAllReduce, "partials", request, {2, 2}).bytes, 2u * 64 * 4);
  // The input of one rank is no partial result, and a maximum needs no precision.
  EXPECT_EQ(TrafficOf(OpKind::kAllReduce, "partials", request, {1, 1}).bytes, 2u * 64 * 2);
  PlanRequest maximum = request;
  maximum.reduction = ReduceOp::kMax;
  EXPECT_EQ(TrafficOf(OpKind::kAllReduce, "partials", maximum, {2, 2}).bytes, 2u * 64 * 2);
}

TEST(Registry, Others_BytesMessagesAndSteps) {
  const std::vector<int> devices = {2, 2, 2, 2, 2};
  const uint64_t p = 5, l = 2, n = 10, c = 3 * 4, s = n * c;
  const auto of = [&](OpKind kind, const char* name, uint64_t elements) {
    const ReduceOp op = kind == OpKind::kReduceScatter ? ReduceOp::kSum : ReduceOp::kNone;
    return TrafficOf(kind, name, Request(kind, DType::kS32, op, elements), devices);
  };
  const auto expect = [](const Traffic& t, uint64_t bytes, uint64_t messages, size_t steps) {
    EXPECT_EQ(t.bytes, bytes);
    EXPECT_EQ(t.messages, messages);
    EXPECT_EQ(t.steps, steps);
  };
  expect(of(OpKind::kReduceScatter, "direct", 3 * n), n * (n - l) * c, n * (n - l), 1);
  expect(of(OpKind::kReduceScatter, "partials", 3 * n), p * (n - l) * c, p * (p - 1), 1);
  expect(of(OpKind::kReduceScatter, "ring", 3 * n), p * (n - l) * c, p * (p - 1), 4);
  expect(of(OpKind::kAllGather, "direct", 3), n * (p - 1) * c, n * (p - 1), 1);
  expect(of(OpKind::kAllGather, "packed", 3), n * (p - 1) * c, p * (p - 1), 1);
  expect(of(OpKind::kAllGather, "ring", 3), n * (p - 1) * c, p * (p - 1), 4);
  const Traffic gather = of(OpKind::kAllGather, "bruck", 3);
  EXPECT_EQ(gather.bytes, n * (p - 1) * c);
  EXPECT_EQ(gather.steps, 3u);
  EXPECT_LE(gather.messages, 2 * p * 3);  // blocks that wrap around are two
  expect(of(OpKind::kAllToAll, "direct", 3 * n), n * (n - l) * c, n * (n - l), 1);
  expect(of(OpKind::kAllToAll, "packed", 3 * n), n * (n - l) * c, p * (p - 1), 1);
  // Distances 1 to 4 have 1, 1, 2 and 1 bits.
  expect(of(OpKind::kAllToAll, "bruck", 3 * n), p * 5 * l * s * l / n, p * 3, 3);
  expect(of(OpKind::kBroadcast, "direct", 3), (p - 1) * c, p - 1, 1);
  expect(of(OpKind::kBroadcast, "binomial", 3), (p - 1) * c, p - 1, 3);
  expect(of(OpKind::kBarrier, "direct", 0), 0, p * (p - 1), 1);
  expect(of(OpKind::kBarrier, "dissemination", 0), 0, p * 3, 3);
}

TEST(Registry, OneProcess_SendsNothing) {
  const std::vector<Member> group = GroupOf({8});
  for (const Algorithm& a : Algorithms()) {
    const PlanRequest request = Request(a.kind, DType::kS32, ReduceOp::kSum, 64);
    for (const Stage& stage : MakeSchedule(a, request, group, ProcessId{0}).stages)
      EXPECT_TRUE(stage.sends.empty() && stage.receives.empty()) << a.name;
  }
}

TEST(Registry, NoBytes_NoStages) {
  const std::vector<Member> group = GroupOf({2, 2});
  for (const Algorithm& a : Algorithms()) {
    if (a.kind == OpKind::kBarrier || a.kind == OpKind::kRaggedAllToAll) continue;
    const PlanRequest request = Request(a.kind, DType::kS32, ReduceOp::kSum, 0);
    EXPECT_TRUE(MakeSchedule(a, request, group, ProcessId{1}).stages.empty()) << a.name;
  }
}

}  // namespace
}  // namespace uccl::coll
