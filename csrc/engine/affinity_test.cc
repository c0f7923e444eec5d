// Tests of csrc/engine/affinity.h.
#include "csrc/engine/affinity.h"

#include <gtest/gtest.h>

namespace uccl::engine {
namespace {

using Cpus = std::vector<int>;

Cpus Plan(const std::string& setting, const Cpus& allowed, int engines, int process = 0) {
  Result<Cpus> plan = PlanCpus(setting, allowed, engines, process);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? plan.value() : Cpus{-1};
}

TEST(Affinity, PlanCpus_NothingBindsNothing) { EXPECT_EQ(Plan("", {0, 1}, 2), Cpus{}); }

TEST(Affinity, PlanCpus_AutoTakesTheAllowedInTurnAcrossProcesses) {
  EXPECT_EQ(Plan("auto", {2, 3, 8}, 2, 0), (Cpus{2, 3}));
  EXPECT_EQ(Plan("auto", {2, 3, 8}, 2, 1), (Cpus{8, 2}));
  EXPECT_EQ(Plan("auto", {5}, 3, 7), (Cpus{5, 5, 5}));
  // Processes of one host with one engine each have a processor each.
  EXPECT_NE(Plan("auto", {0, 1}, 1, 0), Plan("auto", {0, 1}, 1, 1));
}

TEST(Affinity, PlanCpus_ListIsTakenInTurn) {
  EXPECT_EQ(Plan("3,5-7", {0, 3, 4, 5, 6, 7}, 3), (Cpus{3, 5, 6}));
  EXPECT_EQ(Plan("3,5-7", {3, 5, 6, 7}, 6), (Cpus{3, 5, 6, 7, 3, 5}));
  EXPECT_EQ(Plan("4", {4}, 2, 9), (Cpus{4, 4}));
}

TEST(Affinity, PlanCpus_OutsideTheMaskNamesBoth) {
  const Cpus allowed = {0, 1, 2, 5};
  Result<Cpus> plan = PlanCpus("1,3-4", allowed, 1, 0);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code, StatusCode::kInvalidArgument);
  EXPECT_NE(plan.status().detail.find("CPU 3"), std::string::npos) << plan.status().detail;
  EXPECT_NE(plan.status().detail.find("0-2,5"), std::string::npos) << plan.status().detail;
  EXPECT_NE(plan.status().detail.find("JAX_UCCL_ENGINE_CPUS"), std::string::npos);
}

TEST(Affinity, PlanCpus_WhatIsNoListIsRefused) {
  const Cpus allowed = {0, 1, 2, 3, 4, 5, 6, 7};
  for (const char* text : {"AUTO", "x", ",", "1,", ",1", "1-", "-1", "3-1", "1.5", " 1", "99999"}) {
    Result<Cpus> plan = PlanCpus(text, allowed, 1, 0);
    ASSERT_FALSE(plan.ok()) << text;
    EXPECT_EQ(plan.status().code, StatusCode::kInvalidArgument);
    EXPECT_NE(plan.status().detail.find(text), std::string::npos);
  }
  EXPECT_FALSE(PlanCpus("auto", {}, 1, 0).ok());
}

TEST(Affinity, CpuListText_JoinsNeighbours) {
  EXPECT_EQ(CpuListText(Cpus{}), "");
  EXPECT_EQ(CpuListText(Cpus{7}), "7");
  EXPECT_EQ(CpuListText(Cpus{0, 1, 2, 4, 6, 7}), "0-2,4,6-7");
}

TEST(Affinity, AllowedCpus_HoldsAtLeastOne) { EXPECT_GE(AllowedCpus().size(), 1u); }

}  // namespace
}  // namespace uccl::engine
