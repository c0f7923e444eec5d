// The generators and their table. See workload.h.
#include "csrc/sim/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "csrc/sim/random.h"

namespace uccl::sim {
namespace {

// Hosts do not begin in the same nanosecond.
constexpr uint64_t kStartJitterNs = 1000;
constexpr uint32_t kTreeChunks = 16;
constexpr uint32_t kSmallPerHost = 8;
constexpr uint32_t kSmallPerRound = 4;  // of incast_mixed, per host
constexpr uint64_t kSmallestMessage = 1024, kSmallSpan = 15 * 1024;
// Small messages of `mixed` begin within half of the time that the bulk takes at 400 Gbit/s, so
// that they meet it.
constexpr double kSmallSpreadNsPerByte = 0.01;

Nanos Jitter(Random* random) { return Nanos(random->Below(kStartJitterNs)); }

// Nobody sends to itself: a random cycle.
void Permutation(const WorkloadSpec& spec, Workload* w) {
  Random random(spec.seed);
  std::vector<uint32_t> order(spec.hosts);
  std::iota(order.begin(), order.end(), 0);
  random.Shuffle(&order);
  for (uint32_t i = 0; i < spec.hosts; ++i) {
    w->flows.push_back({.src = order[i],
                        .dst = order[(i + 1) % spec.hosts],
                        .bytes = spec.bytes,
                        .start = Jitter(&random)});
  }
}

void AllToAll(const WorkloadSpec& spec, Workload* w) {
  Random random(spec.seed);
  const uint64_t part = std::max<uint64_t>(1, spec.bytes / spec.hosts);
  for (uint32_t distance = 1; distance < spec.hosts; ++distance) {
    for (uint32_t src = 0; src < spec.hosts; ++src) {
      w->flows.push_back({.src = src,
                          .dst = (src + distance) % spec.hosts,
                          .bytes = part,
                          .start = Jitter(&random)});
    }
  }
}

// Reduce-scatter and all-gather: 2 (n-1) steps; what a rank passes on is what it has just received.
void RingAllReduce(const WorkloadSpec& spec, Workload* w) {
  Random random(spec.seed);
  const uint64_t part = std::max<uint64_t>(1, spec.bytes / spec.hosts);
  const uint32_t steps = 2 * (spec.hosts - 1);
  w->gates.assign(size_t{steps} * spec.hosts, 1);  // of (step, rank); those of step 0 are not used
  for (uint32_t step = 0; step < steps; ++step) {
    for (uint32_t rank = 0; rank < spec.hosts; ++rank) {
      const uint32_t next = (rank + 1) % spec.hosts;
      Flow flow{.src = rank, .dst = next, .bytes = part};
      if (step == 0) flow.start = Jitter(&random);
      if (step > 0) flow.gate = step * spec.hosts + rank;
      if (step + 1 < steps) flow.signal = (step + 1) * spec.hosts + next;
      w->flows.push_back(flow);
    }
  }
}

// Up a binary tree (rank r's parent is (r-1)/2), then down; chunks follow each other.
void TreeAllReduce(const WorkloadSpec& spec, Workload* w) {
  Random random(spec.seed);
  const uint32_t n = spec.hosts;
  const uint64_t part = std::max<uint64_t>(1, spec.bytes / kTreeChunks);
  for (uint32_t chunk = 0; chunk < kTreeChunks; ++chunk) {
    // Gate of a rank upwards: its children's chunks are here. Downwards: its parent's is. The
    // root's upward gate lets the result go down.
    const auto up_gate = [&](uint32_t rank) { return 2 * chunk * n + rank; };
    const auto down_gate = [&](uint32_t rank) { return (2 * chunk + 1) * n + rank; };
    w->gates.resize(size_t{2} * (chunk + 1) * n, 1);
    for (uint32_t rank = 0; rank < n; ++rank) {
      const uint32_t children = std::min<uint32_t>(2, n - std::min(n, 2 * rank + 1));
      w->gates[up_gate(rank)] = children;
      if (rank == 0) continue;
      const uint32_t parent = (rank - 1) / 2;
      Flow up{.src = rank, .dst = parent, .bytes = part};
      if (children == 0) up.start = Jitter(&random);
      if (children > 0) up.gate = up_gate(rank);
      up.signal = up_gate(parent);
      w->flows.push_back(up);
      Flow down{.src = parent, .dst = rank, .bytes = part};
      down.gate = parent == 0 ? up_gate(0) : down_gate(parent);
      down.signal = down_gate(rank);
      w->flows.push_back(down);
    }
  }
}

void Incast(const WorkloadSpec& spec, Workload* w) {
  Random random(spec.seed);
  std::vector<uint32_t> senders(spec.hosts - 1);
  std::iota(senders.begin(), senders.end(), 1);
  random.Shuffle(&senders);
  senders.resize(std::min<size_t>(spec.fan_in, senders.size()));
  for (uint32_t src : senders) {
    w->flows.push_back({.src = src, .dst = 0, .bytes = spec.bytes, .start = Jitter(&random)});
  }
}

void Mixed(const WorkloadSpec& spec, Workload* w) {
  Permutation(spec, w);
  Random random(spec.seed + 1);
  const auto spread =
      static_cast<uint64_t>(std::max(1.0, static_cast<double>(spec.bytes) * kSmallSpreadNsPerByte));
  for (uint32_t src = 0; src < spec.hosts; ++src) {
    for (uint32_t i = 0; i < kSmallPerHost; ++i) {
      const auto dst = static_cast<uint32_t>((src + 1 + random.Below(spec.hosts - 1)) % spec.hosts);
      w->flows.push_back({.src = src,
                          .dst = dst,
                          .bytes = kSmallestMessage + random.Below(kSmallSpan),
                          .start = Nanos(random.Below(spread)),
                          .kind = FlowClass::kSmall});
    }
  }
}

// An incast that comes again and again, at `load` of the target's link on the average, among other
// traffic: the hosts that take no part exchange messages of the same size along a random cycle, at
// `cross_load`, and
// every host sends small messages, a quarter of them to the target. Who has to wait for the queue
// of the incast shows in the classes.
void IncastMixed(const WorkloadSpec& spec, Workload* w) {
  Random random(spec.seed);
  std::vector<uint32_t> others(spec.hosts - 1);
  std::iota(others.begin(), others.end(), 1);
  random.Shuffle(&others);
  const size_t fan_in = std::min<size_t>(spec.fan_in, others.size());
  const double message_ns = static_cast<double>(spec.bytes) * 8e9 / spec.host_bits_per_s;
  const double period_ns = message_ns * static_cast<double>(fan_in) / spec.load;
  const double span_ns = period_ns * spec.rounds;
  const auto at = [](double ns) { return Nanos(static_cast<int64_t>(ns)); };
  for (uint32_t round = 0; round < spec.rounds; ++round) {
    for (size_t i = 0; i < fan_in; ++i) {
      w->flows.push_back({.src = others[i],
                          .dst = 0,
                          .bytes = spec.bytes,
                          .start = at(period_ns * round) + Jitter(&random)});
    }
  }
  const std::span<const uint32_t> idle = std::span(others).subspan(fan_in);
  for (size_t i = 0; i < idle.size() && idle.size() > 1; ++i) {
    // Exponential gaps: the streams meet at random.
    double t = 0;
    while ((t += -std::log(1 - random.Unit()) * message_ns / spec.cross_load) < span_ns) {
      w->flows.push_back({.src = idle[i],
                          .dst = idle[(i + 1) % idle.size()],
                          .bytes = spec.bytes,
                          .start = at(t),
                          .kind = FlowClass::kCross});
    }
  }
  for (uint32_t src = 0; src < spec.hosts; ++src) {
    for (uint32_t i = 0; i < kSmallPerRound * spec.rounds; ++i) {
      auto dst = static_cast<uint32_t>((src + 1 + random.Below(spec.hosts - 1)) % spec.hosts);
      if (src != 0 && random.Below(4) == 0) dst = 0;
      w->flows.push_back({.src = src,
                          .dst = dst,
                          .bytes = kSmallestMessage + random.Below(kSmallSpan),
                          .start = at(random.Unit() * span_ns),
                          .kind = FlowClass::kSmall});
    }
  }
}

// Experts by popularity, in an order that the seed decides.
class ExpertSampler final {
 public:
  ExpertSampler(size_t experts, double skew, Random* random) : order_(experts) {
    std::iota(order_.begin(), order_.end(), 0);
    random->Shuffle(&order_);
    double sum = 0;
    for (size_t i = 0; i < experts; ++i) {
      sum += std::pow(static_cast<double>(i + 1), -skew);
      cumulative_.push_back(sum);
    }
  }
  uint32_t Pick(Random* random) const {
    const double at = random->Unit() * cumulative_.back();
    const auto it = std::ranges::upper_bound(cumulative_, at);
    const size_t i = std::min<size_t>(it - cumulative_.begin(), order_.size() - 1);
    return order_[i];
  }

