// Tests of csrc/collectives/cost_model.h: sums worked out by hand, and what must hold for any
// parameters.
#include "csrc/collectives/cost_model.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "csrc/collectives/testing/layouts.h"

namespace uccl::coll {
namespace {

using testing::GroupOf;

CostParams Zero() {
  CostParams params;
  for (const CostRow& row : CostRows()) params.*row.member = 0;
  return params;
}
PlanRequest AllReduce(uint64_t floats) {
  PlanRequest request;
  request.kind = OpKind::kAllReduce;
  request.dtype = DType::kF32;
  request.reduction = ReduceOp::kSum;
  request.elements = floats;
  return request;
}
uint64_t Cost(const CostParams& params, const char* name, const PlanRequest& request,
              const std::vector<int>& devices) {
  return CostOf(params, *FindAlgorithm(request.kind, name), request, GroupOf(devices));
}

TEST(CostModel, AllReduceDirect_ByHand) {
  // 3 processes of one rank, 1000 float32: 2 messages each way, 3 vectors into the reduction.
  CostParams params = Zero();
  params.stage_ns = 100;
  EXPECT_EQ(Cost(params, "direct", AllReduce(1000), {1, 1, 1}), 100'000u);
  params.host_latency_ns = 7;
  EXPECT_EQ(Cost(params, "direct", AllReduce(1000), {1, 1, 1}), 107'000u);
  params.host_message_ns = 10;
  EXPECT_EQ(Cost(params, "direct", AllReduce(1000), {1, 1, 1}), 147'000u);
  params.host_byte_ps = 2;
  EXPECT_EQ(Cost(params, "direct", AllReduce(1000), {1, 1, 1}), 147'000u + 2 * 4000 * 2);
  params.reduce_byte_ps = 3;
  EXPECT_EQ(Cost(params, "direct", AllReduce(1000), {1, 1, 1}),
            147'000u + 2 * 4000 * 2 + 3 * 4000 * 3);
  params.reduce_item_ns = 1;
  EXPECT_EQ(Cost(params, "direct", AllReduce(1000), {1, 1, 1}),
            148'000u + 2 * 4000 * 2 + 3 * 4000 * 3);
}

TEST(CostModel, SecondResultOfAProcessIsACopy) {
  CostParams params = Zero();
  params.copy_byte_ps = 5;
  EXPECT_EQ(Cost(params, "direct", AllReduce(1000), {3}), 2u * 4000 * 5);
}

TEST(CostModel, SlowestProcessOfAStageCounts) {
  // Both reduce four vectors; the process of three ranks makes two copies more.
  CostParams params = Zero();
  params.copy_byte_ps = 5;
  EXPECT_EQ(Cost(params, "direct", AllReduce(1000), {1, 3}), 2u * 4000 * 5);
  EXPECT_EQ(Cost(params, "direct", AllReduce(1000), {3, 1}), 2u * 4000 * 5);
}

TEST(CostModel, HostsHaveLinksOfTheirOwnAndShareThem) {
  CostParams params = Zero();
  params.host_latency_ns = 1;
  params.network_latency_ns = 1000;
  PlanRequest request = AllReduce(1000);
  EXPECT_EQ(Cost(params, "direct", request, {1, 1, 1, 1}), 1'000u);
  request.hosts = {0, 0, 1, 1};
  EXPECT_EQ(Cost(params, "direct", request, {1, 1, 1, 1}), 1'001'000u);
  params = Zero();
  params.network_byte_ps = 1;
  // Each of two processes of a host sends 4000 bytes to each of two on the other one.
  EXPECT_EQ(Cost(params, "direct", request, {1, 1, 1, 1}), 2u * 2 * 4000);
}

TEST(CostModel, LargerIsNeverCheaper) {
  const CostParams params;
  for (const Algorithm& a : Algorithms()) {
    PlanRequest request;
    request.kind = a.kind;
    request.dtype = DType::kS32;
    request.reduction = ReduceOp::kSum;
    uint64_t before = 0;
    for (uint64_t elements : {60, 600, 6000, 60000}) {
      request.elements = elements;
      const uint64_t cost = CostOf(params, a, request, GroupOf({2, 2, 2}));
      EXPECT_GE(cost, before) << a.name;
      EXPECT_GT(cost, 0u);
      before = cost;
    }
  }
}

// Many processes are priced by some of them, the busiest among these.
TEST(CostModel, BroadcastRootAmongManyProcessesIsSeen) {
  CostParams params = Zero();
  params.host_message_ns = 1;
  PlanRequest request;
  request.kind = OpKind::kBroadcast;
  request.dtype = DType::kF32;
  request.elements = 10;
  for (uint32_t root : {0u, 501u, 999u}) {
    request.root = root;
    EXPECT_EQ(Cost(params, "direct", request, std::vector<int>(1000, 1)), 999'000u);
  }
}

TEST(CostModel, DigestChangesWithEveryParameter) {
  std::set<uint64_t> digests = {DigestOf(CostParams())};
  for (const CostRow& row : CostRows()) {
    CostParams params;
    EXPECT_EQ(params.*row.member, row.default_value);
    ++(params.*row.member);
    EXPECT_TRUE(digests.insert(DigestOf(params)).second) << row.name;
  }
}

}  // namespace
}  // namespace uccl::coll
