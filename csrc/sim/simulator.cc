// The loop, and how settings become parts. See simulator.h.
#include "csrc/sim/simulator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "csrc/base/hash.h"
#include "csrc/sim/application.h"
#include "csrc/sim/checker.h"
#include "csrc/sim/contents.h"
#include "csrc/sim/credit_checker.h"
#include "csrc/sim/event_queue.h"
#include "csrc/sim/host_stack.h"
#include "csrc/sim/invariants.h"
#include "csrc/sim/workload.h"
#include "csrc/wire/packet.h"

namespace uccl::sim {
namespace {

constexpr uint64_t kEventsPerProgress = 1 << 16;
// Ends looked at per sample; all of them in turn.
constexpr size_t kEndsPerSample = 1024;
constexpr uint32_t kDataHeadBytes = wire::kHeaderBytes + wire::kDataBodyBytes;
// Independent streams of randomness from one seed.
enum class Stream : uint64_t { kWorkload = 1, kFaults, kNetwork, kHosts, kContents };

int64_t ToBits(double gbps) { return static_cast<int64_t>(gbps * 1e9); }

LinkSpec HostLink(const Settings& s) {
  return {ToBits(s.host_gbps), Nanos(s.link_delay_ns), s.queue_bytes, s.ecn_bytes};
}
LinkSpec CoreLink(const Settings& s) {
  LinkSpec link = HostLink(s);
  if (s.link_gbps > 0) link.bits_per_s = ToBits(s.link_gbps);
  return link;
}

// A full datagram there and an ACK back between hosts that are far apart, with empty queues.
Nanos BaseRtt(const Settings& s, const Fabric& fabric) {
  const int64_t slowest = std::min(HostLink(s).bits_per_s, CoreLink(s).bits_per_s);
  const double bits = static_cast<double>(s.datagram_bytes + 2 * kFramingBytes + 128) * 8;
  const auto hop = Nanos(static_cast<int64_t>(bits / static_cast<double>(slowest) * 1e9));
  return fabric.max_hops() * (2 * Nanos(s.link_delay_ns) + hop) +
         2 * Nanos(s.send_ns + s.receive_ns);
}

int64_t Window(const Settings& s, Nanos base_rtt) {
  if (s.window_bytes > 0) return s.window_bytes;
  const double bdp = s.host_gbps / 8 * static_cast<double>(base_rtt.count());
  return static_cast<int64_t>(2 * bdp) + 4 * s.datagram_bytes;
}

Result<TransportSpec> Transport(const Settings& s, int64_t window, Nanos base_rtt) {
  TransportSpec transport;
  core::ConnectionConfig& config = transport.config;
  config.max_datagram_bytes = static_cast<size_t>(s.datagram_bytes);
  config.congestion_control = s.congestion_control;
  config.cc_scope = s.cc_scope;
  config.line_rate_bytes_per_s = ToBits(s.host_gbps) / 8;
  config.base_rtt = base_rtt;
  config.min_rto = FromMicros(s.min_rto_us);
  config.max_rto = FromMicros(std::max(s.max_rto_us, s.min_rto_us));
  config.window_bytes = window;
  config.eager_max_bytes = s.eager_max_bytes;
  config.eager_buffer_bytes = s.eager_buffer_bytes;
  config.path_policy = s.path_policy;
  // Nobody dies here; liveness is the checker's to judge.
  config.peer_silence = std::chrono::seconds(100'000);
  config.credit_initial_bytes = s.credit_initial_bytes;
  transport.receiver_scheduler = s.receiver_scheduler;
  transport.credit.rate_bytes_per_s = HostLink(s).bits_per_s / 8;
  transport.credit.quantum_bytes =
      s.credit_quantum_bytes > 0 ? s.credit_quantum_bytes : 2 * s.datagram_bytes;
  const double bdp = s.host_gbps / 8 * static_cast<double>(base_rtt.count());
  transport.credit.pipe_bytes =
      s.credit_pipe_bytes > 0 ? s.credit_pipe_bytes
                              : static_cast<int64_t>(bdp) + 4 * transport.credit.quantum_bytes;
  if (s.transport == "spray") {
    config.num_paths = static_cast<uint16_t>(s.paths);
  } else if (s.transport == "single" || s.transport == "bundle") {
    config.num_paths = 1;
    config.path_policy = "single";
    if (s.transport == "bundle") transport.lanes = static_cast<uint32_t>(s.lanes);
    config.window_bytes = std::max(window / transport.lanes, s.datagram_bytes);
  } else {
    return Status::Error(StatusCode::kInvalidArgument,
                         "unknown transport `" + s.transport + "`; known: spray, single, bundle");
  }
  // A wrong name is found before the run.
  if (const auto made = core::MakeReceiverScheduler(s.receiver_scheduler, transport.credit);
      !made.ok()) {
    return made.status();
  }
  if (const auto made = core::Connection::Make(config); !made.ok()) return made.status();
  return transport;
}

class Run final {
 public:
  Run(const Settings& settings, Fabric fabric, Workload workload, const TransportSpec& transport,
      Nanos base_rtt)
      : settings_(settings),
        fabric_(std::move(fabric)),
        workload_(std::move(workload)),
        transport_(transport),
        base_rtt_(base_rtt),
        faults_(MakeFaultPlan(Faults(settings), fabric_)),
        contents_(Seed(Stream::kContents), static_cast<uint64_t>(settings.segment_bytes)),
        checker_(&contents_),
        credit_checker_({.eager_buffer_bytes = transport.config.eager_buffer_bytes,
                         .receiver_driven = transport.receiver_scheduler != "none",
                         .initial_bytes = transport.config.credit_initial_bytes},
                        &checker_),
        network_(&fabric_, HostLink(settings), CoreLink(settings), Seed(Stream::kNetwork),
                 &events_),
        hosts_(transport, Host(settings), Seed(Stream::kHosts), &network_, &events_, &contents_),
        application_(App(settings, transport), &workload_, &hosts_, &contents_, &checker_,
                     &events_),
        ideal_(IdealTime(workload_, fabric_, HostLink(settings), CoreLink(settings),
                         PayloadShare(settings))),
        monitor_(fabric_, static_cast<size_t>(settings.samples), 2 * ideal_ / settings.samples) {
    hosts_.set_sink([this](Nanos now, EndId end, core::Event event) {
      application_.OnEvent(now, end, std::move(event));
    });
    hosts_.set_tap(&credit_checker_);
    for (const Flow& flow : workload_.flows) total_bytes_ += flow.bytes;
  }

  Result<Report> Go(const ProgressFn& progress);

 private:
  uint64_t Seed(Stream stream) const {
    return HashWords({static_cast<uint64_t>(settings_.seed), static_cast<uint64_t>(stream)});
  }
  static FaultSpec Faults(const Settings& s) {
    FaultSpec spec;
    spec.loss = s.loss;
    spec.fail_cables = static_cast<uint32_t>(s.fail_cables);
    spec.fail_at = FromMicros(s.fail_at_us);
    spec.fail_for = FromMicros(s.fail_for_us);
    spec.chaos = static_cast<uint32_t>(s.chaos);
    spec.chaos_span = FromMicros(s.chaos_us);
    spec.seed = HashWords({static_cast<uint64_t>(s.seed), static_cast<uint64_t>(Stream::kFaults)});
    return spec;
  }
  static HostSpec Host(const Settings& s) {
    HostSpec spec;
    spec.per_datagram_send = Nanos(s.send_ns);
    spec.per_datagram_receive = Nanos(s.receive_ns);
    return spec;
  }
  static ApplicationSpec App(const Settings& s, const TransportSpec& transport) {
    ApplicationSpec spec;
    spec.segment_bytes = static_cast<uint64_t>(s.segment_bytes);
    spec.packet_bytes = static_cast<uint64_t>(s.datagram_bytes) - kDataHeadBytes;
    spec.depth = static_cast<uint32_t>(s.depth);
    spec.concurrency = static_cast<uint32_t>(s.concurrency);
    spec.lanes = transport.lanes;
    return spec;
  }
  static double PayloadShare(const Settings& s) {
    return static_cast<double>(s.datagram_bytes - kDataHeadBytes) /
           static_cast<double>(s.datagram_bytes + kFramingBytes);
  }

  void Handle(const ScheduledEvent& event);
  void Sample();
  void CheckEnd(EndId end);
  void CheckAtEnd();
  Report MakeReport();

  const Settings settings_;
  const Fabric fabric_;
  const Workload workload_;
  const TransportSpec transport_;
  const Nanos base_rtt_;
  const std::vector<Fault> faults_;
  EventQueue events_;
  const Contents contents_;
  Checker checker_;
  CreditChecker credit_checker_;
  Network network_;
  HostStack hosts_;
  Application application_;
  const Nanos ideal_;
  QueueMonitor monitor_;
  Nanos now_{0};
  Nanos completion_{0};
  uint64_t num_events_ = 0, trace_hash_ = 0, total_bytes_ = 0;
  EndId next_checked_ = 0;
};

void Run::Handle(const ScheduledEvent& event) {
  switch (event.type) {
    case EventType::kArrive:
      if (const auto packet = network_.OnArrive(now_, event.id)) hosts_.OnPacket(now_, *packet);
      break;
    case EventType::kReceive:
      hosts_.OnReceive(now_, event.id);
      break;
    case EventType::kNicReady:
      hosts_.OnNicReady(now_, event.id);
      break;
    case EventType::kTimer:
      hosts_.OnTimer(now_, event.id);
      break;
    case EventType::kCredit:
      hosts_.OnCredit(now_, event.id);
      break;
    case EventType::kStartFlow:
      application_.OnStartFlow(now_, event.id);
      break;
    case EventType::kFaultBegin:
      network_.Begin(faults_[event.id]);
      break;
    case EventType::kFaultEnd:
      network_.End(faults_[event.id]);
      break;
    case EventType::kReroute:
      network_.LearnState(event.id);
      break;
    case EventType::kSample:
      Sample();
      break;
  }
  hosts_.Settle(now_);
}

void Run::Sample() {
  const Nanos again = monitor_.Sample(now_, network_.links());
  for (size_t i = 0; i < std::min(kEndsPerSample, hosts_.num_ends()); ++i) {
    next_checked_ = (next_checked_ + 1) % static_cast<EndId>(hosts_.num_ends());
    CheckEnd(next_checked_);
  }
  if (!application_.done()) events_.Push(again, EventType::kSample, 0);
}

void Run::CheckEnd(EndId end) {
  const core::ConnectionConfig& config = transport_.config;
  const core::ConnectionStats stats = hosts_.connection(end).stats();
  CheckBounds(now_, stats,
              {.window_bytes = config.window_bytes,
               .eager_buffer_bytes = config.eager_buffer_bytes,
               .datagram_bytes = settings_.datagram_bytes},
              &checker_);
  if (transport_.receiver_scheduler == "none") return;
  CheckCredit(
      now_, stats, hosts_.connection(hosts_.other_of(end)).stats(),
      {.initial_bytes = config.credit_initial_bytes, .datagram_bytes = settings_.datagram_bytes},
      &checker_);
}

void Run::CheckAtEnd() {
  checker_.Finish(now_);
  Refusals refusals{.corrupted = hosts_.corrupted_delivered()};
  for (EndId end = 0; end < hosts_.num_ends(); ++end) {
    CheckEnd(end);
    const core::Connection& connection = hosts_.connection(end);
    checker_.Require(now_, connection.failed() || connection.Drained(),
                     "liveness: a connection is not drained");
    const core::ConnectionStats stats = connection.stats();
    refusals.refused += stats.malformed + stats.bad_checksum;
    refusals.wrong_key += stats.wrong_key;
  }
  CheckIntegrity(now_, refusals, &checker_);
  CheckNetwork(now_, network_, settings_.queue_bytes, settings_.datagram_bytes, &checker_);
}

Result<Report> Run::Go(const ProgressFn& progress) {
  for (uint32_t i = 0; i < faults_.size(); ++i) {
    events_.Push(faults_[i].begin, EventType::kFaultBegin, i);
    if (faults_[i].end != kNever) events_.Push(faults_[i].end, EventType::kFaultEnd, i);
    if (settings_.reroute_us < 0 || faults_[i].kind != FaultKind::kDown) continue;
    for (const Nanos change : {faults_[i].begin, faults_[i].end}) {
      if (change == kNever) continue;
      events_.Push(change + FromMicros(settings_.reroute_us), EventType::kReroute, faults_[i].link);
    }
  }
  application_.Start();
  events_.Push(Nanos(0), EventType::kSample, 0);
  const Nanos deadline = FaultsEnd(faults_) + ideal_ + FromMillis(settings_.deadline_ms);
  // Goes on after the last arrival until the last acknowledgement is in and nothing is scheduled.
  while (!events_.empty() && events_.front().time <= deadline) {
    const ScheduledEvent event = events_.Pop();
    now_ = event.time;
    ++num_events_;
    trace_hash_ = Mix64(trace_hash_ * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(now_.count())) +
                  (uint64_t{event.id} << 8 | static_cast<uint64_t>(event.type));
    const size_t finished = application_.finished();
    Handle(event);
    if (application_.finished() != finished) completion_ = now_;
    if (!application_.status().ok()) return application_.status();
    if (hosts_.stands_still()) {
      checker_.Require(now_, false, "liveness: a timer fires for ever without moving on");
      break;
    }
    if (progress && num_events_ % kEventsPerProgress == 0 &&
        !progress({now_, num_events_, application_.finished(), workload_.flows.size(),
                   application_.received_bytes(), total_bytes_})) {
      return Status::Error(StatusCode::kAborted, "the simulation was stopped");
    }
  }
  if (!application_.done()) completion_ = now_;
  CheckAtEnd();
  return MakeReport();
}

Report Run::MakeReport() {
  Report r;
  r.complete = application_.done();
  r.violations = checker_.violations();
  r.violation_texts = checker_.kept();
  r.trace_hash = trace_hash_;
  r.events = num_events_;
  r.completion = completion_;
  r.ideal = ideal_;
  r.payload_bytes = application_.received_bytes();
  if (r.complete && completion_ > Nanos(0)) {
    r.goodput_share =
        static_cast<double>(ideal_.count()) / static_cast<double>(completion_.count());
  }
  for (size_t f = 0; f < workload_.flows.size(); ++f) {
    const FlowRecord& record = application_.records()[f];
    if (record.end < Nanos(0)) continue;
    const FlowClass kind = workload_.flows[f].kind;
    std::vector<int64_t>& times = kind == FlowClass::kMain    ? r.flow_ns
                                  : kind == FlowClass::kSmall ? r.small_flow_ns
                                                              : r.cross_flow_ns;
    times.push_back((record.end - record.begin).count());
  }
  for (std::vector<int64_t>* times : {&r.flow_ns, &r.small_flow_ns, &r.cross_flow_ns}) {
    std::ranges::sort(*times);
  }
  r.network = network_.totals();
  for (const Link& link : network_.links()) {
    r.queue_drops += link.stats().queue_drops;
    r.loss_drops += link.stats().loss_drops;
    r.down_drops += link.stats().down_drops;
    r.corrupted += link.stats().corrupted;
    r.peak_queue_bytes = std::max(r.peak_queue_bytes, link.stats().peak_queue_bytes);
  }
  r.receive_ring_drops = hosts_.receive_ring_drops();
  r.queues = monitor_.samples();
  r.path_usage = MeasurePathUsage(fabric_, network_.links());
  for (EndId end = 0; end < hosts_.num_ends(); ++end) {
    const core::ConnectionStats s = hosts_.connection(end).stats();
    r.transport.packets_sent += s.packets_sent;
    r.transport.payload_bytes_sent += s.payload_bytes_sent;
    r.transport.payload_bytes_received += s.payload_bytes_received;
    r.transport.retransmits_fast += s.retransmits_fast;
    r.transport.retransmits_timeout += s.retransmits_timeout;
    r.transport.spurious_retransmits += s.spurious_retransmits;
    r.transport.duplicates += s.duplicates;
    r.transport.bad_checksum += s.bad_checksum;
    r.transport.timeouts += s.timeouts;
    r.transport.acks_sent += s.acks_sent;
    r.transport.credits_sent += s.credits_sent;
    r.transport.requests_to_send += s.requests_to_send;
  }
  r.hosts = fabric_.num_hosts();
  r.switches = static_cast<uint32_t>(fabric_.switches().size());
  r.links = static_cast<uint32_t>(fabric_.cables().size());
  r.flows = workload_.flows.size();
  r.ends = hosts_.num_ends();
  r.base_rtt = base_rtt_;
  r.window_bytes = transport_.config.window_bytes;
  r.peak_packets = network_.packets().peak();
  r.peak_posted_bytes = application_.peak_posted_bytes();
  r.peak_events_pending = events_.peak_size();
  return r;
}

}  // namespace

Result<Report> Simulate(const Settings& s, const ProgressFn& progress) {
  FabricSpec fabric_spec{s.fabric, static_cast<uint32_t>(s.hosts),
                         static_cast<uint32_t>(s.hosts_per_leaf), static_cast<uint32_t>(s.uplinks)};
  Result<Fabric> fabric = Fabric::Make(fabric_spec);
  if (!fabric.ok()) return fabric.status();
  WorkloadSpec workload_spec;
  workload_spec.kind = s.workload;
  workload_spec.hosts = static_cast<uint32_t>(s.hosts);
  workload_spec.bytes = static_cast<uint64_t>(s.bytes);
  workload_spec.fan_in = static_cast<uint32_t>(s.fan_in);
  workload_spec.rounds = static_cast<uint32_t>(s.rounds);
  workload_spec.load = s.load;
  workload_spec.cross_load = s.cross_load;
  workload_spec.host_bits_per_s = s.host_gbps * 1e9;
  workload_spec.skew = s.skew;
  workload_spec.top_k = static_cast<uint32_t>(s.top_k);
  workload_spec.experts_per_host = static_cast<uint32_t>(s.experts_per_host);
  workload_spec.token_bytes = static_cast<uint64_t>(s.token_bytes);
  workload_spec.seed =
      HashWords({static_cast<uint64_t>(s.seed), static_cast<uint64_t>(Stream::kWorkload)});
  Result<Workload> workload = MakeWorkload(workload_spec);
  if (!workload.ok()) return workload.status();
  const Nanos base_rtt = BaseRtt(s, fabric.value());
  const Result<TransportSpec> transport = Transport(s, Window(s, base_rtt), base_rtt);
  if (!transport.ok()) return transport.status();
  // On the heap: it holds pointers to its own parts.
  const auto run = std::make_unique<Run>(s, std::move(fabric.value()), std::move(workload.value()),
                                         transport.value(), base_rtt);
  return run->Go(progress);
}

}  // namespace uccl::sim
