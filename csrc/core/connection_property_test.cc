// Seeded fault schedules: random traffic between two connections over a network that misbehaves for
// a while and then recovers. What must hold in every one:
//   safety    each message once, byte for byte, nothing outside its buffer, nothing after a cancel;
//   kRecvDone
//             describes the message as its sender did; eager credit and window respected; no
//             connection fails
//   credit    where receivers schedule: nothing is sent that was not granted, nothing used that was
//             not received, and what is outstanding agrees on both ends
//   liveness  once the faults stop, everything that was not cancelled completes and both ends drain
// UCCL_SIM_SEED=n replays one schedule, UCCL_SIM_SEEDS=n sets how many run.
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "csrc/base/testing/sanitized.h"
#include "csrc/core/cc/registry.h"
#include "csrc/core/connection.h"
#include "csrc/core/path/path_selector.h"
#include "csrc/core/sender.h"
#include "csrc/core/testing/messages.h"
#include "csrc/core/testing/random.h"
#include "csrc/core/testing/schedules.h"
#include "csrc/core/testing/simulation.h"
#include "csrc/wire/packet.h"

namespace uccl::core {
namespace {

using testing::GuardedBuffer;
using testing::Link;
using testing::Random;

// One message and what has become of it on both sides.
struct Transfer {
  int from = 0;
  MessageInfo info;
  std::vector<std::byte> contents, source;
  std::unique_ptr<GuardedBuffer> target;
  uint64_t token = 0;  // on both sides
  bool send_cancelled = false, recv_cancelled = false;
  bool send_done = false, recv_done = false;
  bool ends_by_cancel = false;  // one side gives up, so the other does too
};

// What the schedules of one run reached together. A generator that no longer reaches something
// would leave the test green and blind.
struct Coverage {
  uint64_t packets = 0, payload_bytes = 0, dropped = 0, duplicated = 0, corrupted = 0;
  uint64_t retransmits_fast = 0, retransmits_timeout = 0, spurious = 0, duplicates = 0,
           bad_checksum = 0;
  uint64_t timeouts = 0, tail_probes = 0, probes = 0, unexpected = 0;
  uint64_t path_failures = 0, path_probes = 0, marked = 0;
  std::map<std::string, uint64_t> complete_by_setting;  // policies, controllers and scopes
  uint64_t credits = 0, requests_to_send = 0;
  uint64_t eager_without_credit = 0, cut_short = 0, complete_before_cancel = 0, complete = 0,
           skips = 0;
};

class Schedule final {
 public:
  explicit Schedule(uint64_t seed)
      : random_(seed),
        config_(MakeConfig()),
        credit_(MakeCredit()),
        sim_(config_, seed ^ 0xabcdef, FromMillis(1), credit_) {
    MakeFaults();
    const uint64_t count = random_.Magnitude(1, 64);
    size_t budget = MaxTotalBytes();
    for (uint64_t i = 0; i < count; ++i) {
      const size_t size = std::min<size_t>(budget, MessageSize());
      budget -= size;
      MakeTransfer(i, size);
    }
    MakeControls();
    sim_.set_on_event([this](int end, const Event& event) { OnEvent(end, event); });
    sim_.set_on_instant([this] { CheckBounds(); });
    sim_.network.set_filter([this](int, PathId, Bytes header, Bytes) {
      skips_ += header[1] == static_cast<std::byte>(wire::PacketType::kSkip);
      return true;
    });
  }

  // Returns what went wrong, or nothing.
  std::string Run() {
    sim_.At(faults_end_, [this] { sim_.network.Heal(); });
    const bool complete =
        sim_.RunUntil([this] { return !fault_.empty() || Complete(); }, kDeadline);
    if (!fault_.empty()) return fault_;
    if (!complete) return "not complete: " + Missing();
    // Whatever still travels must change nothing.
    sim_.RunFor(FromMillis(2000));
    if (!fault_.empty()) return fault_;
    CheckEnd();
    return fault_;
  }

