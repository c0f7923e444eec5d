// What the engine thread does with each command.
#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "csrc/core/credit/registry.h"
#include "csrc/engine/loop.h"

namespace uccl::engine {
namespace {

void ReportTo(EngineSink* sink, ProcessId peer, core::EventKind kind, uint64_t token,
              Status status) {
  core::Event event;
  event.kind = kind;
  event.token = token;
  event.status = std::move(status);
  sink->OnMessage(peer, event);
}

}  // namespace

bool Loop::RunCommands(Nanos now) {
  queue_->TakeAll(&commands_);
  if (commands_.empty()) return false;
  counters_.commands += commands_.size();
  for (Command& command : commands_) {
    std::visit([&](auto& c) { Handle(now, c); }, command);
  }
  commands_.clear();
  return true;
}

PeerLink* Loop::FindLink(ProcessId peer) {
  const int32_t index = ToInt(peer);
  if (index < 0 || static_cast<size_t>(index) >= links_.size()) return nullptr;
  return links_[static_cast<size_t>(index)].get();
}

PeerLink* Loop::LinkOrReport(ProcessId peer, core::EventKind kind, uint64_t token) {
  PeerLink* link = FindLink(peer);
  if (link == nullptr) {
    Status status =
        Status::Error(StatusCode::kInvalidArgument,
                      "there is no connection to process " + std::to_string(ToInt(peer)));
    status.process = ToInt(peer);
    ReportTo(sink_, peer, kind, token, std::move(status));
  }
  return link;
}

void Loop::Handle(Nanos now, SendCommand& c) {
  if (links_.empty()) {
    before_connect_.emplace_back(c);
    return;
  }
  if (Shares(c.peer)) return shared_->Send(c.peer, c.info, c.data, c.token);
  PeerLink* link = LinkOrReport(c.peer, core::EventKind::kSendDone, c.token);
  if (link == nullptr) return;
  link->Send(now, c);
  Touch(link);
}

void Loop::Handle(Nanos now, RecvCommand& c) {
  if (links_.empty()) {
    before_connect_.emplace_back(c);
    return;
  }
  if (Shares(c.peer)) return shared_->PostRecv(c.peer, c.info, c.buffer, c.token);
  PeerLink* link = LinkOrReport(c.peer, core::EventKind::kRecvDone, c.token);
  if (link == nullptr) return;
  link->PostRecv(now, c);
  Touch(link);
}

void Loop::Handle(Nanos now, ControlCommand& c) {
  if (links_.empty()) {
    before_connect_.emplace_back(std::move(c));
    return;
  }
  PeerLink* link = FindLink(c.peer);
  if (link == nullptr) return;
  link->SendControl(now, c.text);
  Touch(link);
}

void Loop::Handle(Nanos now, CancelCommand& c) {
  for (const Engine::Posted& posted : c.posted) {
    // What shared memory carries is withdrawn there, once all engines have passed it on.
    PeerLink* const link = FindLink(posted.peer);
    if (link != nullptr && !Shares(posted.peer)) {
      if (posted.never_posted) {
        link->Discard(posted.is_send, *posted.never_posted);
      } else {
        link->Cancel(now, posted.is_send, posted.token);
      }
      Touch(link);
    }
    if (posted.never_posted) continue;
    std::erase_if(before_connect_, [&](const Command& waiting) {
      const auto* send = std::get_if<SendCommand>(&waiting);
      const auto* recv = std::get_if<RecvCommand>(&waiting);
      if (posted.is_send) return send != nullptr && send->token == posted.token;
      return recv != nullptr && recv->token == posted.token;
    });
  }
  c.done();
}

void Loop::Handle(Nanos now, FailPeerCommand& c) {
  if (PeerLink* link = FindLink(c.peer)) {
    link->Fail(c.status);
    link->DeliverEvents(now);
    Touch(link);
  }
  c.done();
}

void Loop::Handle(Nanos, InspectCommand& c) {
  std::vector<UnexpectedMessage> messages;
  for (const auto& link : links_) {
    if (link == nullptr) continue;
    for (const core::MessageInfo& info : link->connection().Unexpected()) {
      messages.push_back({link->id(), info});
    }
  }
  c.fn(std::move(messages));
}

void Loop::Handle(Nanos, StatsCommand& c) { c.fn(Stats()); }

void Loop::Handle(Nanos now, ConnectCommand& c) {
  Status status = Connect(now, c);
  const bool connected = status.ok();
  c.done(std::move(status));
  if (!connected) return;
  std::vector<Command> waiting = std::move(before_connect_);
  before_connect_.clear();
  for (Command& command : waiting) {
    std::visit([&](auto& w) { Handle(now, w); }, command);
  }
}

Status Loop::Connect(Nanos now, const ConnectCommand& c) {
  if (!links_.empty()) {
    return Status::Error(StatusCode::kInvalidArgument, "the engine is connected already");
  }
  const size_t self = static_cast<size_t>(ToInt(c.self));
  if (ToInt(c.self) < 0 || self >= c.addresses.size()) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "process " + std::to_string(ToInt(c.self)) + " is not one of the " +
                             std::to_string(c.addresses.size()) + " that gave an address");
  }
  auto scheduler =
      core::MakeReceiverScheduler(config_.receiver_scheduler, MakeCreditParams(config_, hello_));
  if (!scheduler.ok()) return scheduler.status();
  std::vector<std::unique_ptr<PeerLink>> links(c.addresses.size());
  std::vector<PeerLink*> by_handle = by_handle_;
  std::unordered_map<uint64_t, PeerLink*> by_key;
  for (size_t i = 0; i < c.addresses.size(); ++i) {
    if (i == self) continue;
    const ProcessId peer{static_cast<int32_t>(i)};
    const auto named = [&](Status status) {
      status.process = static_cast<int64_t>(i);
      return status;
    };
    Result<Hello> theirs = DecodeHello(c.addresses[i]);
    if (!theirs.ok()) return named(theirs.status());
    if (theirs.value().backend != hello_.backend) {
      return named(Status::Error(StatusCode::kInvalidArgument,
                                 "process " + std::to_string(i) + " uses the backend \"" +
                                     theirs.value().backend + "\", this one \"" + hello_.backend +
                                     "\"; set backend (JAX_UCCL_BACKEND) alike everywhere"));
    }
    if (theirs.value().receiver_scheduler != hello_.receiver_scheduler) {
      return named(Status::Error(
          StatusCode::kInvalidArgument,
          "process " + std::to_string(i) + " has receiver_scheduler \"" +
              theirs.value().receiver_scheduler + "\", this one \"" + hello_.receiver_scheduler +
              "\"; set receiver_scheduler (JAX_UCCL_RECEIVER_SCHEDULER) alike everywhere"));
    }
    Result<nic::PeerHandle> handle = nic_->AddPeer(theirs.value().nic_address);
    if (!handle.ok()) return named(handle.status());
    const LinkIdentity identity{c.session, c.self, peer, static_cast<int64_t>(c.addresses.size())};
    const core::ConnectionConfig settings = MakeConnectionConfig(
        config_, hello_, theirs.value(), identity, nic_->MaxDatagramBytes(handle.value()));
    Result<std::unique_ptr<core::Connection>> connection =
        core::Connection::Make(settings, {scheduler.value().get(), i});
    if (!connection.ok()) return named(connection.status());
    links[i] =
        std::make_unique<PeerLink>(peer, handle.value(), std::move(connection.value()), sink_);
    if (!by_key.emplace(settings.recv_key, links[i].get()).second) {
      // One in 2^64 per pair of processes; another session number moves it.
      return named(
          Status::Error(StatusCode::kProtocol, "two connections got the same key; start again"));
    }
    by_handle.resize(std::max<size_t>(by_handle.size(), handle.value() + size_t{1}), nullptr);
    by_handle[handle.value()] = links[i].get();
  }
  scheduler_ = std::move(scheduler.value());
  links_ = std::move(links);
  shared_ = c.shared;
  by_key_ = std::move(by_key);
  by_handle_ = std::move(by_handle);
  is_touched_.assign(links_.size(), 0);
  timers_ = std::make_unique<TimingWheel>(links_.size(), now);
  touched_.reserve(links_.size());
  return Status::Ok();
}

