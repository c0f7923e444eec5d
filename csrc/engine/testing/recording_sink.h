// An EngineSink that records what happens and lets a test thread wait for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "csrc/engine/engine.h"

namespace uccl::engine::testing {

class RecordingSink final : public EngineSink {
 public:
  // How long a wait may take before the test fails: far above anything a loaded machine needs.
  static constexpr std::chrono::seconds kPatience{60};

  struct Lost {
    ProcessId peer;
    Status status;
  };

  void OnMessage(ProcessId peer, const core::Event& event) override {
    std::lock_guard lock(mutex_);
    auto [it, first] = events_.emplace(event.token, std::pair(peer, event));
    if (!first) ++duplicates_;
    changed_.notify_all();
  }
  void OnControl(ProcessId peer, const std::string& control) override {
    std::lock_guard lock(mutex_);
    controls_.emplace_back(peer, control);
    changed_.notify_all();
  }
  void OnArrival(ProcessId peer, const core::MessageInfo& info) override {
    std::lock_guard lock(mutex_);
    arrivals_.push_back({peer, info});
    changed_.notify_all();
  }
  void OnPeerLost(ProcessId peer, const Status& status) override {
    std::lock_guard lock(mutex_);
    lost_.push_back({peer, status});
    changed_.notify_all();
  }

  // False when it did not happen in time.
  bool WaitTokens(const std::vector<uint64_t>& tokens) {
    return Wait([&] {
      for (const uint64_t t : tokens) {
        if (!events_.contains(t)) return false;
      }
      return true;
    });
  }
  bool WaitControls(size_t count) {
    return Wait([&] { return controls_.size() >= count; });
  }
  bool WaitArrivals(size_t count) {
    return Wait([&] { return arrivals_.size() >= count; });
  }
  bool WaitLost(size_t count) {
    return Wait([&] { return lost_.size() >= count; });
  }

  bool Has(uint64_t token) const {
    std::lock_guard lock(mutex_);
    return events_.contains(token);
  }
  // Of a token that was waited for.
  core::Event Get(uint64_t token) const {
    std::lock_guard lock(mutex_);
    const auto it = events_.find(token);
    return it == events_.end() ? core::Event{} : it->second.second;
  }
  std::vector<std::pair<ProcessId, std::string>> controls() const {
    std::lock_guard lock(mutex_);
    return controls_;
  }
  std::vector<UnexpectedMessage> arrivals() const {
    std::lock_guard lock(mutex_);
    return arrivals_;
  }
  std::vector<Lost> lost() const {
    std::lock_guard lock(mutex_);
    return lost_;
  }
  int duplicates() const {
    std::lock_guard lock(mutex_);
    return duplicates_;
  }

 private:
  template <class Predicate>
  bool Wait(Predicate done) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, done);
  }

  mutable std::mutex mutex_;  // guards all below: the engine thread writes, the test thread reads
  std::condition_variable changed_;
  std::map<uint64_t, std::pair<ProcessId, core::Event>> events_;
  std::vector<std::pair<ProcessId, std::string>> controls_;
  std::vector<UnexpectedMessage> arrivals_;
  std::vector<Lost> lost_;
  int duplicates_ = 0;
};

}  // namespace uccl::engine::testing