  void AddTo(Coverage* c) const {
    const testing::NetworkStats& network = sim_.network.stats();
    c->dropped += network.dropped;
    c->duplicated += network.duplicated;
    c->corrupted += network.corrupted;
    for (int i : {0, 1}) {
      const ConnectionStats stats = sim_.end(i).stats();
      c->packets += stats.packets_sent;
      c->payload_bytes += stats.payload_bytes_received;
      c->retransmits_fast += stats.retransmits_fast;
      c->retransmits_timeout += stats.retransmits_timeout;
      c->spurious += stats.spurious_retransmits;
      c->duplicates += stats.duplicates;
      c->bad_checksum += stats.bad_checksum;
      c->timeouts += stats.timeouts;
      c->probes += stats.probes;
      c->tail_probes += stats.tail_probes;
      c->path_probes += stats.path_probes;
      for (const PathStats& path : stats.paths) {
        c->path_failures += path.failures;
        c->marked += path.packets_marked;
      }
      c->unexpected += stats.unexpected_messages;
      c->credits += stats.credits_sent;
      c->requests_to_send += stats.requests_to_send;
    }
    for (const std::string& setting :
         {config_.path_policy, config_.congestion_control, config_.cc_scope,
          std::string(credit_ ? "credit" : "no credit")}) {
      ++c->complete_by_setting[setting];
    }
    for (const auto& t : transfers_) {
      c->complete += t->send_done && t->recv_done && !t->ends_by_cancel;
      c->complete_before_cancel += t->ends_by_cancel && t->recv_done;
      c->cut_short += t->ends_by_cancel && !t->recv_done;
    }
    c->eager_without_credit += eager_without_credit_;
    c->skips += skips_;
  }

  std::string Describe() const {
    std::ostringstream out;
    out << "paths=" << config_.num_paths << " datagram=" << config_.max_datagram_bytes
        << " window=" << config_.window_bytes << " eager_max=" << config_.eager_max_bytes
        << " eager_buffer=" << config_.eager_buffer_bytes << " policy=" << config_.path_policy
        << " cc=" << config_.congestion_control << "/" << config_.cc_scope
        << " tolerance=" << config_.loss_tolerance_permille
        << " budget_ns=" << config_.queue_budget.count() << " base_ns=" << config_.base_rtt.count()
        << " line=" << config_.line_rate_bytes_per_s << " path_window=" << config_.path_window_bytes
        << " credit=" << (credit_ ? credit_->rate_bytes_per_s : 0) << "/"
        << (credit_ ? credit_->quantum_bytes : 0) << "/" << config_.credit_initial_bytes
        << " sticky=" << config_.sticky_packets << " psn=" << config_.initial_send_psn << "/"
        << config_.initial_recv_psn << " messages=";
    for (const auto& t : transfers_)
      out << t->from << ":" << t->info.size_bytes << (t->ends_by_cancel ? "x " : " ");
    return out.str();
  }

