// The routing, the watch for silence, and what both halves share. See connection.h.
#include "csrc/core/connection.h"

#include <algorithm>
#include <array>
#include <utility>

#include "csrc/core/congestion.h"
#include "csrc/core/path/path_selector.h"
#include "csrc/core/receiver.h"
#include "csrc/core/ring.h"
#include "csrc/core/sender.h"
#include "csrc/wire/packet.h"

namespace uccl::core {
namespace {

constexpr size_t kMaxControlBytes = 512;
// A datagram must hold the largest control message, and an ACK with a bitmap worth having.
constexpr size_t kMinDatagramBytes = wire::kHeaderBytes + kMaxControlBytes;
constexpr Nanos kMaxProbeInterval = FromMillis(500);
// Silence counts only when the peer was asked this often without an answer: a process that was
// itself stopped for longer than peer_silence must not take the peer for dead when it wakes up.
constexpr int kMinProbesUnanswered = 3;

Status TooMany(const char* what) {
  return Status::Error(StatusCode::kResourceExhausted,
                       std::to_string(kMaxOpenMessages) + " " + what +
                           " of one peer are outstanding, which is the most there may be");
}

Status WrongSize(const MessageInfo& info, size_t buffer_bytes) {
  return Status::Error(StatusCode::kInvalidArgument,
                       "a message of " + std::to_string(info.size_bytes) +
                           " bytes with a buffer of " + std::to_string(buffer_bytes));
}

}  // namespace

// Routes between the two halves and watches for silence.
struct Connection::Impl {
  Impl(const ConnectionConfig& c, Controllers controllers, std::unique_ptr<PathSelector> selector,
       const CreditSource& credit)
      : config(c),
        sender(config, std::move(controllers), std::move(selector), credit.scheduler != nullptr,
               &stats, &events),
        receiver(config, &sender, credit, &stats, &events) {}

  bool Waiting() const { return receiver.WaitingForData() || sender.WaitingForGrant(); }
  bool Expecting() const { return Waiting() || sender.Outstanding(); }
  Nanos ProbeInterval() const { return std::min(config.peer_silence / 8, kMaxProbeInterval); }

  // Called after anything that may have begun or ended an expectation. Silence counts from the
  // moment we began to expect something.
  void Watch(Nanos now) {
    const bool expecting = !failed && Expecting();
    if (expecting && !was_expecting) {
      last_heard = now;
      next_probe = now + ProbeInterval();
      probes_unanswered = 0;
    }
    was_expecting = expecting;
  }

  void Heard(Nanos now) {
    last_heard = now;
    next_probe = now + ProbeInterval();
    probes_unanswered = 0;
  }

  // Events of a withdrawn message that were not fetched yet.
  void DropEvents(uint64_t token) {
    events.EraseIf([token](const Event& event) {
      return event.token == token && event.kind != EventKind::kControl &&
             event.kind != EventKind::kFailed;
    });
  }

  Nanos SilenceEnd() const {
    return probes_unanswered < kMinProbesUnanswered ? kNever : last_heard + config.peer_silence;
  }

  wire::Header Header(Nanos now, PathId path) const {
    wire::Header header;
    header.path = ToInt(path);
    header.key = config.send_key;
    header.timestamp = static_cast<uint32_t>(ToMicros(now));
    return header;
  }
  Datagram Ack(Nanos now) {
    const PathId path = receiver.newest_path();
    ++stats.acks_sent;
    Datagram ack = Unsequenced(path, receiver.FillAck(Header(now, path), head));
    ack.any_path = true;
    return ack;
  }
  Datagram Probe(Nanos now, PathId path) {
    ++stats.probes;
    return Unsequenced(path, wire::EncodeProbe(Header(now, path), head));
  }
  Datagram Credit(Nanos now) {
    const PathId path = receiver.newest_path();
    ++stats.credits_sent;
    return Unsequenced(path, wire::EncodeCredit(Header(now, path), receiver.TakeCredit(), head));
  }
  Datagram Request(Nanos now) {
    const PathId path = sender.NextPath();
    ++stats.requests_to_send;
    return Unsequenced(path, wire::EncodeDemand(Header(now, path), sender.TakeRequest(), head));
  }
  Datagram Unsequenced(PathId path, size_t bytes) {
    ++stats.packets_sent;
    stats.bytes_sent += bytes;
    return {path, std::span(head).first(bytes), {}, false};
  }

