// A fixed set of fault schedules, in which no checker may fire; and that schedules are what they
// are meant to be: of every kind, effective, and replayed by their number.
#include "csrc/sim/chaos.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "csrc/base/testing/sanitized.h"
#include "csrc/core/cc/registry.h"
#include "csrc/core/credit/registry.h"
#include "csrc/core/path/path_selector.h"
#include "csrc/sim/json.h"
#include "csrc/sim/simulator.h"
#include "csrc/sim/workload.h"

namespace uccl::sim {
namespace {

TEST(Chaos, DrawsEveryFabricWorkloadTransportPolicyAndController) {
  std::set<std::string> fabrics, workloads, transports, policies, controllers, scopes, schedulers;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const Settings s = ChaosSettings(seed);
    EXPECT_EQ(s.seed, static_cast<int64_t>(seed));
    fabrics.insert(s.fabric);
    workloads.insert(s.workload);
    transports.insert(s.transport);
    policies.insert(s.path_policy);
    controllers.insert(s.congestion_control);
    scopes.insert(s.cc_scope);
    schedulers.insert(s.receiver_scheduler);
  }
  EXPECT_EQ(fabrics.size(), 3u);
  EXPECT_EQ(workloads.size(), Workloads().size());
  EXPECT_EQ(transports.size(), 3u);
  EXPECT_EQ(policies.size(), core::PathSelectors().size());
  EXPECT_EQ(controllers.size(), core::CongestionControllers().size());
  EXPECT_EQ(scopes.size(), 2u);
  EXPECT_EQ(schedulers.size(), core::ReceiverSchedulers().size());
}

TEST(Chaos, AThousandSchedulesWithoutAViolation) {
  constexpr uint64_t kSchedules = UnderSanitizers(250, 1000);
  const ChaosSummary summary = RunChaos(1, kSchedules);
  EXPECT_EQ(summary.schedules, kSchedules);
  EXPECT_EQ(summary.violations, 0u);
  for (const ChaosFailure& failure : summary.failures) {
    ADD_FAILURE() << "jax-uccl sim --schedules 1 --seed " << failure.seed << ": " << failure.text;
  }
  // The schedules do bite.
  EXPECT_GT(summary.drops, summary.packets / 1000);
  EXPECT_GT(summary.corrupted, kSchedules / 10);
  EXPECT_GT(summary.duplicated, kSchedules / 10);
  EXPECT_GT(summary.marked, kSchedules);
  EXPECT_GT(summary.retransmits, kSchedules);
  EXPECT_GT(summary.timeouts, kSchedules / 10);
}

TEST(Chaos, ANumberReplaysItsSchedule) {
  for (uint64_t seed : {3u, 4u, 5u}) {
    const Settings settings = ChaosSettings(seed);
    const Result<Report> a = Simulate(settings), b = Simulate(settings);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(ToJson(settings, a.value()), ToJson(settings, b.value()));
  }
  EXPECT_EQ(RunChaos(10, 6).trace_hash, RunChaos(10, 2).trace_hash + RunChaos(12, 4).trace_hash);
}

TEST(Chaos, SettingsOfAScheduleAreSettingsThatAUserCouldGive) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Settings settings = ChaosSettings(seed);
    const Result<Settings> again = MakeSettings(ToText(settings));
    ASSERT_TRUE(again.ok()) << "seed " << seed << ": " << again.status().ToString();
    EXPECT_EQ(ToText(again.value()), ToText(settings));
  }
}

TEST(Chaos, EndsWhenToldTo) {
  const ChaosSummary summary = RunChaos(1, 1000, [](uint64_t done) { return done < 3; });
  EXPECT_EQ(summary.schedules, 3u);
}

}  // namespace
}  // namespace uccl::sim
