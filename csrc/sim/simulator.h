// One run: settings in, report out. The same settings give the same run, event for event; the trace
// hash says so in one number.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/core/connection.h"
#include "csrc/sim/metrics.h"
#include "csrc/sim/network.h"
#include "csrc/sim/settings.h"

namespace uccl::sim {

struct Report {
  // Outcome.
  bool complete = false;
  uint64_t violations = 0;
  std::vector<std::string> violation_texts;  // the first of them
  uint64_t trace_hash = 0, events = 0;
  // Time.
  Nanos completion{0};  // when the last flow arrived; until the end of the run when one did not
  Nanos ideal{0};
  uint64_t payload_bytes = 0;  // that arrived
  double goodput_share = 0;    // ideal over completion, 0 when incomplete
  // Of every flow that arrived, sorted; the small and the large ones beside the workload's own
  // apart (FlowClass).
  std::vector<int64_t> flow_ns, small_flow_ns, cross_flow_ns;
  // Network.
  NetworkTotals network;
  uint64_t queue_drops = 0, loss_drops = 0, down_drops = 0, receive_ring_drops = 0, corrupted = 0;
  int64_t peak_queue_bytes = 0;
  std::vector<QueueSample> queues;
  std::vector<PathUsage> path_usage;
  // Transport, all ends together.
  core::ConnectionStats transport;
  // Size.
  uint32_t hosts = 0, switches = 0, links = 0;
  uint64_t flows = 0, ends = 0;
  Nanos base_rtt{0};
  int64_t window_bytes = 0;
  uint64_t peak_packets = 0, peak_posted_bytes = 0, peak_events_pending = 0;
};

struct Progress {
  Nanos now{};
  uint64_t events = 0, flows_done = 0, flows = 0, bytes_done = 0, bytes = 0;
};
// Returns false to end the run early.
using ProgressFn = std::function<bool(const Progress&)>;

// kInvalidArgument for settings that make no simulation, kAborted when `progress` ended it. A
// violation of what must hold is in the report.
Result<Report> Simulate(const Settings& settings, const ProgressFn& progress = {});

}  // namespace uccl::sim
