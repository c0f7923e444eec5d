// The production engine in virtual time: random traffic between several processes over a fabric
// with faults, processes that die, and an orderly end. What must hold in every schedule:
//   safety    each token is reported once, after a cancel never; messages arrive byte for byte
//   failure   only who talks to a dead process loses anything, and each survivor hears of the death
//             once, in time; nobody else is called lost
//   liveness  once the faults stop, everything between living processes completes, and they shut
//   down
//             in order
// UCCL_SIM_SEED=n replays one schedule, UCCL_SIM_SEEDS=n sets how many run.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/base/testing/sanitized.h"
#include "csrc/core/cc/registry.h"
#include "csrc/core/path/path_selector.h"
#include "csrc/core/testing/messages.h"
#include "csrc/core/testing/random.h"
#include "csrc/core/testing/schedules.h"
#include "csrc/sim/engine_world.h"
#include "csrc/sim/faults.h"

namespace uccl::sim {
namespace {

using core::testing::GuardedBuffer;
using Rng = core::testing::Random;

constexpr Nanos kPeerSilence = FromMillis(400);

struct Transfer {
  size_t from = 0, to = 0;
  core::MessageInfo info;
  std::vector<std::byte> contents;
  std::unique_ptr<GuardedBuffer> target;
  uint64_t send_token = 0, recv_token = 0;
  bool cancelled = false;
};

struct Outcome {
  int count = 0;
  Status status;
};

struct Sink final : engine::EngineSink {
  void OnMessage(ProcessId, const core::Event& event) override {
    Outcome& outcome = outcomes[event.token];
    ++outcome.count;
    outcome.status = event.status;
    if (event.kind == core::EventKind::kMismatch) mismatch = true;
  }
  void OnControl(ProcessId, const std::string& text) override { ++controls[text]; }
  void OnPeerLost(ProcessId peer, const Status&) override { lost.push_back(ToInt(peer)); }

