// See chaos.h. Sizes are small, because a bug of a protocol shows between few hosts and in a few
// hundred packets as well as in a large run, and thousands of small runs see more.
#include "csrc/sim/chaos.h"

#include <array>
#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "csrc/core/cc/registry.h"
#include "csrc/core/path/path_selector.h"
#include "csrc/sim/random.h"
#include "csrc/sim/simulator.h"
#include "csrc/sim/workload.h"

namespace uccl::sim {
namespace {

constexpr uint64_t kStream = 0x6368616f73ull;
// A packet that is sent fifty times for nothing fails the connection, as it should; a schedule must
// not come to that by settings that no network has. So a queue holds some packets of every sender,
// whose timeouts may have become simultaneous, and the largest timeout outlasts a full queue at the
// slowest rate: where it is shorter than the round trip, fifty repetitions are over before the
// first answer.
constexpr int64_t kShortestQueue = 20'000;
constexpr int64_t kLongestRtoMicros = 20'000;

class Draw final {
 public:
  explicit Draw(uint64_t seed) : random_(seed ^ kStream) {}
  bool Chance(double p) { return random_.Chance(p); }
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_.Below(static_cast<uint64_t>(high - low + 1)));
  }
  // Every order of magnitude is as likely as any other.
  int64_t Scale(int64_t low, int64_t high) {
    const double ratio = static_cast<double>(high) / static_cast<double>(low);
    return static_cast<int64_t>(static_cast<double>(low) * std::pow(ratio, random_.Unit()));
  }
  template <class T, size_t N>
  T Of(const std::array<T, N>& choices) {
    return choices[random_.Below(N)];
  }
  template <class Row>
  std::string NameOf(std::span<const Row> rows) {
    return rows[random_.Below(rows.size())].name;
  }

 private:
  Random random_;
};

void DrawFabric(Draw& draw, Settings* s) {
  s->fabric = draw.Of(std::array{"dumbbell", "leaf_spine", "fat_tree"});
  s->hosts = draw.Between(2, 12);
  s->hosts_per_leaf = draw.Between(0, 4);
  s->uplinks = draw.Between(0, 4);
  s->host_gbps = draw.Of(std::array{1.0, 10.0, 100.0, 400.0});
  s->link_gbps = draw.Chance(0.3) ? s->host_gbps / 2 : 0;
  s->link_delay_ns = draw.Scale(10, 20'000);
  s->queue_bytes = draw.Scale(kShortestQueue, 2'000'000);
  s->ecn_bytes = draw.Chance(0.2) ? 0 : s->queue_bytes / draw.Between(1, 16);
  s->send_ns = draw.Of(std::array{0, 20, 500});
  s->receive_ns = draw.Of(std::array{0, 20, 500});
}

void DrawWorkload(Draw& draw, Settings* s) {
  s->workload = draw.NameOf(Workloads());
  s->bytes = draw.Scale(1, 100'000);
  s->fan_in = draw.Between(1, s->hosts - 1);
  s->rounds = draw.Between(1, 3);
  s->skew = draw.Of(std::array{0.0, 1.0, 2.0});
  s->top_k = draw.Between(1, 8);
  s->experts_per_host = draw.Between(1, 4);
  s->token_bytes = draw.Scale(200, 8'000);
  s->segment_bytes = draw.Scale(500, 200'000);
  s->depth = draw.Between(1, 8);
  s->concurrency = draw.Between(1, 16);
}

void DrawTransport(Draw& draw, Settings* s) {
  s->transport = draw.Of(std::array{"spray", "spray", "spray", "spray", "single", "bundle"});
  s->paths = draw.Scale(1, 128);
  s->lanes = draw.Between(1, 4);
  s->path_policy = draw.NameOf(core::PathSelectors());
  s->congestion_control = draw.NameOf(core::CongestionControllers());
  s->cc_scope = draw.Of(std::array{"connection", "path"});
  s->datagram_bytes = draw.Of(std::array{540, 1'000, 1'500, 4'096, 9'000, 32'808, 65'535});
  // Smaller than a message, and than a datagram, or what the delay asks for.
  s->window_bytes = draw.Chance(0.4) ? 0 : draw.Scale(500, 1'000'000);
  s->eager_max_bytes = draw.Chance(0.2) ? 0 : draw.Scale(100, 65'536);
  // Credit for several of the largest, or hardly for one.
  s->eager_buffer_bytes = draw.Scale(s->eager_max_bytes + 200, 1'000'000);
  s->min_rto_us = draw.Scale(50, 2'000);
  s->max_rto_us = draw.Scale(kLongestRtoMicros, 10 * kLongestRtoMicros);
}

void DrawCredit(Draw& draw, Settings* s) {
  if (draw.Chance(0.6)) return;
  s->receiver_scheduler = "eqds";
  s->credit_initial_bytes = draw.Chance(0.3) ? 0 : draw.Scale(1, 200'000);
  s->credit_quantum_bytes = draw.Chance(0.3) ? 0 : draw.Scale(500, 200'000);
  s->credit_pipe_bytes = draw.Chance(0.5) ? 0 : draw.Scale(1'000, 1'000'000);
}

void DrawFaults(Draw& draw, Settings* s) {
  s->loss = draw.Chance(0.3) ? 0.05 * static_cast<double>(draw.Between(1, 100)) / 100 : 0;
  s->fail_cables = draw.Between(0, 3);
  s->fail_at_us = draw.Scale(1, 200);
  s->fail_for_us = draw.Scale(1, 2'000);
  s->reroute_us = draw.Of(std::array{-1, 0, 50});
  s->chaos = draw.Between(0, 40);
  s->chaos_us = draw.Scale(10, 2'000);
  // Nothing may hang; how long a lossy path with large timeouts takes is not at stake here.
  s->deadline_ms = 60'000;
  s->samples = 64;
}

void Count(const Report& report, ChaosSummary* summary) {
  summary->violations += report.violations;
  summary->packets += report.network.sent;
  summary->drops += report.network.dropped;
  summary->corrupted += report.corrupted;
  summary->duplicated += report.network.duplicated;
  summary->marked += report.network.marked;
  summary->retransmits += report.transport.retransmits_fast + report.transport.retransmits_timeout;
  summary->timeouts += report.transport.timeouts;
  summary->spurious_retransmits += report.transport.spurious_retransmits;
  summary->trace_hash += report.trace_hash;
}

}  // namespace

Settings ChaosSettings(uint64_t seed) {
  Draw draw(seed);
  Settings settings;
  settings.seed = static_cast<int64_t>(seed);
  DrawFabric(draw, &settings);
  DrawWorkload(draw, &settings);
  DrawTransport(draw, &settings);
  DrawCredit(draw, &settings);
  DrawFaults(draw, &settings);
  return settings;
}

ChaosSummary RunChaos(uint64_t first, uint64_t count,
                      const std::function<bool(uint64_t done)>& proceed) {
  ChaosSummary summary;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    if (proceed && !proceed(summary.schedules)) break;
    const Result<Report> report = Simulate(ChaosSettings(seed));
    ++summary.schedules;
    std::string text;
    if (!report.ok()) {
      ++summary.violations;
      text = report.status().ToString();
    } else {
      Count(report.value(), &summary);
      if (report.value().violations == 0) continue;
      text = report.value().violation_texts.front();
    }
    if (summary.failures.size() < ChaosSummary::kMaxFailures) {
      summary.failures.push_back({seed, std::move(text)});
    }
  }
  return summary;
}

}  // namespace uccl::sim
