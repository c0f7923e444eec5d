// Tests of csrc/collectives/call_site.h: attributes, seats, instance numbers, cached schedules.
#include "csrc/collectives/call_site.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace uccl::coll {
namespace {

// A 2 x 2 mesh over two processes with two devices each; groups along the first axis.
CallSiteSpec Spec() {
  CallSiteSpec s;
  s.kind = OpKind::kAllReduce;
  s.reduction = ReduceOp::kSum;
  s.site = 7;
  s.position = 70;
  s.label = "psum float32[4] axis=(x)";
  s.module = "jit_f";
  s.group_size = 2;
  s.groups = {0, 2, 1, 3};
  s.devices = {0, 1, 2048, 2049};
  s.processes = {0, 0, 1, 1};
  return s;
}

std::shared_ptr<CallSite> MakeSite(CallSiteSpec spec, InstanceTable* table) {
  auto made = CallSite::Make(std::move(spec), table, 1);
  if (!made.ok()) {
    ADD_FAILURE() << made.status().ToString();
    return nullptr;
  }
  return made.value();
}

TEST(CallSite, SeatOf_FindsTheGroupInOrder) {
  InstanceTable table;
  const auto site = MakeSite(Spec(), &table);
  const auto seat = site->SeatOf(2049, -1, {});
  ASSERT_TRUE(seat.ok());
  const Communicator& comm = *seat.value().comm;
  EXPECT_EQ(comm.members, (std::vector<Member>{{1, ProcessId{0}}, {2049, ProcessId{1}}}));
  EXPECT_EQ(comm.self, ProcessId{1});
  EXPECT_EQ(comm.locals, std::vector<uint32_t>{1});
  EXPECT_EQ(seat.value().local, 0u);
  EXPECT_FALSE(comm.all_local());
}

TEST(CallSite, SeatOf_MembersOfOneGroupShareTheId) {
  InstanceTable table;
  const auto site = MakeSite(Spec(), &table);
  const auto id = [&](int64_t device) { return site->SeatOf(device, -1, {}).value().comm->id; };
  EXPECT_EQ(id(0), id(2048));
  EXPECT_EQ(id(1), id(2049));
  EXPECT_NE(id(0), id(1));
  EXPECT_LT(id(0), uint64_t{1} << 63);
}

TEST(CallSite, SeatOf_OrderOfTheGroupIsPartOfTheId) {
  InstanceTable table;
  CallSiteSpec turned = Spec();
  turned.groups = {2, 0, 3, 1};
  const auto a = MakeSite(Spec(), &table), b = MakeSite(turned, &table);
  EXPECT_NE(a->SeatOf(0, -1, {}).value().comm->id, b->SeatOf(0, -1, {}).value().comm->id);
}

TEST(CallSite, SeatOf_SeveralLocalsAreCountedInGroupOrder) {
  InstanceTable table;
  CallSiteSpec spec = Spec();
  spec.group_size = 4;
  spec.groups = {3, 1, 2, 0};
  const auto site = MakeSite(spec, &table);
  const auto first = site->SeatOf(1, -1, {}).value(), second = site->SeatOf(0, -1, {}).value();
  EXPECT_EQ(first.comm->locals, (std::vector<uint32_t>{1, 3}));
  EXPECT_EQ(first.local, 0u);
  EXPECT_EQ(second.local, 1u);
}

TEST(CallSite, SeatOf_ForeignDeviceIsAnError) {
  InstanceTable table;
  const auto seat = MakeSite(Spec(), &table)->SeatOf(5, -1, {});
  ASSERT_FALSE(seat.ok());
  EXPECT_EQ(seat.status().code, StatusCode::kInvalidArgument);
  EXPECT_EQ(seat.status().op, "psum float32[4] axis=(x)");
  EXPECT_NE(seat.status().detail.find("device 5"), std::string::npos);
}

TEST(CallSite, SeatOf_DeviceOutsideAllGroupsIsAnError) {
  InstanceTable table;
  CallSiteSpec spec = Spec();
  spec.groups = {0, 2};
  const auto seat = MakeSite(spec, &table)->SeatOf(1, -1, {});
  ASSERT_FALSE(seat.ok());
  EXPECT_NE(seat.status().detail.find("none of the groups"), std::string::npos);
}

CallSiteSpec Exported() {
  CallSiteSpec spec = Spec();
  spec.devices.clear();
  spec.processes.clear();
  return spec;
}

TEST(CallSite, SeatOf_ExportedModuleUsesTheDefaultDevices) {
  InstanceTable table;
  const DeviceTable defaults{{0, 1, 2048, 2049}, {0, 0, 1, 1}};
  const auto seat = MakeSite(Exported(), &table)->SeatOf(2049, 3, defaults);
  ASSERT_TRUE(seat.ok());
  const auto native = MakeSite(Spec(), &table)->SeatOf(2049, -1, {});
  EXPECT_EQ(seat.value().comm->id, native.value().comm->id);
  EXPECT_EQ(seat.value().comm->members, native.value().comm->members);
}

TEST(CallSite, SeatOf_ExportedModuleWithoutAKnownDeviceListNamesTheFix) {
  InstanceTable table;
  const auto site = MakeSite(Exported(), &table);
  const auto seat = site->SeatOf(0, 0, {});
  ASSERT_FALSE(seat.ok());
  EXPECT_NE(seat.status().detail.find("jax_uccl.init()"), std::string::npos);
  EXPECT_TRUE(site->SeatOf(0, 0, {{0, 1, 2, 3}, {0, 0, 0, 0}}).ok()) << "the error was remembered";
}

TEST(CallSite, SeatOf_ExportedModuleOverAnotherOrderIsAnError) {
  InstanceTable table;
  const auto seat = MakeSite(Exported(), &table)->SeatOf(0, 2, {{0, 1, 2, 3}, {0, 0, 0, 0}});
  ASSERT_FALSE(seat.ok());
  EXPECT_NE(seat.status().detail.find("partition 2"), std::string::npos);
}

TEST(CallSite, SeatOf_ExportedModuleForMoreDevicesIsAnError) {
  InstanceTable table;
  const auto seat = MakeSite(Exported(), &table)->SeatOf(0, 0, {{0, 1}, {0, 0}});
  ASSERT_FALSE(seat.ok());
  EXPECT_NE(seat.status().detail.find("beyond the 2 devices"), std::string::npos);
}

TEST(CallSite, Make_RefusesContradictions) {
  InstanceTable table;
  const auto refuses = [&](auto change, const std::string& words) {
    CallSiteSpec spec = Spec();
    change(spec);
    const auto made = CallSite::Make(spec, &table, 1);
    ASSERT_FALSE(made.ok()) << words;
    EXPECT_EQ(made.status().code, StatusCode::kInvalidArgument);
    EXPECT_NE(made.status().detail.find(words), std::string::npos) << made.status().detail;
  };
  refuses([](CallSiteSpec& s) { s.group_size = 0; }, "group_size 0");
  refuses([](CallSiteSpec& s) { s.group_size = -2; }, "group_size -2");
  refuses([](CallSiteSpec& s) { s.group_size = 3; }, "group_size 3");
  refuses([](CallSiteSpec& s) { s.groups.clear(); }, "does not divide");
  refuses([](CallSiteSpec& s) { s.processes.pop_back(); }, "`processes` 3");
  refuses([](CallSiteSpec& s) { s.groups[0] = 4; }, "partition 4");
  refuses([](CallSiteSpec& s) { s.groups[0] = -1; }, "partition -1");
}

TEST(CallSite, InstancesAndLaunches_AreNumbered) {
  InstanceTable table;
  const auto a = MakeSite(Spec(), &table), b = MakeSite(Spec(), &table);
  EXPECT_EQ(a->instance().number, 0u);
  EXPECT_EQ(b->instance().number, 1u);
  EXPECT_NE(a->launch(), b->launch());
  a->MarkExecuted(&table);
  a->MarkExecuted(&table);
  EXPECT_EQ(MakeSite(Spec(), &table)->instance().number, 0u);
}

TEST(CallSite, PlanFor_DependsOnSizeAndPolicy) {
  InstanceTable table;
  const auto site = MakeSite(Spec(), &table);
  const Communicator& comm = *site->SeatOf(0, -1, {}).value().comm;
  const auto policy = [](const std::string& algorithms) {
    Config config;
    config.algorithms = algorithms;
    return MakePolicy(config).value();
  };
  const auto direct = policy("all_reduce=direct");
  const auto plan = site->MakePlan(comm, 100, DType::kF32, *direct, CallSite::PlanFor::kProcess);
  ASSERT_TRUE(plan.ok());
  EXPECT_STREQ(plan.value().algorithm->name, "direct");
  EXPECT_EQ(
      site->MakePlan(comm, 100, DType::kF32, *direct, CallSite::PlanFor::kProcess).value().schedule,
      plan.value().schedule);
  EXPECT_NE(
      site->MakePlan(comm, 50, DType::kF32, *direct, CallSite::PlanFor::kProcess).value().schedule,
      plan.value().schedule);
  // Settings may differ after shutdown and init, while the executable stays.
  EXPECT_EQ(site->MakePlan(comm, 100, DType::kF32, *policy("all_reduce=split"),
                           CallSite::PlanFor::kProcess)
                .value()
                .schedule->stages.size(),
            2u);
  const auto ring = policy("all_reduce=ring");
  for (int i = 0; i < 2; ++i)
    EXPECT_FALSE(site->MakePlan(comm, 100, DType::kF32, *ring, CallSite::PlanFor::kProcess).ok());
}

}  // namespace
}  // namespace uccl::coll