  std::map<uint64_t, Outcome> outcomes;  // by token
  std::map<std::string, int> controls;
  std::vector<int32_t> lost;
  bool mismatch = false;
};

struct Coverage {
  uint64_t complete = 0, lost_messages = 0, cancelled = 0, deaths = 0, orderly = 0, drops = 0,
           ring_drops = 0, corrupted = 0, marked = 0, credit = 0;
};

class Schedule final {
 public:
  explicit Schedule(uint64_t seed)
      : random_(seed), config_(MakeConfig()), fabric_(MakeFabric()), sinks_(fabric_.num_hosts()) {
    LinkSpec host, core;
    host.bits_per_s = core.bits_per_s = random_.OneOf<int64_t>({1'000'000'000, 100'000'000'000});
    host.delay = core.delay = FromMicros(static_cast<int64_t>(random_.Magnitude(1, 200)));
    host.queue_bytes = core.queue_bytes =
        random_.OneOf<int64_t>({3 * config_.max_datagram_bytes, 500'000, 4 << 20});
    host.ecn_bytes = core.ecn_bytes = core.queue_bytes / 4;
    std::vector<engine::EngineSink*> sinks;
    for (Sink& sink : sinks_) sinks.push_back(&sink);
    world_ = std::make_unique<EngineWorld>(config_, &fabric_, host, core, sinks, seed);
  }

  std::string Run(Coverage* coverage) {
    if (const Status status = world_->ConnectAll(random_.Next()); !status.ok())
      return "connect: " + status.ToString();
    MakeFaults();
    const uint64_t count = random_.Magnitude(1, 60);
    for (uint64_t i = 0; i < count; ++i) MakeTransfer(i);
    for (size_t i = 0; i < random_.Below(5); ++i) MakeControl(i);
    if (random_.Chance(0.3)) MakeDeath();

    world_->RunUntil([&] { return Settled(); }, kDeadline);
    std::string fault = Check();
    if (fault.empty()) fault = ShutDown();
    AddTo(coverage);
    return fault;
  }

  std::string Describe() const {
    std::ostringstream out;
    out << fabric_.num_hosts() << " processes, paths=" << config_.paths
        << " datagram=" << config_.max_datagram_bytes << " window=" << config_.window_bytes
        << " cc=" << config_.congestion_control << "/" << config_.cc_scope
        << " policy=" << config_.path_policy << " receivers=" << config_.receiver_scheduler
        << " dead=" << (dead_ ? std::to_string(*dead_) : "nobody") << " messages=";
    for (const auto& t : transfers_)
      out << t->from << ">" << t->to << ":" << t->info.size_bytes << (t->cancelled ? "x " : " ");
    return out.str();
  }

 private:
  static constexpr Nanos kDeadline = std::chrono::seconds(300);

  Config MakeConfig() {
    Config c;
    c.paths = random_.OneOf<int64_t>({1, 2, 4, 16, 64});
    c.max_datagram_bytes = random_.OneOf<int64_t>({1200, 1472, 8192, 32768});
    c.window_bytes = random_.OneOf<int64_t>({1500, 40'000, 400'000, 4 << 20});
    c.eager_max_bytes = random_.OneOf<int64_t>({0, 1000, 16384});
    c.eager_buffer_bytes = random_.OneOf<int64_t>({0, 3000, 1 << 20});
    c.socket_buffer_bytes = random_.OneOf<int64_t>({65536, 8 << 20});
    c.min_rto_us = random_.OneOf<int64_t>({1000, 10'000});
    c.max_rto_us = 50'000;
    c.peer_silence_ms = ToMillis(kPeerSilence);
    const auto controllers = core::CongestionControllers();
    c.congestion_control = controllers[random_.Below(controllers.size())].name;
    const auto policies = core::PathSelectors();
    c.path_policy = policies[random_.Below(policies.size())].name;
    c.cc_scope = random_.OneOf<const char*>({"connection", "path"});
    c.max_retries = 1000;  // no path is dark for ever
    if (random_.Chance(0.4)) {
      c.receiver_scheduler = "eqds";
      c.line_rate_mbps = random_.OneOf<int64_t>({100, 1000, 100'000});
      c.credit_initial_bytes = random_.OneOf<int64_t>({0, 65536});
    }
    return c;
  }

  Fabric MakeFabric() {
    FabricSpec spec;
    spec.kind = random_.OneOf<const char*>({"dumbbell", "leaf_spine", "fat_tree"});
    spec.hosts = static_cast<uint32_t>(random_.Between(2, 7));
    return std::move(Fabric::Make(spec).value());
  }

  Nanos RandomTime() {
    return random_.Chance(0.3)
               ? world_->now()
               : world_->now() + FromMicros(static_cast<int64_t>(random_.Magnitude(1, 100'000)));
  }

  // Short against peer_silence, so that a living peer is never taken for dead.
  void MakeFaults() {
    FaultSpec spec;
    spec.chaos = static_cast<uint32_t>(random_.Below(12));
    spec.chaos_span = FromMicros(static_cast<int64_t>(random_.Magnitude(100, 20'000)));
    spec.loss = random_.Chance(0.3) ? random_.Unit() * 0.05 : 0;
    spec.seed = random_.Next();
    for (const Fault& fault : MakeFaultPlan(spec, fabric_)) {
      world_->At(world_->now() + fault.begin, [this, fault] { world_->network().Begin(fault); });
      if (fault.end == kNever) continue;
      world_->At(world_->now() + fault.end, [this, fault] { world_->network().End(fault); });
    }
  }

  void MakeTransfer(uint64_t index) {
    auto owned = std::make_unique<Transfer>();
    Transfer* t = owned.get();
    t->from = random_.Below(fabric_.num_hosts());
    t->to = (t->from + 1 + random_.Below(fabric_.num_hosts() - 1)) % fabric_.num_hosts();
    const size_t most = config_.window_bytes < 10'000 ? 20'000 : 200'000;
    const size_t size = random_.Chance(0.3) ? random_.Below(100) : random_.Magnitude(1, most);
    t->info.tag = {random_.Next(), index};
    t->info.digest = random_.Next();
    t->info.size_bytes = size;
    t->contents = core::testing::Pattern(size, random_.Next());
    t->target = std::make_unique<GuardedBuffer>(size);
    t->send_token = 2 * index + 1;
    t->recv_token = 2 * index + 2;
    transfers_.push_back(std::move(owned));
    const Nanos send_at = RandomTime(), recv_at = RandomTime();
    const ProcessId from{static_cast<int32_t>(t->from)}, to{static_cast<int32_t>(t->to)};
    world_->At(send_at, [this, t, to] {
      world_->Push(t->from, engine::SendCommand{to, t->info, t->contents, t->send_token});
    });
    world_->At(recv_at, [this, t, from] {
      world_->Push(t->to, engine::RecvCommand{from, t->info, t->target->body(), t->recv_token});
    });
    last_start_ = std::max({last_start_, send_at, recv_at});
    if (!random_.Chance(0.1)) return;
    // Both ends give up, at some time.
    t->cancelled = true;
    const Nanos at = std::max({send_at, recv_at, RandomTime()});
    last_start_ = std::max(last_start_, at);
    world_->At(at, [this, t, from, to] {
      Cancel(t->from, {to, true, t->send_token});
      Cancel(t->to, {from, false, t->recv_token});
    });
  }

  void Cancel(size_t process, const engine::Engine::Posted& posted) {
    cancelled_before_[posted.token] = sinks_[process].outcomes[posted.token].count;
    ++cancels_pending_[process];
    world_->Push(process,
                 engine::CancelCommand{{posted}, [this, process] { --cancels_pending_[process]; }});
  }

  void MakeControl(size_t index) {
    const size_t from = random_.Below(fabric_.num_hosts());
    const size_t to = (from + 1) % fabric_.num_hosts();
    const std::string text = "text " + std::to_string(index) + std::string(random_.Below(400), 'x');
    controls_.emplace_back(from, to, text);
    const Nanos at = RandomTime();
    last_start_ = std::max(last_start_, at);
    world_->At(at, [this, from, to, text] {
      world_->Push(from, engine::ControlCommand{ProcessId{static_cast<int32_t>(to)}, text});
    });
  }

  void MakeDeath() {
    dead_ = random_.Below(fabric_.num_hosts());
    const Nanos at = RandomTime();
    last_start_ = std::max(last_start_, at);
    world_->At(at, [this] { world_->Kill(*dead_); });
  }

  bool Dead(size_t process) const { return dead_ == process; }
  bool Done(size_t process, uint64_t token) {
    return Dead(process) || sinks_[process].outcomes[token].count > 0;
  }

  bool Settled() {
    if (world_->now() < last_start_) return false;
    for (size_t i = 0; i < sinks_.size(); ++i) {
      if (!Dead(i) && cancels_pending_[i] > 0) return false;
    }
    for (const auto& t : transfers_) {
      if (t->cancelled) continue;
      if (!Done(t->from, t->send_token) || !Done(t->to, t->recv_token)) return false;
    }
    for (const auto& [from, to, text] : controls_) {
      if (!Dead(from) && !Dead(to) && sinks_[to].controls[text] == 0) return false;
    }
    return true;
  }

  std::string Check() {
    if (!Settled()) return "not complete: " + Missing();
    for (const auto& t : transfers_) {
      const Outcome& sent = sinks_[t->from].outcomes[t->send_token];
      const Outcome& received = sinks_[t->to].outcomes[t->recv_token];
      const std::string name = "message " + std::to_string(t->send_token / 2);
      if (sent.count > 1 || received.count > 1) return name + " reported twice";
      if (!t->target->GuardsIntact()) return name + " written outside its buffer";
      const bool with_dead = Dead(t->from) || Dead(t->to);
      if (t->cancelled) {
        for (const auto& [process, token] :
             {std::pair(t->from, t->send_token), std::pair(t->to, t->recv_token)}) {
          if (sinks_[process].outcomes[token].count > std::max(1, cancelled_before_[token]))
            return name + " reported after its cancel";
        }
        continue;
      }
      if (!with_dead && !(sent.status.ok() && received.status.ok()))
        return name + ": " + sent.status.ToString() + ", " + received.status.ToString();
      if (!Dead(t->to) && received.status.ok() && !t->target->Holds(t->contents))
        return name + " is damaged";
      if (!Dead(t->to) && Dead(t->from) && !received.status.ok() &&
          received.status.code != StatusCode::kPeerLost)
        return name + " of a dead process: " + received.status.ToString();
    }
    for (const auto& [from, to, text] : controls_) {
      if (!Dead(to) && sinks_[to].controls[text] > 1) return "a control message came twice";
    }
    for (size_t i = 0; i < sinks_.size(); ++i) {
      if (Dead(i)) continue;
      if (sinks_[i].mismatch) return "mismatch";
      const std::vector<int32_t>& lost = sinks_[i].lost;
      if (lost.size() > 1) return "process " + std::to_string(i) + " lost several peers";
      if (!lost.empty() && !Dead(static_cast<size_t>(lost[0])))
        return "process " + std::to_string(lost[0]) + " was called lost, but lives";
    }
    return "";
  }

  // In a random order, a while apart.
  std::string ShutDown() {
    for (size_t i = 0; i < sinks_.size(); ++i) {
      if (Dead(i)) continue;
      world_->At(world_->now() + FromMicros(static_cast<int64_t>(random_.Below(20'000))),
                 [this, i] { world_->Push(i, engine::ShutdownCommand{std::chrono::seconds(60)}); });
    }
    const auto stopped = [&] {
      for (size_t i = 0; i < sinks_.size(); ++i) {
        if (!Dead(i) && !world_->loop(i).stopped()) return false;
      }
      return true;
    };
    if (!world_->RunUntil(stopped, world_->now() + std::chrono::seconds(100)))
      return "shutdown never ended";
    if (dead_) return "";  // who owed the dead something may say so
    for (size_t i = 0; i < sinks_.size(); ++i) {
      if (!world_->loop(i).outcome().ok())
        return "shutdown of " + std::to_string(i) + ": " + world_->loop(i).outcome().ToString();
      if (!sinks_[i].lost.empty()) return "a peer that shut down in order was called lost";
    }
    orderly_ = true;
    return "";
  }

  std::string Missing() {
    std::ostringstream out;
    for (const auto& t : transfers_) {
      if (t->cancelled || (Done(t->from, t->send_token) && Done(t->to, t->recv_token))) continue;
      out << t->from << ">" << t->to << ":" << t->info.size_bytes << " sent "
          << Done(t->from, t->send_token) << " received " << Done(t->to, t->recv_token) << "; ";
    }
    return out.str();
  }

  void AddTo(Coverage* c) {
    for (const auto& t : transfers_) {
      const Outcome& received = sinks_[t->to].outcomes[t->recv_token];
      c->cancelled += t->cancelled;
      c->complete += received.count == 1 && received.status.ok();
      c->lost_messages += received.count == 1 && !received.status.ok();
    }
    c->deaths += dead_.has_value();
    c->orderly += orderly_;
    c->ring_drops += world_->ring_drops();
    c->drops += world_->network().totals().dropped;
    c->marked += world_->network().totals().marked;
    c->credit += config_.receiver_scheduler != "none";
    for (const Link& link : world_->network().links()) c->corrupted += link.stats().corrupted;
  }

  Rng random_;
  const Config config_;
  const Fabric fabric_;
  std::vector<Sink> sinks_;
  std::unique_ptr<EngineWorld> world_;
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::vector<std::tuple<size_t, size_t, std::string>> controls_;
  std::map<uint64_t, int> cancelled_before_;  // by token: reports before the cancel
  std::optional<size_t> dead_;
  Nanos last_start_{0};
  std::map<size_t, int> cancels_pending_;  // by process
  bool orderly_ = false;
};

constexpr uint64_t kDefaultSchedules = UnderSanitizers(100, 3000);

TEST(EngineProperty, RandomFaultSchedules) {
  Coverage c;
  const uint64_t count = core::testing::RunSchedules(kDefaultSchedules, [&c](uint64_t seed) {
    Schedule schedule(seed);
    const std::string fault = schedule.Run(&c);
    return fault.empty() ? fault : fault + "\n  " + schedule.Describe();
  });
  std::cout << count << " schedules: messages " << c.complete << " complete, " << c.lost_messages
            << " lost with a peer, " << c.cancelled << " cancelled; " << c.deaths << " deaths, "
            << c.orderly << " orderly ends; packets " << c.drops << " dropped, " << c.ring_drops
            << " of them by full rings, " << c.corrupted << " corrupted, " << c.marked
            << " marked; " << c.credit << " with receiver credits\n";
  if (count < 100) return;
  EXPECT_GT(c.complete, count * 5);
  EXPECT_GT(c.lost_messages, count / 10);
  EXPECT_GT(c.cancelled, count / 4);
  EXPECT_GT(c.deaths, count / 5);
  EXPECT_GT(c.orderly, count / 2);
  EXPECT_GT(c.drops, count);
  EXPECT_GT(c.corrupted, count / 10);
  EXPECT_GT(c.credit, count / 4);
}

// Both left at once, the last words of one were lost, and nobody was there to repeat them.
TEST(EngineProperty, Found_LeavingAtOnceLosesNobody) {
  for (const uint64_t seed : {134u, 511u, 567u, 794u, 972u}) {
    Coverage c;
    EXPECT_EQ(Schedule(seed).Run(&c), "") << seed;
  }
}

TEST(EngineProperty, EqualSeedsGiveEqualRuns) {
  for (uint64_t seed = 1; seed < 6; ++seed) {
    Coverage a, b;
    EXPECT_EQ(Schedule(seed).Run(&a), Schedule(seed).Run(&b));
    EXPECT_EQ(a.drops, b.drops);
    EXPECT_EQ(a.marked, b.marked);
    EXPECT_EQ(a.complete, b.complete);
  }
}

}  // namespace
}  // namespace uccl::sim