  void Fail(const Status& status) {
    if (failed) return;
    failed = true;
    failure = status;
    sender.Fail(status);
    receiver.Fail(status);
    Event event;
    event.kind = EventKind::kFailed;
    event.status = status;
    events.push_back(std::move(event));
    was_expecting = false;
    probe_due = false;
  }

  void Refuse(EventKind kind, uint64_t token, const Status& status) {
    Event event;
    event.kind = kind;
    event.token = token;
    event.status = status;
    events.push_back(std::move(event));
  }

  const ConnectionConfig config;
  ConnectionStats stats;
  Ring<Event> events;
  Sender sender;
  Receiver receiver;
  bool failed = false;
  Status failure;
  bool was_expecting = false, probe_due = false;
  int probes_unanswered = 0;
  Nanos last_heard{0}, next_probe{kNever};
  std::array<std::byte, std::max(wire::kMaxAckBytes, wire::kMaxHeadBytes)> head{};
};

Connection::Connection() = default;
Connection::~Connection() = default;

Result<std::unique_ptr<Connection>> Connection::Make(const ConnectionConfig& config,
                                                     const CreditSource& credit) {
  if (config.max_datagram_bytes < kMinDatagramBytes || config.max_datagram_bytes > UINT16_MAX) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "max_datagram_bytes is " + std::to_string(config.max_datagram_bytes) +
                             ", must be " + std::to_string(kMinDatagramBytes) + " to " +
                             std::to_string(UINT16_MAX));
  }
  if (config.num_paths == 0)
    return Status::Error(StatusCode::kInvalidArgument, "paths is 0, must be at least 1");
  auto controllers = MakeControllers(config);
  if (!controllers.ok()) return controllers.status();
  auto selector = MakePathSelector(config.path_policy, config.seed);
  if (!selector.ok()) return selector.status();
  std::unique_ptr<Connection> connection(new Connection);
  connection->impl_ = std::make_unique<Impl>(config, std::move(controllers.value()),
                                             std::move(selector.value()), credit);
  return connection;
}

void Connection::Send(Nanos now, const MessageInfo& info, Bytes data, uint64_t token) {
  if (impl_->failed) return impl_->Refuse(EventKind::kSendDone, token, impl_->failure);
  if (data.size() != info.size_bytes) {
    return impl_->Refuse(EventKind::kSendDone, token, WrongSize(info, data.size()));
  }
  if (impl_->sender.Full()) return impl_->Refuse(EventKind::kSendDone, token, TooMany("sends"));
  impl_->sender.Send(info, data, token);
  impl_->Watch(now);
}

void Connection::PostRecv(Nanos now, const MessageInfo& info, MutableBytes buffer, uint64_t token) {
  if (impl_->failed) return impl_->Refuse(EventKind::kRecvDone, token, impl_->failure);
  if (buffer.size() != info.size_bytes) {
    return impl_->Refuse(EventKind::kRecvDone, token, WrongSize(info, buffer.size()));
  }
  if (impl_->receiver.Full())
    return impl_->Refuse(EventKind::kRecvDone, token, TooMany("receives"));
  impl_->receiver.PostRecv(info, buffer, token);
  impl_->Watch(now);
}

void Connection::CancelSend(Nanos now, uint64_t token) {
  impl_->sender.Cancel(token);
  impl_->DropEvents(token);
  impl_->Watch(now);
}

void Connection::CancelRecv(Nanos now, uint64_t token) {
  impl_->receiver.Cancel(token);
  impl_->DropEvents(token);
  impl_->Watch(now);
}

void Connection::Discard(bool is_send, const MessageTag& tag) {
  if (impl_->failed) return;
  if (is_send) {
    impl_->sender.Discard(tag);
  } else {
    impl_->receiver.Discard(tag);
  }
}

void Connection::SendControl(Nanos now, std::string control) {
  if (impl_->failed) return;
  control.resize(std::min(control.size(), kMaxControlBytes));
  impl_->sender.SendControl(std::move(control));
  impl_->Watch(now);
}

