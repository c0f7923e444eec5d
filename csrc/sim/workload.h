// Workloads as data: flows, and gates that hold some of them back until others have arrived. Made
// from a seed before the run; knows nothing of transports.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"

namespace uccl::sim {

inline constexpr uint32_t kNoGate = UINT32_MAX;

// Whose completion times are told apart.
enum class FlowClass : uint8_t {
  kMain,   // what the workload is about
  kSmall,  // small messages beside it
  kCross,  // large ones beside it
};

struct Flow {
  uint32_t src = 0, dst = 0;
  uint64_t bytes = 0;
  Nanos start{0};             // not before; with a gate, after it opened
  uint32_t gate = kNoGate;    // waits for this one
  uint32_t signal = kNoGate;  // counts this one down when it has arrived
  FlowClass kind = FlowClass::kMain;
};

struct Workload {
  std::vector<Flow> flows;
  std::vector<uint32_t> gates;  // arrivals that open it
};

struct WorkloadSpec {
  std::string kind = "permutation";
  uint32_t hosts = 64;
  uint64_t bytes = 1 << 20;        // see the table in workload.cc
  uint32_t fan_in = 15;            // incast, incast_mixed
  uint32_t rounds = 32;            // incast_mixed
  double load = 0.7;               // incast_mixed: of the target's link, on the average
  double cross_load = 0.3;         // and of the links of hosts that take no part
  double host_bits_per_s = 400e9;  // what incast_mixed reckons its load from
  double skew = 1.0;               // moe: exponent of Zipf's law over the experts; 0 is uniform
  uint32_t top_k = 8;              // moe
  uint32_t experts_per_host = 4;   // moe
  uint64_t token_bytes = 7168;     // moe
  uint64_t seed = 1;
};

struct WorkloadRow {
  const char* name;
  void (*build)(const WorkloadSpec& spec, Workload* workload);
  const char* summary;
};
// To add one: a function and a row in workload.cc.
std::span<const WorkloadRow> Workloads();

// kInvalidArgument for an unknown kind or sizes that make no workload.
Result<Workload> MakeWorkload(const WorkloadSpec& spec);

}  // namespace uccl::sim
