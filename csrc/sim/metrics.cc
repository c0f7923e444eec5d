// See metrics.h.
#include "csrc/sim/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace uccl::sim {

QueueMonitor::QueueMonitor(const Fabric& fabric, size_t limit, Nanos interval)
    : limit_(limit), interval_(std::max(interval, Nanos(1))) {
  for (uint32_t i = 0; i < fabric.cables().size(); ++i) {
    if (!fabric.IsHost(fabric.cables()[i].from)) ports_.push_back(i);
  }
  scratch_.resize(ports_.size());
}

Nanos QueueMonitor::Sample(Nanos now, const std::vector<Link>& links) {
  for (size_t i = 0; i < ports_.size(); ++i) scratch_[i] = links[ports_[i]].QueueBytes(now);
  const auto p99 = scratch_.begin() + static_cast<int64_t>(scratch_.size() * 99 / 100);
  std::nth_element(scratch_.begin(), p99, scratch_.end());
  const int64_t sum = std::accumulate(scratch_.begin(), scratch_.end(), int64_t{0});
  samples_.push_back({now, *std::max_element(p99, scratch_.end()),
                      sum / static_cast<int64_t>(scratch_.size()), *p99});
  if (samples_.size() >= limit_) {
    size_t kept = 0;
    for (size_t i = 0; i < samples_.size(); i += 2) samples_[kept++] = samples_[i];
    samples_.resize(kept);
    interval_ *= 2;
  }
  return now + interval_;
}

std::vector<PathUsage> MeasurePathUsage(const Fabric& fabric, const std::vector<Link>& links) {
  std::vector<PathUsage> usage;
  for (int tier = 1; tier <= fabric.tiers(); ++tier) {
    PathUsage of_tier{"tier " + std::to_string(tier) + " uplinks", {}};
    for (const Fabric::Switch& s : fabric.switches()) {
      if (s.tier != tier || s.up.empty()) continue;
      std::vector<uint64_t> row;
      for (uint32_t link : s.up) row.push_back(links[link].stats().bytes);
      of_tier.bytes.push_back(std::move(row));
    }
    if (!of_tier.bytes.empty()) usage.push_back(std::move(of_tier));
  }
  return usage;
}

Nanos IdealTime(const Workload& workload, const Fabric& fabric, const LinkSpec& host_link,
                const LinkSpec& core_link, double payload_share) {
  std::vector<double> out(fabric.num_hosts()), in(fabric.num_hosts());
  for (const Flow& flow : workload.flows) {
    out[flow.src] += static_cast<double>(flow.bytes);
    in[flow.dst] += static_cast<double>(flow.bytes);
  }
  const double busiest = std::max(*std::ranges::max_element(out), *std::ranges::max_element(in));
  double seconds = busiest * 8 / static_cast<double>(host_link.bits_per_s);
  for (const Fabric::Switch& s : fabric.switches()) {
    if (s.up.empty()) continue;
    double up = 0, down = 0;
    const auto below = [&](uint32_t host) { return host >= s.first && host < s.end; };
    for (const Flow& flow : workload.flows) {
      if (below(flow.src) && !below(flow.dst)) up += static_cast<double>(flow.bytes);
      if (!below(flow.src) && below(flow.dst)) down += static_cast<double>(flow.bytes);
    }
    // Switches of one tier that cover the same hosts share what crosses.
    double links = 0;
    for (const Fabric::Switch& twin : fabric.switches()) {
      if (twin.tier == s.tier && twin.first == s.first && twin.end == s.end) {
        links += static_cast<double>(twin.up.size());
      }
    }
    const double capacity = links * static_cast<double>(core_link.bits_per_s);
    seconds = std::max(seconds, std::max(up, down) * 8 / capacity);
  }
  // The nearest two hosts are two links apart.
  return Nanos(std::llround(seconds / payload_share * 1e9)) + 2 * host_link.delay;
}

int64_t Percentile(std::span<const int64_t> values, double fraction) {
  if (values.empty()) return 0;
  const double rank = std::ceil(fraction * static_cast<double>(values.size()));
  const auto index = static_cast<size_t>(std::clamp(rank, 1.0, static_cast<double>(values.size())));
  return values[index - 1];
}

}  // namespace uccl::sim
