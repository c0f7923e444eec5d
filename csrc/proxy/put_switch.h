// The engine has one sink; this one hands puts and what belongs to them to a proxy, everything else
// to the sink that was there before. Puts that come before there is a proxy wait for it.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "csrc/engine/engine.h"
#include "csrc/proxy/proxy.h"

namespace uccl::proxy {

class PutSwitch final : public engine::EngineSink {
 public:
  // `others` outlives this; null: there are only puts.
  explicit PutSwitch(engine::EngineSink* others) : others_(others) {}

  // Once. `proxy` outlives the engine's threads.
  void Attach(Proxy* proxy) {
    std::vector<engine::UnexpectedMessage> early;
    std::vector<std::pair<ProcessId, Status>> lost;
    {
      std::lock_guard lock(mutex_);
      proxy_ = proxy;
      early.swap(early_);
      lost.swap(lost_);
    }
    for (const auto& [peer, info] : early) proxy->OnArrival(peer, info);
    for (const auto& [peer, status] : lost) proxy->OnPeerLost(peer, status);
  }

  void OnMessage(ProcessId peer, const core::Event& event) override {
    if (Proxy::OwnsToken(event.token)) {
      if (Proxy* const proxy = Attached()) proxy->OnMessage(peer, event);
    } else if (others_ != nullptr) {
      others_->OnMessage(peer, event);
    }
  }
  void OnControl(ProcessId peer, const std::string& control) override {
    if (others_ != nullptr) others_->OnControl(peer, control);
  }
  void OnArrival(ProcessId peer, const core::MessageInfo& info) override {
    {
      std::lock_guard lock(mutex_);
      if (proxy_ == nullptr) return early_.push_back({peer, info});
    }
    Attached()->OnArrival(peer, info);
  }
  void OnPeerLost(ProcessId peer, const Status& status) override {
    Proxy* proxy = nullptr;
    {
      std::lock_guard lock(mutex_);
      proxy = proxy_;
      if (proxy == nullptr) lost_.emplace_back(peer, status);
    }
    if (proxy != nullptr) proxy->OnPeerLost(peer, status);
    if (others_ != nullptr) others_->OnPeerLost(peer, status);
  }

 private:
  Proxy* Attached() {
    std::lock_guard lock(mutex_);
    return proxy_;
  }

  engine::EngineSink* const others_;
  std::mutex mutex_;  // guards all below
  Proxy* proxy_ = nullptr;
  std::vector<engine::UnexpectedMessage> early_;
  std::vector<std::pair<ProcessId, Status>> lost_;
};

}  // namespace uccl::proxy