 private:
  static constexpr Nanos kDeadline = FromMillis(600'000);

  uint32_t InitialPsn() {
    return random_.OneOf<uint32_t>({0, 1, 0xffff'ffff,
                                    static_cast<uint32_t>(-random_.Between(1, 300)),
                                    static_cast<uint32_t>(random_.Next())});
  }

  ConnectionConfig MakeConfig() {
    ConnectionConfig c = testing::DefaultConfig(static_cast<uint16_t>(random_.Between(1, 16)));
    if (random_.Chance(0.02)) c.num_paths = random_.OneOf<uint16_t>({64, 256});
    c.send_key = random_.Next();
    c.recv_key = random_.Next();
    c.initial_send_psn = InitialPsn();
    c.initial_recv_psn = InitialPsn();
    c.max_datagram_bytes =
        random_.OneOf<size_t>({540, random_.Between(541, 700), 1200, 1472, 9000, 32768});
    c.eager_max_bytes = random_.OneOf<int64_t>({0, 100, 1000, 16384});
    c.eager_buffer_bytes = random_.OneOf<int64_t>({0, 128, 300, 3000, 40'000, 1 << 20});
    c.window_bytes = random_.OneOf<int64_t>({1, 600, 5000, 40'000, 400'000, 4 << 20});
    c.min_rto = FromMillis(random_.OneOf<int64_t>({1, 5, 10}));
    c.max_rto = FromMillis(random_.OneOf<int64_t>({50, 200, 1000}));
    const auto controllers = CongestionControllers();
    c.congestion_control = controllers[random_.Below(controllers.size())].name;
    const auto policies = PathSelectors();
    c.path_policy = policies[random_.Below(policies.size())].name;
    c.cc_scope = random_.OneOf<const char*>({"connection", "path"});
    c.loss_tolerance_permille = random_.OneOf<int64_t>({0, 0, 20, 1000});
    c.queue_budget = FromMicros(random_.OneOf<int64_t>({0, 0, 1000, 100'000}));
    c.base_rtt = FromMicros(random_.OneOf<int64_t>({0, 0, 0, 50}));
    c.line_rate_bytes_per_s = random_.OneOf<int64_t>({0, 0, 100'000, 1'000'000'000});
    c.path_window_bytes = random_.OneOf<int64_t>({0, 0, 1, 20'000});
    c.sticky_packets = random_.OneOf<int64_t>({0, 1, 4, 1000});
    c.max_retries = 1000;  // a schedule may be dark for long; its end is tested on its own
    c.first_number = random_.OneOf<uint32_t>({0, 0xffff'ffff, 0xffff'fff0});
    c.credit_initial_bytes = random_.OneOf<int64_t>({0, 1, 1000, 65536});
    return c;
  }

  std::optional<CreditParams> MakeCredit() {
    if (random_.Chance(0.5)) return std::nullopt;
    const auto datagram = static_cast<int64_t>(config_.max_datagram_bytes);
    CreditParams params;
    params.rate_bytes_per_s =
        random_.OneOf<int64_t>({1'000'000, 100'000'000, 1'250'000'000, 50'000'000'000});
    params.quantum_bytes = random_.OneOf<int64_t>({100, datagram, 4 * datagram, 1 << 20});
    return params;
  }

  // A window of a packet moves one per round trip: less traffic keeps a schedule short.
  size_t MaxTotalBytes() const { return config_.window_bytes < 10'000 ? 60'000 : 2'000'000; }

  void MakeFaults() {
    faults_end_ = sim_.now() + FromMicros(static_cast<int64_t>(random_.Magnitude(1000, 1'000'000)));
    const bool harsh = random_.Chance(0.2), calm = random_.Chance(0.1);
    sim_.network.ForEachLink([&](Link& link) {
      link.delay = FromMicros(static_cast<int64_t>(random_.Magnitude(1, 10'000)));
      if (random_.Chance(0.5))
        link.jitter = FromMicros(static_cast<int64_t>(random_.Magnitude(1, 5000)));
      if (calm) return;
      if (random_.Chance(0.6)) link.drop = random_.Unit() * (harsh ? 0.7 : 0.15);
      if (random_.Chance(0.3)) link.mark = random_.Unit() * 0.5;
      if (random_.Chance(0.4)) link.duplicate = random_.Unit() * (harsh ? 0.8 : 0.2);
      if (random_.Chance(0.4)) link.corrupt = random_.Unit() * (harsh ? 0.4 : 0.05);
      link.down = random_.Chance(0.05);
    });
    // Some time with one path or all of them dark.
    if (random_.Chance(0.3)) {
      const bool all = random_.Chance(0.3);
      const size_t path = random_.Below(config_.num_paths);
      const auto set = [this, all, path](bool down) {
        for (int from : {0, 1}) {
          for (size_t p = 0; p < config_.num_paths; ++p) {
            if (all || p == path) sim_.network.link(from, p).down = down;
          }
        }
      };
      const Nanos begin = RandomTime(),
                  end = begin + FromMillis(static_cast<int64_t>(random_.Between(1, 300)));
      sim_.At(begin, [set] { set(true); });
      sim_.At(end, [set] { set(false); });
    }
  }

  Nanos RandomTime() {
    return random_.Chance(0.3)
               ? sim_.now()
               : sim_.now() + FromMicros(static_cast<int64_t>(random_.Magnitude(1, 200'000)));
  }

  size_t MessageSize() {
    const auto eager = static_cast<size_t>(config_.eager_max_bytes);
    switch (random_.Below(8)) {
      case 0:
        return random_.OneOf<size_t>({0, 1, 8});
      case 1:
        return eager;
      case 2:
        return eager + 1;
      case 3:
        return random_.Below(eager + 1);
      case 4:
        return random_.Between(0, 3) * config_.max_datagram_bytes + random_.Below(200);
      case 5:
        return random_.Magnitude(1000, 400'000);
      case 6:
        return random_.Below(60'000);
      default:
        return random_.Below(3000);
    }
  }

  void MakeTransfer(uint64_t index, size_t size) {
    auto owned = std::make_unique<Transfer>();
    Transfer* t = owned.get();
    t->from = static_cast<int>(random_.Below(2));
    t->info.tag = {random_.Next(), index};
    t->info.digest = random_.Next();
    t->info.size_bytes = size;
    for (std::byte& b : t->info.note) b = static_cast<std::byte>(random_.Next());
    t->contents = testing::Pattern(size, random_.Next());
    t->source = t->contents;
    t->target = std::make_unique<GuardedBuffer>(size);
    t->token = index + 1;
    by_token_[t->token] = t;
    transfers_.push_back(std::move(owned));

    const Nanos send_at = RandomTime();
    const Nanos recv_at = random_.Chance(0.1) ? faults_end_ + FromMillis(20) : RandomTime();
    sim_.At(send_at,
            [this, t] { sim_.end(t->from).Send(sim_.now(), t->info, t->source, t->token); });
    sim_.At(recv_at, [this, t] {
      // The two ends do not describe it alike in the note.
      MessageInfo info = t->info;
      info.note.fill(std::byte{0x55});
      sim_.end(1 - t->from).PostRecv(sim_.now(), info, t->target->body(), t->token);
    });
    if (!random_.Chance(0.15)) return;
    // One side gives up at some time, possibly too late; then the other one does.
    t->ends_by_cancel = true;
    const bool sender_first = random_.Chance(0.5);
    const Nanos first = std::max(sender_first ? send_at : recv_at, RandomTime());
    const Nanos second = std::max({first, send_at, recv_at}) +
                         FromMicros(static_cast<int64_t>(random_.Below(50'000)));
    sim_.At(first, [this, t, sender_first] { Cancel(t, sender_first); });
    sim_.At(second, [this, t, sender_first] { Cancel(t, !sender_first); });
  }

  void Cancel(Transfer* t, bool sending_side) {
    if (sending_side) {
      sim_.end(t->from).CancelSend(sim_.now(), t->token);
      t->send_cancelled = true;
      std::ranges::fill(t->source, std::byte{0xee});
    } else {
      sim_.end(1 - t->from).CancelRecv(sim_.now(), t->token);
      t->recv_cancelled = true;
      if (!t->recv_done) t->target->Clear();
    }
  }

  void MakeControls() {
    const uint64_t count = random_.Below(6);
    for (uint64_t i = 0; i < count; ++i) {
      const int from = static_cast<int>(random_.Below(2));
      const std::string text =
          std::to_string(i) + ":" + std::string(random_.Below(510), static_cast<char>('a' + i));
      ++controls_[{1 - from, text}];
      sim_.At(RandomTime(), [this, from, text] { sim_.end(from).SendControl(sim_.now(), text); });
    }
  }

  void OnEvent(int end, const Event& event) {
    switch (event.kind) {
      case EventKind::kControl: {
        const auto it = controls_.find({end, event.control});
        if (it == controls_.end()) return Fault("a control message that nobody sent, or twice");
        controls_.erase(it);
        return;
      }
      case EventKind::kMismatch:
        return Fault("mismatch");
      case EventKind::kArrived:
        return Fault("a put that nobody sent");
      case EventKind::kFailed:
        return Fault("failed: " + event.status.ToString());
      case EventKind::kSendDone: {
        Transfer* t = by_token_.contains(event.token) ? by_token_[event.token] : nullptr;
        if (t == nullptr || t->from != end) return Fault("kSendDone with a token never given");
        if (t->send_done || t->send_cancelled) return Fault("kSendDone twice or after the cancel");
        if (!event.status.ok()) return Fault("kSendDone: " + event.status.ToString());
        t->send_done = true;
        // Small messages are done at once unless there is no credit.
        const bool small = static_cast<int64_t>(t->info.size_bytes) <= config_.eager_max_bytes;
        if (small && t->recv_done) ++eager_without_credit_;
        std::ranges::fill(t->source, std::byte{0xdd});  // the buffer is the application's again
        return;
      }
      case EventKind::kRecvDone: {
        Transfer* t = by_token_.contains(event.token) ? by_token_[event.token] : nullptr;
        if (t == nullptr || t->from == end) return Fault("kRecvDone with a token never given");
        if (t->recv_done || t->recv_cancelled) return Fault("kRecvDone twice or after the cancel");
        if (!event.status.ok()) return Fault("kRecvDone: " + event.status.ToString());
        if (!testing::Same(event.remote, t->info))
          return Fault("kRecvDone does not describe what was sent");
        if (!t->target->Holds(t->contents))
          return Fault("message " + std::to_string(event.token) + " is damaged");
        t->recv_done = true;
        return;
      }
    }
  }

  void CheckBounds() {
    if (++instants_ % 4 != 0) return;  // reading all statistics costs as much as the instant itself
    for (int i : {0, 1}) {
      const ConnectionStats stats = sim_.end(i).stats();
      if (stats.eager_bytes_buffered > static_cast<uint64_t>(config_.eager_buffer_bytes)) {
        Fault("eager buffer: " + std::to_string(stats.eager_bytes_buffered));
      }
      // Requests, grants and control messages are not held back by the window.
      const int64_t small = static_cast<int64_t>(2 * transfers_.size() + 6) * 600;
      const int64_t limit = std::max(config_.window_bytes, int64_t{0}) +
                            static_cast<int64_t>(config_.max_datagram_bytes) + small;
      int64_t inflight_bytes = 0;
      for (const PathStats& path : stats.paths) {
        if (path.inflight_bytes < 0) Fault("in flight on a path: negative");
        inflight_bytes += path.inflight_bytes;
      }
      if (inflight_bytes != stats.inflight_bytes) Fault("in flight: paths do not add up");
      if (stats.inflight_bytes < 0 || stats.inflight_bytes > limit) {
        Fault("in flight: " + std::to_string(stats.inflight_bytes));
      }
      if (stats.malformed > 0 && sim_.network.stats().corrupted == 0)
        Fault("malformed packets without corruption");
      if (stats.wrong_key > 0) Fault("wrong key");
    }
    if (credit_) CheckCredit();
  }

  void CheckCredit() {
    for (int i : {0, 1}) {
      const ConnectionStats sender = sim_.end(i).stats(), receiver = sim_.end(1 - i).stats();
      if (sender.credit_received_bytes > receiver.credit_granted_bytes)
        Fault("credit received that was not granted");
      // A tail probe goes without, and is made up for.
      const auto probes = static_cast<int64_t>(sender.tail_probes * config_.max_datagram_bytes);
      if (sender.credit_used_bytes > sender.credit_received_bytes + probes)
        Fault("sent " + std::to_string(sender.credit_used_bytes) + " bytes with credit for " +
              std::to_string(sender.credit_received_bytes));
      if (receiver.credit_granted_bytes > sender.credit_wanted_bytes + config_.credit_initial_bytes)
        Fault("granted more than was wanted");
    }
  }
  // What the receiver takes to be outstanding is what the sender has not used, once nothing is
  // under way. It may take it to be more while a request that told of losses was lost itself.
  void CheckCreditAtEnd() {
    bool cancelled = false;
    for (const auto& t : transfers_) cancelled |= t->ends_by_cancel;
    for (int i : {0, 1}) {
      const ConnectionStats sender = sim_.end(i).stats(), receiver = sim_.end(1 - i).stats();
      const int64_t unused =
          receiver.credit_granted_bytes - sender.credit_used_bytes - sender.credit_void_bytes;
      if (!cancelled && receiver.credit_outstanding_bytes < unused)
        Fault("outstanding " + std::to_string(receiver.credit_outstanding_bytes) + ", unused " +
              std::to_string(unused));
      if (sim_.network.stats().dropped + sim_.network.stats().corrupted == 0 && !cancelled &&
          receiver.credit_outstanding_bytes != unused)
        Fault("without losses: outstanding " + std::to_string(receiver.credit_outstanding_bytes) +
              ", unused " + std::to_string(unused));
    }
  }

  bool Complete() const {
    for (const auto& t : transfers_) {
      if (!(t->send_done || t->send_cancelled) || !(t->recv_done || t->recv_cancelled))
        return false;
    }
    return controls_.empty() && sim_.end(0).Drained() && sim_.end(1).Drained() &&
           sim_.now() >= faults_end_;
  }

  std::string Missing() const {
    std::ostringstream out;
    for (const auto& t : transfers_) {
      const bool ok = (t->send_done || t->send_cancelled) && (t->recv_done || t->recv_cancelled);
      if (!ok)
        out << "message " << t->token << " send_done=" << t->send_done
            << " recv_done=" << t->recv_done << "; ";
    }
    out << controls_.size() << " control messages; drained=" << sim_.end(0).Drained()
        << sim_.end(1).Drained();
    return out.str();
  }

  void CheckEnd() {
    for (const auto& t : transfers_) {
      if (!t->target->GuardsIntact())
        Fault("write outside the buffer of message " + std::to_string(t->token));
      if (t->recv_done && !t->target->Holds(t->contents)) Fault("write after kRecvDone");
      if (!t->recv_done && !t->target->IsClear()) Fault("write after the cancel");
    }
    for (int i : {0, 1}) {
      const ConnectionStats stats = sim_.end(i).stats();
      if (stats.inflight_bytes != 0)
        Fault("in flight at the end: " + std::to_string(stats.inflight_bytes));
      if (stats.eager_bytes_buffered != 0) Fault("eager buffer not empty at the end");
      if (!sim_.end(i).Unexpected().empty()) Fault("unexpected messages at the end");
      if (sim_.end(i).WaitingForPeer()) Fault("waits for the peer at the end");
    }
    if (credit_) CheckCreditAtEnd();
  }

  void Fault(const std::string& what) {
    if (fault_.empty()) fault_ = what;
  }

  Random random_;
  const ConnectionConfig config_;
  const std::optional<CreditParams> credit_;
  mutable testing::Simulation sim_;
  Nanos faults_end_{};
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::map<uint64_t, Transfer*> by_token_;
  std::map<std::pair<int, std::string>, int> controls_;  // by receiving end; each text is used once
  std::string fault_;
  uint64_t eager_without_credit_ = 0, skips_ = 0, instants_ = 0;
};

constexpr uint64_t kDefaultSchedules = UnderSanitizers(500, 10'000);

TEST(ConnectionProperty, RandomFaultSchedules) {
  Coverage c;
  const uint64_t count = testing::RunSchedules(kDefaultSchedules, [&c](uint64_t seed) {
    Schedule schedule(seed);
    const std::string fault = schedule.Run();
    schedule.AddTo(&c);
    return fault.empty() ? fault : fault + "\n  " + schedule.Describe();
  });
  std::cout << count << " schedules: " << c.packets << " packets, " << c.payload_bytes
            << " bytes placed, " << c.dropped << " dropped, " << c.duplicated << " duplicated, "
            << c.corrupted << " corrupted; sent again " << c.retransmits_fast << " (fast) "
            << c.retransmits_timeout << " (timeout), spurious " << c.spurious << "; messages "
            << c.complete << " complete, " << c.cut_short << " cut short, "
            << c.complete_before_cancel << " cancelled too late, " << c.unexpected
            << " before their receive, " << c.eager_without_credit << " small ones without credit; "
            << c.skips << " skips, " << c.probes << " probes, " << c.tail_probes
            << " tail probes; paths failed " << c.path_failures << " times, probed "
            << c.path_probes << " times; " << c.marked << " marks; " << c.credits << " credits, "
            << c.requests_to_send << " requests to send\n";
  if (count < 1000) return;
  EXPECT_GT(c.dropped, count);
  EXPECT_GT(c.duplicates, count);
  EXPECT_GT(c.bad_checksum, count / 10);
  EXPECT_GT(c.retransmits_fast, count);
  EXPECT_GT(c.retransmits_timeout, count);
  EXPECT_GT(c.spurious, count / 10);
  EXPECT_GT(c.credits, count);
  EXPECT_GT(c.requests_to_send, count);
  EXPECT_GT(c.unexpected, count);
  EXPECT_GT(c.complete, count * 4);
  EXPECT_GT(c.cut_short, count / 10);
  EXPECT_GT(c.complete_before_cancel, count / 10);
  EXPECT_GT(c.eager_without_credit, count / 10);
  EXPECT_GT(c.skips, count / 100);
  EXPECT_GT(c.probes, count / 100);
  EXPECT_GT(c.tail_probes, count / 2);
  EXPECT_GT(c.path_failures, count / 20);
  EXPECT_GT(c.path_probes, count / 20);
  EXPECT_GT(c.marked, count);
  for (const PathSelectorRow& row : PathSelectors())
    EXPECT_GT(c.complete_by_setting[row.name], count / 20) << row.name;
  for (const CongestionControllerRow& row : CongestionControllers())
    EXPECT_GT(c.complete_by_setting[row.name], count / 20) << row.name;
  for (const char* scope : {"connection", "path"})
    EXPECT_GT(c.complete_by_setting[scope], count / 4) << scope;
}

}  // namespace
}  // namespace uccl::core