 private:
  std::vector<uint32_t> order_;
  std::vector<double> cumulative_;
};

// Dispatch: a token goes once to each host that has one of its experts. Combine: each host returns
// what it got when all of it is there, as expert computation needs it.
void Moe(const WorkloadSpec& spec, Workload* w) {
  Random random(spec.seed);
  const uint32_t experts = spec.hosts * spec.experts_per_host;
  const ExpertSampler sampler(experts, spec.skew, &random);
  const uint64_t tokens = std::max<uint64_t>(1, spec.bytes / spec.token_bytes);
  const uint32_t top_k = std::min(spec.top_k, experts);
  w->gates.assign(spec.hosts, 0);
  std::vector<Flow> combines;
  std::vector<uint64_t> to(spec.hosts);
  for (uint32_t src = 0; src < spec.hosts; ++src) {
    std::ranges::fill(to, 0);
    for (uint64_t t = 0; t < tokens; ++t) {
      std::set<uint32_t> chosen, targets;
      // Under a strong skew distinct picks become rare; fewer experts then take the token.
      for (uint32_t tries = 0; chosen.size() < top_k && tries < 16 * top_k; ++tries) {
        const uint32_t expert = sampler.Pick(&random);
        if (chosen.insert(expert).second) targets.insert(expert / spec.experts_per_host);
      }
      for (uint32_t target : targets) to[target] += spec.token_bytes;
    }
    for (uint32_t dst = 0; dst < spec.hosts; ++dst) {
      if (dst == src || to[dst] == 0) continue;
      ++w->gates[dst];
      w->flows.push_back(
          {.src = src, .dst = dst, .bytes = to[dst], .start = Jitter(&random), .signal = dst});
      combines.push_back({.src = dst, .dst = src, .bytes = to[dst], .gate = dst});
    }
  }
  w->flows.insert(w->flows.end(), combines.begin(), combines.end());
}

constexpr std::array kRows = {
    WorkloadRow{"permutation", &Permutation,
                "each host sends `bytes` to one, along a random cycle"},
    WorkloadRow{"all_to_all", &AllToAll, "each host sends `bytes`, an equal part to every other"},
    WorkloadRow{"ring_all_reduce", &RingAllReduce,
                "all-reduce of `bytes` over the ring of all hosts"},
    WorkloadRow{"tree_all_reduce", &TreeAllReduce,
                "all-reduce of `bytes` over a binary tree, chunked"},
    WorkloadRow{"incast", &Incast, "`fan_in` hosts send `bytes` each to host 0"},
    WorkloadRow{"incast_mixed", &IncastMixed,
                "`rounds` such incasts, a permutation among the others, and small messages"},
    WorkloadRow{"mixed", &Mixed, "a permutation, and small messages between random hosts"},
    WorkloadRow{"moe", &Moe,
                "each host dispatches `bytes` of tokens to top_k experts, then combine"},
};

}  // namespace

std::span<const WorkloadRow> Workloads() { return kRows; }

Result<Workload> MakeWorkload(const WorkloadSpec& spec) {
  const auto refuse = [](std::string why) {
    return Status::Error(StatusCode::kInvalidArgument, std::move(why));
  };
  if (spec.hosts < 2)
    return refuse("hosts is " + std::to_string(spec.hosts) + ", must be 2 or more");
  if (spec.bytes == 0) return refuse("bytes is 0");
  if (spec.kind == "moe" &&
      (spec.token_bytes == 0 || spec.experts_per_host == 0 || spec.top_k == 0)) {
    return refuse("token_bytes, experts_per_host and top_k must be 1 or more");
  }
  if (spec.kind.starts_with("incast") && spec.fan_in == 0) return refuse("fan_in is 0");
  if (spec.kind == "incast_mixed" && (spec.rounds == 0 || !(spec.load > 0) ||
                                      !(spec.cross_load > 0) || !(spec.host_bits_per_s > 0))) {
    return refuse("rounds, loads and the rate of the hosts' links must be above 0");
  }
  std::string known;
  for (const WorkloadRow& row : kRows) {
    known += (known.empty() ? "" : ", ") + std::string(row.name);
    if (spec.kind != row.name) continue;
    Workload workload;
    row.build(spec, &workload);
    return workload;
  }
  return refuse("unknown workload `" + spec.kind + "`; known: " + known);
}

}  // namespace uccl::sim
