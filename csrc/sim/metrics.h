// What is measured while a simulation runs, and what is worked out of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/sim/fabric.h"
#include "csrc/sim/link.h"
#include "csrc/sim/workload.h"

namespace uccl::sim {

// Queues of all switch ports at one moment.
struct QueueSample {
  Nanos time{};
  int64_t max_bytes = 0, mean_bytes = 0, p99_bytes = 0;
};

// Samples at a fixed interval; when there are too many, every second one goes and the interval
// doubles, so that a run of unknown length ends with between `limit`/2 and `limit`.
class QueueMonitor final {
 public:
  QueueMonitor(const Fabric& fabric, size_t limit, Nanos interval);
  // Returns when to come again.
  Nanos Sample(Nanos now, const std::vector<Link>& links);
  const std::vector<QueueSample>& samples() const { return samples_; }

 private:
  std::vector<uint32_t> ports_;
  size_t limit_;
  Nanos interval_;
  std::vector<QueueSample> samples_;
  std::vector<int64_t> scratch_;
};

// Bytes on the upward links of one tier's switches: a row a switch, a column an uplink.
struct PathUsage {
  std::string tier;
  std::vector<std::vector<uint64_t>> bytes;
};
std::vector<PathUsage> MeasurePathUsage(const Fabric& fabric, const std::vector<Link>& links);

// A lower bound on the time of a workload: every byte must leave its host, enter its host and cross
// the switches' uplinks, each with framing and headers, plus one way. Waiting for gates is left
// out, so the bound is loose where steps depend on each other.
Nanos IdealTime(const Workload& workload, const Fabric& fabric, const LinkSpec& host_link,
                const LinkSpec& core_link, double payload_share);

// The value below which `fraction` of the values are (nearest rank). `values` is sorted; 0 when
// empty.
int64_t Percentile(std::span<const int64_t> values, double fraction);

}  // namespace uccl::sim
