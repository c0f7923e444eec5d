// Tokens, control messages and departures of one peer.
#include "csrc/engine/peer_link.h"

#include <algorithm>
#include <string>
#include <utility>

namespace uccl::engine {
namespace {

// First byte of every control message.
constexpr char kUser = 'u';     // the rest is the user's
constexpr char kLeaving = 'L';  // the sender shuts down; nothing new comes from it
constexpr char kBye = 'B';      // the sender needs nothing more from us; answer to kLeaving
constexpr char kPing = 'P';     // asks for no more than its acknowledgement

// Between the bye to a peer that left and the failure of what it still owed: time for the bye to be
// sent.
constexpr Nanos kLastWord = std::chrono::milliseconds(5);

}  // namespace

void PeerLink::Send(Nanos now, const SendCommand& command) {
  // A peer that has left takes nothing any more, although its engine may still answer.
  if (failed_ || left_) {
    Report(core::EventKind::kSendDone, command.token, failed_ ? failure_ : ShutDownStatus());
    return;
  }
  outstanding_.emplace(command.token, true);
  ++outstanding_sends_;
  connection_->Send(now, command.info, command.data, command.token);
}

void PeerLink::PostRecv(Nanos now, const RecvCommand& command) {
  if (failed_) {
    Report(core::EventKind::kRecvDone, command.token, failure_);
    return;
  }
  outstanding_.emplace(command.token, false);
  // Also of a peer that has left: its message may be here already.
  connection_->PostRecv(now, command.info, command.buffer, command.token);
  if (left_) grace_end_ = now + kLeaveGrace;
}

void PeerLink::SendControl(Nanos now, const std::string& text) {
  // Control messages carry no token: that the peer is gone was said by OnPeerLost.
  if (gone() || left_) return;
  connection_->SendControl(now, kUser + text);
}

void PeerLink::Cancel(Nanos now, bool is_send, uint64_t token) {
  const auto it = outstanding_.find(token);
  if (it == outstanding_.end() || it->second != is_send) return;
  Forget(it);
  if (is_send) {
    connection_->CancelSend(now, token);
  } else {
    connection_->CancelRecv(now, token);
  }
  SayByeIfDone(now);
}

void PeerLink::OnDatagram(Nanos now, const nic::Incoming& in) {
  if (gone()) return;
  suspicion_.OnHeard();
  connection_->OnDatagram(now, in.path, in.datagram, in.ecn);
}

void PeerLink::OnFault(Nanos now, const Status& fault) {
  if (gone()) return;
  last_fault_ = fault.detail;
  if (fault.code == StatusCode::kNicError) {
    connection_->Fail(fault);  // repeats for every datagram
    return;
  }
  // Unreachable hosts and networks come and go with links and routes; the silence timer judges
  // them. A peer that has left has closed its sockets in order, and what is outstanding has its own
  // deadline.
  if (fault.code != StatusCode::kPeerLost || left_) return;
  if (suspicion_.OnFault(now)) connection_->SendControl(now, std::string(1, kPing));
  if (suspicion_.condemned()) {
    Status status = fault;
    status.detail = "the process has closed its sockets or died (" + fault.detail + ")";
    connection_->Fail(status);
  }
}

void PeerLink::OnTimeout(Nanos now) {
  if (gone()) return;
  if (connection_->NextTimeout() <= now) connection_->OnTimeout(now);
  if (grace_end_ > now) return;
  grace_end_ = kNever;
  if (outstanding_.empty()) return;
  if (!bye_sent_) {
    // The peer need not stay for us. A failed connection sends nothing, so it fails a moment later.
    SayBye(now);
    grace_end_ = now + kLastWord;
  } else {
    connection_->Fail(ShutDownStatus());
  }
}

Nanos PeerLink::NextTimeout() const {
  if (gone()) return kNever;
  return std::min(connection_->NextTimeout(), grace_end_);
}

void PeerLink::DeliverEvents(Nanos now) {
  if (failed_) return;
  bool progressed = false, any_failed = false;
  while (std::optional<core::Event> event = connection_->PollEvent()) {
    progressed = true;
    switch (event->kind) {
      case core::EventKind::kSendDone:
      case core::EventKind::kRecvDone:
      case core::EventKind::kMismatch: {
        const auto it = outstanding_.find(event->token);
        if (it == outstanding_.end())
          break;  // withdrawn: the caller's again, it must not come back
        Forget(it);
        if (!event->status.ok()) {
          event->status = Named(std::move(event->status));
          any_failed = true;
        }
        sink_->OnMessage(id_, *event);
        break;
      }
      case core::EventKind::kArrived:
        sink_->OnArrival(id_, event->remote);
        break;
      case core::EventKind::kControl:
        OnControl(now, event->control);
        break;
      case core::EventKind::kFailed: {
        failed_ = true;
        failure_ = Named(std::move(event->status));
        if (left_ && !aborting_) failure_ = ShutDownStatus();
        // An abort is this side's own doing, and a peer that left in order is missed only by what
        // was outstanding. So is one that falls silent while this side leaves: where both leave at
        // once, its last words may be lost and nobody be there to repeat them.
        const bool missed = !aborting_ && (!(left_ || leaving_) || any_failed);
        if (missed) sink_->OnPeerLost(id_, failure_);
        return;
      }
    }
  }
  if (progressed) SayByeIfDone(now);
}

void PeerLink::OnControl(Nanos now, const std::string& text) {
  if (text.empty()) return;  // no peer of ours sends it; ignored like any other malformed message
  switch (text[0]) {
    case kUser:
      sink_->OnControl(id_, text.substr(1));
      break;
    case kLeaving:
      left_ = true;
      if (!outstanding_.empty()) grace_end_ = now + kLeaveGrace;
      break;
    case kBye:
      bye_received_ = true;
      break;
    default:  // kPing, and what later versions may say
      break;
  }
}

void PeerLink::SayByeIfDone(Nanos now) {
  if (!left_ || bye_sent_ || gone()) return;
  // When this engine shuts down too, what is outstanding will be aborted: nothing to wait for.
  if (outstanding_.empty() || leaving_) SayBye(now);
}

void PeerLink::SayBye(Nanos now) {
  bye_sent_ = true;
  connection_->SendControl(now, std::string(1, kBye));
}

void PeerLink::Leave(Nanos now) {
  if (leaving_ || gone()) return;
  leaving_ = true;
  // A peer that left first expects no more than the bye.
  if (!left_) connection_->SendControl(now, std::string(1, kLeaving));
  SayByeIfDone(now);
}

void PeerLink::Forget(std::unordered_map<uint64_t, bool>::iterator token) {
  if (token->second) --outstanding_sends_;
  outstanding_.erase(token);
}

void PeerLink::Abort(const Status& status) {
  if (failed_) return;
  aborting_ = true;
  connection_->Fail(status);
}

void PeerLink::Report(core::EventKind kind, uint64_t token, const Status& status) {
  core::Event event;
  event.kind = kind;
  event.token = token;
  event.status = status;
  sink_->OnMessage(id_, event);
}

Status PeerLink::Named(Status status) const {
  if (status.process == -1) status.process = ToInt(id_);
  if (!last_fault_.empty() && status.detail.find(last_fault_) == std::string::npos) {
    status.detail += "; the network said: " + last_fault_;
  }
  return status;
}

Status PeerLink::ShutDownStatus() const {
  Status status =
      Status::Error(StatusCode::kPeerLost, "process " + std::to_string(ToInt(id_)) + " shut down");
  status.process = ToInt(id_);
  return status;
}

}  // namespace uccl::engine
