// Percentiles, the lower bound and the monitor against numbers worked out by hand.
#include "csrc/sim/metrics.h"

#include <gtest/gtest.h>

#include <vector>

namespace uccl::sim {
namespace {

LinkSpec BytePerNano() {
  LinkSpec spec;
  spec.bits_per_s = 8'000'000'000;
  spec.delay = Nanos(100);
  return spec;
}

TEST(Metrics, PercentileIsTheNearestRank) {
  const std::vector<int64_t> values = {10, 20, 30, 40};
  EXPECT_EQ(Percentile(values, 0.5), 20);
  EXPECT_EQ(Percentile(values, 0.51), 30);
  EXPECT_EQ(Percentile(values, 1), 40);
  EXPECT_EQ(Percentile(values, 0), 10);
  EXPECT_EQ(Percentile({}, 0.5), 0);
}

TEST(Metrics, IdealTimeIsThatOfTheBusiestPlace) {
  const LinkSpec link = BytePerNano();
  const auto ideal = [&](const FabricSpec& spec, std::vector<Flow> flows, double share) {
    const Result<Fabric> fabric = Fabric::Make(spec);
    return IdealTime({std::move(flows), {}}, fabric.value(), link, link, share);
  };
  const FabricSpec wide{"dumbbell", 4, 0, 2}, narrow{"dumbbell", 4, 0, 1};
  const std::vector<Flow> across = {{.src = 0, .dst = 2, .bytes = 1000},
                                    {.src = 1, .dst = 3, .bytes = 1000}};
  const std::vector<Flow> into_one = {{.src = 0, .dst = 2, .bytes = 1000},
                                      {.src = 3, .dst = 2, .bytes = 1000}};
  EXPECT_EQ(ideal(wide, across, 1), Nanos(1000 + 200));
  EXPECT_EQ(ideal(narrow, across, 1), Nanos(2000 + 200));
  EXPECT_EQ(ideal(wide, into_one, 1), Nanos(2000 + 200));
  EXPECT_EQ(ideal(wide, across, 0.5), Nanos(2000 + 200));
  // The four aggregation uplinks of a pod are shared by its two switches.
  const FabricSpec tree{"fat_tree", 16, 0, 0};
  EXPECT_EQ(ideal(tree, {{.src = 0, .dst = 15, .bytes = 1000}}, 1), Nanos(1000 + 200));
}

TEST(Metrics, MonitorHalvesItselfAtTheLimit) {
  const Result<Fabric> fabric = Fabric::Make({"dumbbell", 2, 0, 1});
  const std::vector<Link> links(fabric.value().cables().size(), Link(BytePerNano()));
  QueueMonitor monitor(fabric.value(), 8, Nanos(10));
  Nanos now{0};
  for (int i = 0; i < 7; ++i) now = monitor.Sample(now, links);
  EXPECT_EQ(now, Nanos(70));
  EXPECT_EQ(monitor.Sample(now, links), Nanos(90));  // the interval is 20 from here on
  std::vector<int64_t> times;
  for (const QueueSample& sample : monitor.samples()) times.push_back(sample.time.count());
  EXPECT_EQ(times, (std::vector<int64_t>{0, 20, 40, 60}));
}

TEST(Metrics, MonitorSeesTheQueuesOfSwitchesOnly) {
  const Result<Fabric> fabric = Fabric::Make({"dumbbell", 2, 0, 1});
  std::vector<Link> links(fabric.value().cables().size(), Link(BytePerNano()));
  Random random(1);
  ASSERT_TRUE(links[fabric.value().host_link(0)].Send(Nanos(0), 5000, &random));
  ASSERT_TRUE(links[fabric.value().core_links()[0]].Send(Nanos(0), 800, &random));
  QueueMonitor monitor(fabric.value(), 8, Nanos(10));
  monitor.Sample(Nanos(0), links);
  EXPECT_EQ(monitor.samples()[0].max_bytes, 800);
  EXPECT_EQ(monitor.samples()[0].mean_bytes, 200);  // four ports: two to hosts, two between
}

}  // namespace
}  // namespace uccl::sim
