// Turns, sleep, and dispatch. See loop.h for the order of a turn.
#include "csrc/engine/loop.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "csrc/wire/packet.h"

namespace uccl::engine {
namespace {

// Datagrams read per turn. Few enough that acknowledgements, which the connections gather per turn,
// leave soon enough to keep the sender's window open.
constexpr size_t kReceiveBatch = 128;
// Batches sent per turn before the device is looked at again.
constexpr int kBatchesPerTurn = 1;
// What a connection sends before the next one has its turn: fair in bytes among bulk senders, and a
// run of one destination still shares system calls, and packets where datagrams are small.
constexpr int kQuantumDatagrams = 4;
constexpr size_t kQuantumBytes = 65536;

Nanos ReadClock() {
  return std::chrono::duration_cast<Nanos>(std::chrono::steady_clock::now().time_since_epoch());
}

Hello MakeHello(const Config& config, const nic::NicBackend& nic) {
  const nic::Capabilities& c = nic.capabilities();
  Hello hello;
  hello.backend = config.backend;
  hello.nic_address = nic.LocalAddress();
  hello.paths = c.num_paths;
  hello.max_datagram_bytes = static_cast<int64_t>(c.max_datagram_bytes);
  hello.receive_buffer_bytes = c.receive_buffer_bytes;
  hello.eager_max_bytes = config.eager_max_bytes;
  hello.eager_buffer_bytes = config.eager_buffer_bytes;
  hello.credit_initial_bytes = config.credit_initial_bytes;
  hello.receiver_scheduler = config.receiver_scheduler;
  return hello;
}

}  // namespace

Loop::Loop(const Config& config, std::unique_ptr<nic::NicBackend> nic, EngineSink* sink,
           CommandQueue* queue)
    : config_(config),
      nic_(std::move(nic)),
      sink_(sink),
      queue_(queue),
      hello_(MakeHello(config, *nic_)),
      incoming_(kReceiveBatch),
      spin_(std::chrono::microseconds(config.spin_us)) {
  counters_.engines = 1;
}

Status Loop::Run() {
  while (true) {
    const Nanos now = ReadClock();
    ++counters_.turns;
    const bool worked = Turn(now);
    if (stage_ == Stage::kStopped) return outcome_;
    if (worked) {
      spin_.OnWork(now);
    } else if (!spin_.OnIdle(now)) {
      Sleep(now);
    } else {
      yield_.OnIdleTurn(&spin_);
    }
  }
}

bool Loop::Turn(Nanos now) {
  bool worked = RunCommands(now);
  worked |= Receive(now);
  worked |= ReadFaults(now);
  worked |= FireTimers(now);
  worked |= GrantCredits(now);
  DeliverEvents(now);
  // What the sink answered at once leaves with the acknowledgements, not a turn later.
  if (worked && RunCommands(now)) DeliverEvents(now);
  worked |= Transmit(now);
  // Events that transmitting caused, such as a failure noticed there, come with the next turn,
  // which must not sleep before it.
  worked |= !touched_.empty() && !batch_.stalled();
  StepShutdown(now);
  return worked;
}

void Loop::Sleep(Nanos now) {
  const Nanos next = NextTimeout();
  const Nanos timeout = next == kNever ? kNever : std::max(next - now, Nanos(0));
  ++counters_.sleeps;
  nic_->Wait(timeout, batch_.stalled());
}

Nanos Loop::NextTimeout() const {
  Nanos next = stage_ == Stage::kOpen ? kNever : std::min(shutdown_deadline_, stage_deadline_);
  if (scheduler_ != nullptr) next = std::min(next, scheduler_->NextGrant());
  if (timers_ != nullptr) next = std::min(next, timers_->Next());
  return next;
}

bool Loop::Receive(Nanos now) {
  const size_t count = nic_->Poll(incoming_);
  for (size_t i = 0; i < count; ++i) {
    const nic::Incoming& in = incoming_[i];
    const std::optional<uint64_t> key = wire::PeekKey(in.datagram);
    const auto it = key.has_value() ? by_key_.find(*key) : by_key_.end();
    if (it == by_key_.end()) {
      ++counters_.unknown_key_drops;  // of another session, or no packet of ours at all
      continue;
    }
    it->second->OnDatagram(now, in);
    Touch(it->second);
  }
  return count > 0;
}

bool Loop::ReadFaults(Nanos now) {
  bool any = false;
  for (const nic::Fault& fault : nic_->PollFaults()) {
    any = true;
    // A peer of a Connect that failed half-way has no link.
    if (fault.peer >= by_handle_.size() || by_handle_[fault.peer] == nullptr) continue;
    by_handle_[fault.peer]->OnFault(now, fault.status);
    Touch(by_handle_[fault.peer]);
  }
  return any;
}

bool Loop::FireTimers(Nanos now) {
  if (timers_ == nullptr) return false;
  expired_.clear();
  timers_->Expire(now, &expired_);
  bool any = false;
  for (const size_t id : expired_) {
    PeerLink* link = links_[id].get();
    if (link->NextTimeout() > now) {
      SetTimer(*link);
      continue;
    }
    link->OnTimeout(now);
    Touch(link);
    any = true;
  }
  return any;
}

void Loop::SetTimer(const PeerLink& link) {
  timers_->Set(static_cast<size_t>(ToInt(link.id())), link.NextTimeout());
}

bool Loop::GrantCredits(Nanos now) {
  if (scheduler_ == nullptr) return false;
  bool any = false;
  while (const core::CreditFlow* flow = scheduler_->Grant(now)) {
    Touch(links_[flow->owner].get());
    any = true;
  }
  return any;
}

void Loop::Touch(PeerLink* link) {
  char& flag = is_touched_[static_cast<size_t>(ToInt(link->id()))];
  if (flag) return;
  flag = 1;
  touched_.push_back(link);
}

void Loop::DeliverEvents(Nanos now) {
  // The sink may hand in new messages; they go through the queue, so the list does not grow here.
  for (PeerLink* link : touched_) link->DeliverEvents(now);
}

bool Loop::Transmit(Nanos now) {
  if (batch_.stalled()) {
    const bool taken = batch_.Flush(nic_.get());
    if (batch_.stalled()) {
      for (const PeerLink* link : touched_) SetTimer(*link);
      return taken;
    }
  }
  bool sent = false;
  for (int round = 0; round < kBatchesPerTurn && !touched_.empty() && !batch_.stalled(); ++round) {
    // Links with nothing more to send leave the list; a datagram, a command or a timer brings them
    // back.
    while (!batch_.full() && !touched_.empty()) {
      if (round_robin_ >= touched_.size()) round_robin_ = 0;
      PeerLink* link = touched_[round_robin_];
      bool exhausted = false;
      size_t bytes = 0;
      for (int i = 0; (i < kQuantumDatagrams || bytes < kQuantumBytes) && !batch_.full(); ++i) {
        const std::optional<core::Datagram> datagram = link->PollTransmit(now);
        if (!datagram.has_value()) {
          exhausted = true;
          break;
        }
        batch_.Add(link->handle(), *datagram);
        bytes += datagram->header.size() + datagram->payload.size();
      }
      SetTimer(*link);
      if (exhausted) {
        is_touched_[static_cast<size_t>(ToInt(link->id()))] = 0;
        touched_.erase(touched_.begin() + static_cast<ptrdiff_t>(round_robin_));
      } else {
        ++round_robin_;
      }
    }
    sent |= batch_.Flush(nic_.get());
  }
  // Those whose turn did not come may have been touched by something that moved their deadline.
  for (const PeerLink* link : touched_) SetTimer(*link);
  return sent;
}

EngineStats Loop::Stats() const {
  EngineStats stats = counters_;
  stats.nic = nic_->stats();
  for (const auto& link : links_) {
    if (link != nullptr) stats.peers.emplace(ToInt(link->id()), link->connection().stats());
  }
  return stats;
}

void Loop::StepShutdown(Nanos now) {
  if (stage_ == Stage::kOpen) return;
  if (stage_ == Stage::kDraining) {
    std::string waiting;
    for (const auto& link : links_) {
      if (link == nullptr || link->Drained()) continue;
      waiting += (waiting.empty() ? "" : ", ") + std::to_string(ToInt(link->id()));
    }
    const bool unsent = !before_connect_.empty();
    if ((!waiting.empty() || unsent) && now < shutdown_deadline_) return;
    if (!waiting.empty()) {
      outcome_ =
          Status::Error(StatusCode::kPeerTimeout,
                        "shutdown: not everything sent was acknowledged by process " + waiting);
    } else if (unsent) {
      outcome_ = Status::Error(StatusCode::kPeerTimeout,
                               "shutdown: messages waited for a Connect that never came");
    }
    for (const auto& link : links_) {
      if (link == nullptr) continue;
      link->Leave(now);
      Touch(link.get());
    }
    // The goodbye itself leaves at once, also when no time is left to wait for answers.
    Transmit(now);
    stage_ = Stage::kParting;
    stage_deadline_ = std::min(shutdown_deadline_, now + 2 * kLeaveGrace);
  }
  if (stage_ == Stage::kParting) {
    const bool parted = std::all_of(links_.begin(), links_.end(), [](const auto& link) {
      return link == nullptr || link->Parted();
    });
    if (parted || now >= stage_deadline_) FinishShutdown(now);
  }
}

void Loop::FinishShutdown(Nanos now) {
  const Status aborted = Status::Error(StatusCode::kAborted, "the engine was shut down");
  for (Command& command : before_connect_) RefuseCommand(command);
  before_connect_.clear();
  for (const auto& link : links_) {
    if (link == nullptr) continue;
    link->Abort(aborted);
    link->DeliverEvents(now);
  }
  // Only now, so that whoever finds the queue closed also finds every token reported.
  queue_->Close();
  queue_->TakeAll(&commands_);
  for (Command& command : commands_) RefuseCommand(command);
  commands_.clear();
  stage_ = Stage::kStopped;
}

}  // namespace uccl::engine