void Connection::OnDatagram(Nanos now, PathId, Bytes datagram, Ecn ecn) {
  ConnectionStats& stats = impl_->stats;
  wire::Header header;
  Bytes body, payload;
  switch (wire::DecodeHeader(datagram, &header, &body, &payload)) {
    case wire::DecodeError::kMalformed:
      ++stats.malformed;
      return;
    case wire::DecodeError::kBadChecksum:
      ++stats.bad_checksum;
      return;
    case wire::DecodeError::kNone:
      break;
  }
  if (header.key != impl_->config.recv_key) {
    ++stats.wrong_key;
    return;
  }
  if (impl_->failed) return;
  ++stats.packets_received;
  stats.bytes_received += datagram.size();
  impl_->Heard(now);
  if (header.type == wire::PacketType::kAck) {
    wire::Ack ack;
    if (!wire::DecodeAck(body, &ack)) {
      ++stats.malformed;
      return;
    }
    impl_->sender.OnAck(now, header, ack);
  } else if (header.type == wire::PacketType::kCredit) {
    impl_->sender.OnCredit(wire::DecodeCredit(body));
  } else if (header.type == wire::PacketType::kDemand) {
    if (!impl_->receiver.OnDemand(wire::DecodeDemand(body))) ++stats.malformed;
  } else if (header.type == wire::PacketType::kProbe) {
    impl_->receiver.RequestAck(header, ecn);
  } else if (Status status = impl_->receiver.OnPacket(header, body, payload, ecn); !status.ok()) {
    impl_->Fail(status);
    return;
  }
  impl_->Watch(now);
}

void Connection::OnTimeout(Nanos now) {
  if (impl_->failed) return;
  if (const Status status = impl_->sender.OnTimeout(now); !status.ok()) {
    impl_->Fail(status);
    return;
  }
  if (!impl_->was_expecting) return;
  if (now >= impl_->SilenceEnd()) {
    const int64_t ms = ToMillis(now - impl_->last_heard);
    impl_->Fail(Status::Error(
        StatusCode::kPeerLost,
        "nothing heard from the peer for " + std::to_string(ms) + " ms (peer_silence_ms)"));
    return;
  }
  if (now >= impl_->next_probe) {
    impl_->probe_due = true;
    ++impl_->probes_unanswered;
    impl_->next_probe = now + impl_->ProbeInterval();
  }
}

std::optional<Datagram> Connection::PollTransmit(Nanos now) {
  if (impl_->failed) return std::nullopt;
  // ACKs and credits go where something came from. Probes of the peer and requests try the paths in
  // turn.
  if (impl_->receiver.AckDue()) return impl_->Ack(now);
  if (impl_->receiver.CreditDue()) return impl_->Credit(now);
  if (impl_->sender.RequestDue()) return impl_->Request(now);
  // What is sent again comes before probes: a burst of them, one a path, can fill a short queue on
  // the way, time after time.
  if (auto again = impl_->sender.PollRepetition(now, impl_->head)) return again;
  if (const auto path = impl_->sender.TakePathProbe()) {
    ++impl_->stats.path_probes;
    return impl_->Probe(now, *path);
  }
  if (impl_->probe_due) {
    impl_->probe_due = false;
    return impl_->Probe(now, impl_->sender.NextPath());
  }
  return impl_->sender.PollTransmit(now, impl_->head);
}

Nanos Connection::NextTimeout() const {
  if (impl_->failed) return kNever;
  Nanos next = impl_->sender.NextTimeout();
  if (impl_->was_expecting) {
    next = std::min({next, impl_->next_probe, impl_->SilenceEnd()});
  }
  return next;
}

std::optional<Event> Connection::PollEvent() {
  if (impl_->events.empty()) return std::nullopt;
  Event event = std::move(impl_->events.front());
  impl_->events.pop_front();
  return event;
}

bool Connection::WaitingForPeer() const { return impl_->Waiting(); }
bool Connection::Drained() const {
  return !impl_->sender.Outstanding() && !impl_->sender.WaitingForGrant() &&
         !impl_->receiver.AckDue();
}
bool Connection::failed() const { return impl_->failed; }
void Connection::Fail(const Status& status) { impl_->Fail(status); }
std::vector<MessageInfo> Connection::Unexpected() const { return impl_->receiver.Unexpected(); }

ConnectionStats Connection::stats() const {
  ConnectionStats stats = impl_->stats;
  impl_->sender.FillStats(&stats);
  impl_->receiver.FillStats(&stats);
  return stats;
}

}  // namespace uccl::core
