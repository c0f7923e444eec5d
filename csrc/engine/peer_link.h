// One remote process as the engine sees it: the connection plus what is above the transport, which
// tokens are outstanding, and the ways a peer goes away. Used on the engine thread only; time is an
// argument.
//
// How a peer goes away:
//
//   open --"leaving" arrives--> left --engine shuts down or nothing outstanding--> left, "bye" sent
//    |                            |
//    |                            +--outstanding for kLeaveGrace--> failed ("shut down")
//    +--connection fails, or the network says so--> failed
//
// Leaving in order. A process that shuts down first has everything acknowledged, then says
// "leaving" and stays to acknowledge retransmissions until each peer has said "bye": otherwise a
// lost last acknowledgement would look like a death. After "leaving" a peer's early messages still
// meet receives posted later; only what stays unmet is a loss. "leaving" and "bye" are control
// messages; one byte in front of every control message tells the engine's own from the user's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "csrc/base/status.h"
#include "csrc/base/types.h"
#include "csrc/core/connection.h"
#include "csrc/engine/command.h"
#include "csrc/engine/suspicion.h"

namespace uccl::engine {

// How long a message may stay unmet by a peer that has left. It covers the retransmission of a last
// acknowledgement, and is short because nothing else can come.
inline constexpr Nanos kLeaveGrace = std::chrono::milliseconds(500);

class PeerLink final {
 public:
  PeerLink(ProcessId id, nic::PeerHandle handle, std::unique_ptr<core::Connection> connection,
           EngineSink* sink)
      : id_(id), handle_(handle), connection_(std::move(connection)), sink_(sink) {}

  ProcessId id() const { return id_; }
  nic::PeerHandle handle() const { return handle_; }
  const core::Connection& connection() const { return *connection_; }

  void Send(Nanos now, const SendCommand& command);
  void PostRecv(Nanos now, const RecvCommand& command);
  void SendControl(Nanos now, const std::string& text);
  // Ignored when the token is not outstanding here.
  void Cancel(Nanos now, bool is_send, uint64_t token);
  void Discard(bool is_send, const core::MessageTag& tag) { connection_->Discard(is_send, tag); }

  void OnDatagram(Nanos now, const nic::Incoming& in);
  void OnFault(Nanos now, const Status& fault);
  // The peer was lost elsewhere.
  void Fail(const Status& status) { connection_->Fail(status); }
  void OnTimeout(Nanos now);
  Nanos NextTimeout() const;
  std::optional<core::Datagram> PollTransmit(Nanos now) { return connection_->PollTransmit(now); }
  // Hands what happened to the sink.
  void DeliverEvents(Nanos now);

  // Shutdown of this engine. Leave: tells the peer, once.
  void Leave(Nanos now);
  // Nothing of ours waits for an acknowledgement that could still come. A large send that the peer
  // has not asked for yet counts: its bytes were handed in.
  bool Drained() const {
    return gone() || parted_in_order() || (outstanding_sends_ == 0 && connection_->Drained());
  }
  // The peer needs no more answers from us.
  bool Parted() const { return gone() || bye_received_ || parted_in_order(); }
  // Reports what is outstanding with `status`, without OnPeerLost.
  void Abort(const Status& status);

 private:
  bool gone() const { return failed_ || connection_->failed(); }
  bool parted_in_order() const { return left_ && bye_sent_; }
  void Forget(std::unordered_map<uint64_t, bool>::iterator token);
  void OnControl(Nanos now, const std::string& text);
  void SayByeIfDone(Nanos now);
  void SayBye(Nanos now);
  void Report(core::EventKind kind, uint64_t token, const Status& status);
  Status Named(Status status) const;
  Status ShutDownStatus() const;

  const ProcessId id_;
  const nic::PeerHandle handle_;
  std::unique_ptr<core::Connection> connection_;
  EngineSink* const sink_;

  std::unordered_map<uint64_t, bool>
      outstanding_;  // token -> is a send; what the sink has not heard of yet
  size_t outstanding_sends_ = 0;
  Suspicion suspicion_;
  std::string last_fault_;  // what the network last said about the peer; added to failures
  bool failed_ = false;     // the connection's end was delivered; `failure_` says why
  Status failure_;
  bool aborting_ = false;

  bool left_ = false;         // "leaving" arrived
  Nanos grace_end_ = kNever;  // while left_ and something is outstanding
  bool leaving_ = false;      // we said "leaving"
  bool bye_sent_ = false, bye_received_ = false;
};

}  // namespace uccl::engine
