// See engine_world.h.
#include "csrc/sim/engine_world.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "csrc/base/hash.h"

namespace uccl::sim {
namespace {

// An engine that always claims to have done something would hold virtual time still for ever.
constexpr int kMaxTurnsPerInstant = 100'000;

}  // namespace

EngineWorld::EngineWorld(const Config& config, const Fabric* fabric, const LinkSpec& host_link,
                         const LinkSpec& core_link, const std::vector<engine::EngineSink*>& sinks,
                         uint64_t seed)
    : network_(fabric, host_link, core_link, HashWords({seed, 1}), &events_),
      processes_(sinks.size()) {
  SimNicSpec spec;
  spec.paths = static_cast<uint16_t>(config.paths);
  spec.max_datagram_bytes = static_cast<size_t>(config.max_datagram_bytes);
  spec.receive_ring_bytes = config.socket_buffer_bytes;
  spec.seed = HashWords({seed, 2});
  for (size_t i = 0; i < processes_.size(); ++i) {
    auto nic = std::make_unique<SimNic>(static_cast<uint32_t>(i), spec, &network_,
                                        [this, i] { MarkRunnable(i); });
    processes_[i].nic = nic.get();
    processes_[i].loop =
        std::make_unique<engine::Loop>(config, std::move(nic), sinks[i], &processes_[i].queue);
  }
}

void EngineWorld::Push(size_t process, engine::Command command) {
  Process& p = processes_[process];
  if (p.killed) return;
  if (!p.queue.Push(std::move(command))) return p.loop->RefuseCommand(command);
  MarkRunnable(process);
}

Status EngineWorld::ConnectAll(uint64_t session) {
  std::vector<std::string> addresses;
  for (const Process& p : processes_) addresses.push_back(EncodeHello(p.loop->hello()));
  Status first;
  for (size_t i = 0; i < processes_.size(); ++i) {
    Push(i, engine::ConnectCommand{ProcessId{static_cast<int32_t>(i)}, addresses, session, nullptr,
                                   [&first](const Status& status) {
                                     if (first.ok()) first = status;
                                   }});
  }
  RunRunnable();
  return first;
}

void EngineWorld::Kill(size_t process) {
  processes_[process].killed = true;
  processes_[process].nic->TurnOff();
}

uint64_t EngineWorld::ring_drops() const {
  uint64_t sum = 0;
  for (const Process& p : processes_) sum += p.nic->ring_drops();
  return sum;
}

bool EngineWorld::RunUntil(const std::function<bool()>& done, Nanos deadline) {
  RunRunnable();
  while (!done()) {
    const Nanos next = NextInstant();
    if (next > deadline) {
      now_ = std::max(now_, deadline);
      return false;
    }
    Instant(next);
  }
  return true;
}

Nanos EngineWorld::NextInstant() const {
  Nanos next = events_.empty() ? kNever : events_.front().time;
  if (!actions_.empty()) next = std::min(next, actions_.begin()->first);
  return std::max(next, now_);
}

void EngineWorld::Instant(Nanos time) {
  now_ = time;
  while (!actions_.empty() && actions_.begin()->first <= now_) {
    const auto action = std::move(actions_.begin()->second);
    actions_.erase(actions_.begin());
    action();
  }
  while (!events_.empty() && events_.front().time <= now_) {
    const ScheduledEvent event = events_.Pop();
    if (event.type == EventType::kArrive) {
      const auto packet = network_.OnArrive(now_, event.id);
      if (!packet) continue;
      const uint32_t host = network_.packets().at(*packet).dst;
      processes_[host].nic->OnPacket(*packet);
      MarkRunnable(host);
    } else if (event.time == processes_[event.id].timer_at) {  // else an earlier one took its place
      processes_[event.id].timer_at = kNever;
      MarkRunnable(event.id);
    }
  }
  RunRunnable();
}

void EngineWorld::RunRunnable() {
  // What one does at this instant reaches no other before a later one, so one pass is enough, but
  // for sinks that push commands.
  for (bool any = true; any;) {
    any = false;
    for (size_t i = 0; i < processes_.size(); ++i) {
      if (!std::exchange(processes_[i].runnable, false)) continue;
      any = true;
      TakeTurns(i);
    }
  }
}

void EngineWorld::TakeTurns(size_t process) {
  Process& p = processes_[process];
  if (p.killed || p.loop->stopped()) return;
  p.nic->set_now(now_);
  int turns = 0;
  while (p.loop->Turn(now_) && !p.loop->stopped()) {
    if (++turns > kMaxTurnsPerInstant) throw std::runtime_error("virtual time stands still");
  }
  if (p.loop->stopped()) return;
  Nanos next = p.loop->NextTimeout();
  if (p.loop->stalled()) next = std::min(next, p.nic->free_at());
  // Never at this instant again: what is due now was done, and a wheel's tick may round down.
  next = std::max(next, now_ + Nanos(1));
  if (next >= p.timer_at) return;
  p.timer_at = next;
  events_.Push(next, EventType::kTimer, static_cast<uint32_t>(process));
}

}  // namespace uccl::sim