void Loop::Handle(Nanos now, ShutdownCommand& c) {
  if (stage_ != Stage::kOpen) return;
  stage_ = Stage::kDraining;
  // Far enough for "no limit" and near enough not to overflow.
  constexpr Nanos kLongest = std::chrono::hours(24 * 365);
  shutdown_deadline_ = now + std::clamp(c.timeout, Nanos(0), kLongest);
}

void Loop::RefuseCommand(Command& command) {
  const Status aborted = Status::Error(StatusCode::kAborted, "the engine was shut down");
  if (auto* send = std::get_if<SendCommand>(&command)) {
    ReportTo(sink_, send->peer, core::EventKind::kSendDone, send->token, aborted);
  } else if (auto* recv = std::get_if<RecvCommand>(&command)) {
    ReportTo(sink_, recv->peer, core::EventKind::kRecvDone, recv->token, aborted);
  } else if (auto* cancel = std::get_if<CancelCommand>(&command)) {
    cancel->done();  // everything outstanding was reported when the engine stopped
  } else if (auto* fail = std::get_if<FailPeerCommand>(&command)) {
    fail->done();
  } else if (auto* inspect = std::get_if<InspectCommand>(&command)) {
    inspect->fn({});
  } else if (auto* stats = std::get_if<StatsCommand>(&command)) {
    stats->fn(Stats());
  } else if (auto* connect = std::get_if<ConnectCommand>(&command)) {
    connect->done(aborted);
  }
  // Control messages have no receiver left, and a second shutdown has nothing to do.
}

}  // namespace uccl::engine
