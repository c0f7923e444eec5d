// Two connections joined by a Network, driven in virtual time the way an engine drives them:
// arrivals, timers, events, then all that wants to be sent. Actions of the application are
// scheduled like arrivals.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/core/connection.h"
#include "csrc/core/credit/registry.h"
#include "csrc/core/testing/network.h"

namespace uccl::core::testing {

// The two ends' settings from those of end 0.
inline ConnectionConfig Mirror(ConnectionConfig config) {
  std::swap(config.send_key, config.recv_key);
  std::swap(config.initial_send_psn, config.initial_recv_psn);
  config.seed += 1;
  return config;
}

inline ConnectionConfig DefaultConfig(uint16_t num_paths = 4) {
  ConnectionConfig config;
  config.send_key = 0x1111'2222'3333'4444;
  config.recv_key = 0x5555'6666'7777'8888;
  config.initial_send_psn = 1000;
  config.initial_recv_psn = 70'000;
  config.num_paths = num_paths;
  return config;
}

class Simulation final {
 public:
  // `credit` makes receivers schedule their senders.
  Simulation(const ConnectionConfig& config, uint64_t seed, Nanos start = FromMillis(1),
             const std::optional<CreditParams>& credit = {})
      : network(config.num_paths, seed), now_(start) {
    for (auto& scheduler : schedulers_) {
      if (credit) scheduler = std::move(MakeReceiverScheduler("eqds", *credit).value());
    }
    ends_[0] = Make(config, schedulers_[0].get());
    ends_[1] = Make(Mirror(config), schedulers_[1].get());
  }

  Network network;

  Nanos now() const { return now_; }
  Connection& end(int i) { return *ends_[i]; }
  // Called for every event, instead of keeping it in events().
  void set_on_event(std::function<void(int end, Event event)> fn) { on_event_ = std::move(fn); }
  // Called after every instant.
  void set_on_instant(std::function<void()> fn) { on_instant_ = std::move(fn); }
  std::vector<Event>& events(int i) { return events_[i]; }
  void At(Nanos time, std::function<void()> action) {
    actions_.emplace(std::max(time, now_), std::move(action));
  }
  // An end that is off neither receives nor sends nor fires timers: its process is gone or stopped.
  void set_off(int i, bool off) { off_[i] = off; }

  // True when `done` holds, false when `deadline` passes or nothing is left to happen before.
  bool RunUntil(const std::function<bool()>& done, Nanos deadline) {
    Settle();
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
  // Waits until end `i` has an event of this kind and token.
  bool RunUntilEvent(int i, EventKind kind, uint64_t token, Nanos deadline) {
    return RunUntil([&] { return Find(i, kind, token) != nullptr; }, deadline);
  }
  const Event* Find(int i, EventKind kind, uint64_t token) const {
    for (const Event& event : events_[i]) {
      if (event.kind == kind && event.token == token) return &event;
    }
    return nullptr;
  }
  void RunFor(Nanos duration) {
    RunUntil([] { return false; }, now_ + duration);
  }

 private:
  static std::unique_ptr<Connection> Make(const ConnectionConfig& config,
                                          ReceiverScheduler* scheduler) {
    auto made = Connection::Make(config, {scheduler, 0});
    if (!made.ok()) throw std::runtime_error(made.status().ToString());
    return std::move(made.value());
  }
  Nanos NextInstant() const {
    Nanos next = network.NextArrival();
    if (!actions_.empty()) next = std::min(next, actions_.begin()->first);
    for (int i : {0, 1}) {
      if (off_[i]) continue;
      next = std::min(next, ends_[i]->NextTimeout());
      if (schedulers_[i]) next = std::min(next, schedulers_[i]->NextGrant());
    }
    return std::max(next, now_);
  }
  void Instant(Nanos time) {
    instants_here_ = time == now_ ? instants_here_ + 1 : 0;
    // A timer that does not move on after it fired would hold virtual time still for ever.
    if (instants_here_ > 10'000) throw std::runtime_error("virtual time stands still");
    now_ = time;
    while (!actions_.empty() && actions_.begin()->first <= now_) {
      const auto action = std::move(actions_.begin()->second);
      actions_.erase(actions_.begin());
      action();
    }
    while (network.NextArrival() <= now_) {
      Arrival arrival = network.Pop();
      if (!off_[arrival.to])
        ends_[arrival.to]->OnDatagram(now_, arrival.path, arrival.bytes, arrival.ecn);
      network.Recycle(std::move(arrival));
    }
    for (int i : {0, 1}) {
      if (!off_[i] && ends_[i]->NextTimeout() <= now_) ends_[i]->OnTimeout(now_);
    }
    Settle();
    if (on_instant_) on_instant_();
  }
  void Settle() {
    for (int i : {0, 1}) {
      while (std::optional<Event> event = ends_[i]->PollEvent()) {
        if (on_event_) {
          on_event_(i, std::move(*event));
        } else {
          events_[i].push_back(std::move(*event));
        }
      }
      if (off_[i]) continue;
      while (schedulers_[i] && schedulers_[i]->Grant(now_) != nullptr) {
      }
      while (const std::optional<Datagram> datagram = ends_[i]->PollTransmit(now_)) {
        network.Send(now_, i, datagram->path, datagram->header, datagram->payload);
      }
    }
  }

  std::array<std::unique_ptr<ReceiverScheduler>, 2> schedulers_;  // outlive the connections
  std::array<std::unique_ptr<Connection>, 2> ends_;
  std::array<std::vector<Event>, 2> events_;
  std::array<bool, 2> off_{};
  std::multimap<Nanos, std::function<void()>> actions_;  // equal times in the order of scheduling
  std::function<void(int, Event)> on_event_;
  std::function<void()> on_instant_;
  Nanos now_;
  int instants_here_ = 0;
};

}  // namespace uccl::core::testing
