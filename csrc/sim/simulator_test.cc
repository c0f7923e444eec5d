// Whole runs: determinism, every workload on every fabric with the checkers on, faults, baselines.
#include "csrc/sim/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "csrc/core/cc/registry.h"
#include "csrc/sim/json.h"
#include "csrc/sim/workload.h"

namespace uccl::sim {
namespace {

using Values = std::map<std::string, std::string>;

Result<Report> TryRun(const Values& values) {
  const Result<Settings> settings = MakeSettings(values);
  if (!settings.ok()) return settings.status();
  return Simulate(settings.value());
}

Report MustRun(const Values& values) {
  Result<Report> report = TryRun(values);
  if (!report.ok()) throw std::runtime_error(report.status().ToString());
  return std::move(report.value());
}

// Small, with everything on.
Values Base(const std::string& fabric = "leaf_spine", const std::string& workload = "permutation") {
  return {{"fabric", fabric},  {"workload", workload}, {"hosts", "8"},
          {"bytes", "200000"}, {"paths", "16"},        {"segment_bytes", "65536"}};
}

void ExpectClean(const Report& report) {
  EXPECT_TRUE(report.complete);
  EXPECT_EQ(report.violations, 0u);
  for (const std::string& text : report.violation_texts) ADD_FAILURE() << text;
  // All packets are accounted for, and none is left on the way.
  EXPECT_EQ(report.network.sent + report.network.duplicated,
            report.network.delivered + report.network.dropped);
  EXPECT_EQ(report.network.dropped,
            report.queue_drops + report.loss_drops + report.down_drops + report.receive_ring_drops);
}

TEST(Simulator, EqualSeedsGiveEqualRunsEventForEvent) {
  Values values = Base();
  values["chaos"] = "20";
  const Report a = MustRun(values), b = MustRun(values);
  EXPECT_EQ(a.trace_hash, b.trace_hash);
  EXPECT_EQ(a.events, b.events);
  EXPECT_EQ(a.flow_ns, b.flow_ns);
  values["seed"] = "2";
  EXPECT_NE(MustRun(values).trace_hash, a.trace_hash);
}

TEST(Simulator, EveryWorkloadOnEveryFabricCompletes) {
  for (const char* fabric : {"dumbbell", "leaf_spine", "fat_tree"}) {
    for (const WorkloadRow& row : Workloads()) {
      SCOPED_TRACE(std::string(fabric) + " " + row.name);
      const Report report = MustRun(Base(fabric, row.name));
      ExpectClean(report);
      EXPECT_EQ(report.flow_ns.size() + report.small_flow_ns.size() + report.cross_flow_ns.size(),
                report.flows);
      EXPECT_GT(report.flow_ns.front(), 0);
      EXPECT_GE(report.completion, report.ideal) << "faster than possible";
      EXPECT_GT(report.goodput_share, 0);
      EXPECT_LE(report.goodput_share, 1);
    }
  }
}

TEST(Simulator, EveryTransportWithEveryCongestionControllerCompletes) {
  for (const char* transport : {"spray", "single", "bundle"}) {
    for (const core::CongestionControllerRow& row : core::CongestionControllers()) {
      SCOPED_TRACE(std::string(transport) + " " + row.name);
      Values values = Base("leaf_spine", "incast");
      values["transport"] = transport;
      values["congestion_control"] = row.name;
      values["deadline_ms"] = "20000";
      ExpectClean(MustRun(values));
    }
  }
}

TEST(Simulator, ReceiverCreditsServeEveryWorkload) {
  for (const WorkloadRow& row : Workloads()) {
    for (const char* initial : {"0", "20000"}) {
      SCOPED_TRACE(std::string(row.name) + " " + initial);
      Values values = Base("fat_tree", row.name);
      values["receiver_scheduler"] = "eqds";
      values["credit_initial_bytes"] = initial;
      const Report report = MustRun(values);
      ExpectClean(report);
      EXPECT_GT(report.transport.requests_to_send, 0u);
    }
  }
}

// Seven to one: the receiver lets in what its link carries, and everybody gets about the same.
TEST(Simulator, ReceiverCreditsKeepAnIncastOutOfTheQueue) {
  Values values = Base("leaf_spine", "incast");
  values["bytes"] = "1000000";
  values["datagram_bytes"] = "4096";
  values["queue_bytes"] = "200000";
  const Report without = MustRun(values);
  ExpectClean(without);
  EXPECT_GT(without.queue_drops, 0u);
  values["receiver_scheduler"] = "eqds";
  values["credit_initial_bytes"] = "8192";
  const Report report = MustRun(values);
  ExpectClean(report);
  EXPECT_EQ(report.queue_drops, 0u);
  EXPECT_LT(report.peak_queue_bytes, 150'000);
  EXPECT_GT(report.goodput_share, 0.9);
  EXPECT_LT(static_cast<double>(report.flow_ns.back()),
            1.2 * static_cast<double>(report.flow_ns.front()));
}

TEST(Simulator, AShortQueueDropsAndAllArrivesAllTheSame) {
  Values values = Base("leaf_spine", "incast");
  values["queue_bytes"] = "60000";
  const Report report = MustRun(values);
  ExpectClean(report);
  EXPECT_GT(report.queue_drops, 0u);
  EXPECT_LE(report.peak_queue_bytes, 60000);
  EXPECT_GT(report.transport.retransmits_fast + report.transport.retransmits_timeout, 0u);
}

TEST(Simulator, MarksAboveTheEcnThreshold) {
  Values values = Base("leaf_spine", "incast");
  values["bytes"] = "20000";
  EXPECT_EQ(MustRun(values).network.marked, 0u);
  values["ecn_bytes"] = "10000";
  EXPECT_GT(MustRun(values).network.marked, 0u);
}

// Marks come back with ACKs, and the controller that lives on them keeps the queue about where they
// begin; a fixed window fills it.
TEST(Simulator, DcqcnHoldsAStandingQueueNearTheThresholdWithoutDrops) {
  Values values = Base("dumbbell", "incast");
  values["fan_in"] = "4";
  values["bytes"] = "40000000";
  values["segment_bytes"] = "262144";
  values["datagram_bytes"] = "4096";
  values["host_gbps"] = "100";
  values["ecn_bytes"] = "100000";
  values["queue_bytes"] = "4000000";
  values["window_bytes"] = "2000000";
  const auto deepest_later = [](const Report& report) {
    int64_t deepest = 0;
    for (const QueueSample& sample : report.queues) {
      if (sample.time > report.completion / 4 && sample.time < report.completion * 3 / 4) {
        deepest = std::max(deepest, sample.max_bytes);
      }
    }
    return deepest;
  };
  const Report fixed = MustRun(values);
  ExpectClean(fixed);
  EXPECT_GT(deepest_later(fixed), 2'000'000);
  values["congestion_control"] = "dcqcn";
  const Report dcqcn = MustRun(values);
  ExpectClean(dcqcn);
  EXPECT_GT(dcqcn.network.marked, 0u);
  EXPECT_EQ(dcqcn.queue_drops, 0u);
  EXPECT_LT(deepest_later(dcqcn), 4 * 100'000);
  EXPECT_GT(dcqcn.goodput_share, 0.7);
}

TEST(Simulator, LostPacketsAreSentAgain) {
  Values values = Base();
  values["loss"] = "0.02";
  values["deadline_ms"] = "20000";
  const Report report = MustRun(values);
  ExpectClean(report);
  EXPECT_GT(report.loss_drops, 0u);
}

TEST(Simulator, ACableFailsAndIsUsedAgainAfterItHeals) {
  // Two cables; one is down from the start until after the first packets.
  Values values = Base("dumbbell");
  values["uplinks"] = "2";
  values["bytes"] = "2000000";
  values["fail_cables"] = "1";
  values["fail_at_us"] = "0";
  values["fail_for_us"] = "30";
  const Report report = MustRun(values);
  ExpectClean(report);
  EXPECT_GT(report.down_drops, 0u);
  ASSERT_EQ(report.path_usage.size(), 1u);
  for (const std::vector<uint64_t>& row : report.path_usage[0].bytes) {
    ASSERT_EQ(row.size(), 2u);
    EXPECT_GT(row[0], 0u);
    EXPECT_GT(row[1], 0u);
  }
}

TEST(Simulator, SwitchesRouteAroundADeadCable) {
  Values values = Base("leaf_spine");
  values["hosts"] = "16";
  values["bytes"] = "4000000";
  values["fail_cables"] = "2";
  values["fail_at_us"] = "5";
  values["fail_for_us"] = "1000";
  const Report never = MustRun(values);
  values["reroute_us"] = "0";
  const Report at_once = MustRun(values);
  values["reroute_us"] = "10";
  const Report later = MustRun(values);
  ExpectClean(never);
  ExpectClean(at_once);
  ExpectClean(later);
  // At once, what was on the cables is lost; after 10 us, also what was sent into them until then.
  EXPECT_GT(at_once.down_drops, 0u);
  EXPECT_LT(at_once.down_drops, later.down_drops);
  EXPECT_LT(later.down_drops, never.down_drops);
}

TEST(Simulator, RandomFaultSchedulesEndWithEverythingDelivered) {
  const char* const fabrics[] = {"dumbbell", "leaf_spine", "fat_tree"};
  uint64_t down = 0, corrupted = 0, duplicated = 0, lost = 0;
  for (int seed = 1; seed <= 60; ++seed) {
    const auto workloads = Workloads();
    Values values = Base(fabrics[seed % 3], workloads[seed % workloads.size()].name);
    values["seed"] = std::to_string(seed);
    values["chaos"] = "40";
    values["chaos_us"] = "100";
    values["bytes"] = "100000";
    values["deadline_ms"] = "20000";
    SCOPED_TRACE("seed " + values["seed"] + " " + values["fabric"] + " " + values["workload"]);
    const Report report = MustRun(values);
    ExpectClean(report);
    down += report.down_drops;
    lost += report.loss_drops;
    corrupted += report.transport.bad_checksum;
    duplicated += report.network.duplicated;
  }
  // The schedules do bite.
  EXPECT_GT(down, 0u);
  EXPECT_GT(lost, 0u);
  EXPECT_GT(corrupted, 0u);
  EXPECT_GT(duplicated, 0u);
}

TEST(Simulator, WhatDoesNotArriveInTimeIsAViolation) {
  Values values = Base();
  values["loss"] = "0.5";
  values["deadline_ms"] = "1";
  values["transport"] = "single";
  const Report report = MustRun(values);
  EXPECT_FALSE(report.complete);
  EXPECT_GT(report.violations, 0u);
  ASSERT_FALSE(report.violation_texts.empty());
  EXPECT_NE(report.violation_texts[0].find("liveness"), std::string::npos);
  EXPECT_EQ(report.goodput_share, 0);
}

TEST(Simulator, SprayingBeatsOnePathWhereFlowsCollide) {
  Values values = Base();
  values["hosts"] = "32";
  values["bytes"] = "1000000";
  values["paths"] = "64";
  const Report spray = MustRun(values);
  values["transport"] = "single";
  const Report single = MustRun(values);
  values["transport"] = "bundle";
  const Report bundle = MustRun(values);
  ExpectClean(spray);
  ExpectClean(single);
  ExpectClean(bundle);
  EXPECT_LT(spray.completion * 3 / 2, single.completion);
  EXPECT_LT(spray.completion, bundle.completion);
  // A pair has two ends; in the bundle four connections with two ends each.
  EXPECT_EQ(bundle.ends, 4 * single.ends);
}

TEST(Simulator, OnePathUsesOneWayPerFlowAndSprayingAll) {
  Values values = Base();
  values["hosts"] = "16";
  values["bytes"] = "1000000";
  values["paths"] = "64";
  const auto idle_uplinks = [&](const char* transport) {
    values["transport"] = transport;
    int idle = 0;
    const Report report = MustRun(values);
    for (const auto& row : report.path_usage.at(0).bytes) {
      idle += static_cast<int>(std::ranges::count_if(row, [](uint64_t b) { return b < 100'000; }));
    }
    return idle;
  };
  EXPECT_EQ(idle_uplinks("spray"), 0);
  EXPECT_GT(idle_uplinks("single"), 0);
}

TEST(Simulator, ASlowProcessorLimitsTheRate) {
  Values values = Base();
  const Report fast = MustRun(values);
  values["receive_ns"] = "2000";
  const Report slow = MustRun(values);
  ExpectClean(slow);
  // 25 datagrams of 8 KB a flow, and as many ACKs of the other direction's flow, take 2 us each.
  EXPECT_GE(slow.completion, Nanos(50'000));
  EXPECT_LT(fast.completion, slow.completion);
}

TEST(Simulator, SamplesAreBoundedAndOrdered) {
  Values values = Base();
  values["samples"] = "16";
  values["loss"] = "0.02";
  const Report report = MustRun(values);
  EXPECT_GE(report.queues.size(), 2u);
  EXPECT_LE(report.queues.size(), 16u);
  EXPECT_TRUE(std::ranges::is_sorted(report.queues, {}, &QueueSample::time));
  for (const QueueSample& sample : report.queues) {
    EXPECT_LE(sample.mean_bytes, sample.max_bytes);
    EXPECT_LE(sample.p99_bytes, sample.max_bytes);
    EXPECT_LE(sample.max_bytes, report.peak_queue_bytes);
  }
}

TEST(Simulator, ProgressCanEndIt) {
  Values values = Base();
  values["bytes"] = "16000000";
  const Result<Settings> settings = MakeSettings(values);
  ASSERT_TRUE(settings.ok());
  int calls = 0;
  const Result<Report> report = Simulate(settings.value(), [&](const Progress& progress) {
    ++calls;
    EXPECT_LT(progress.bytes_done, progress.bytes);
    return false;
  });
  EXPECT_EQ(calls, 1);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code, StatusCode::kAborted);
}

TEST(Simulator, RefusesWrongSettings) {
  const auto code = [](const Values& values) { return TryRun(values).status().code; };
  EXPECT_EQ(code({{"hostz", "4"}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"hosts", "four"}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"hosts", "1"}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"loss", "nan"}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"fabric", "torus"}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"workload", "gossip"}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"transport", "pigeon"}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"path_policy", "none such"}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"congestion_control", "none such"}}), StatusCode::kInvalidArgument);
}

TEST(Json, QuotesAndNests) {
  Settings settings;
  settings.fabric = "a\"b\\c\n";
  Report report;
  report.path_usage = {{"t", {{1, 2}, {3, 4}}}};
  report.queues = {{Nanos(1), 2, 3, 4}};
  report.trace_hash = 0xabc;
  const std::string text = ToJson(settings, report);
  EXPECT_NE(text.find(R"("fabric":"a\"b\\c\u000a")"), std::string::npos);
  EXPECT_NE(text.find(R"("path_usage":[{"tier":"t","bytes":[[1,2],[3,4]]}])"), std::string::npos);
  EXPECT_NE(text.find(R"("queue_samples":[[1,2,3,4]])"), std::string::npos);
  EXPECT_NE(text.find(R"("trace_hash":"0000000000000abc")"), std::string::npos);
}

}  // namespace
}  // namespace uccl::sim
