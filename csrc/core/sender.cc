// Messages, queues and transmission. Acknowledgements, losses and timers are in sender_recovery.cc.
// See sender.h.
#include "csrc/core/sender.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace uccl::core {
namespace {

wire::Description ToWire(const MessageInfo& info) {
  return {info.tag.hi, info.tag.lo, info.digest, info.size_bytes, info.note};
}

size_t HeadBytes(wire::PacketType type) {
  switch (type) {
    case wire::PacketType::kEager:
      return wire::kHeaderBytes + wire::kEagerBodyBytes;
    case wire::PacketType::kData:
      return wire::kHeaderBytes + wire::kDataBodyBytes;
    case wire::PacketType::kRequest:
      return wire::kHeaderBytes + wire::kRequestBodyBytes;
    case wire::PacketType::kGrant:
      return wire::kHeaderBytes + wire::kGrantBodyBytes;
    default:
      return wire::kHeaderBytes;
  }
}

// What is counted by credit: the bytes that fill a network. The small packets that arrange them go
// at once.
bool UsesCredit(const OutMessage& m) {
  return m.type == wire::PacketType::kEager || m.type == wire::PacketType::kData;
}

Event SendDone(uint64_t token, Status status) {
  Event event;
  event.kind = EventKind::kSendDone;
  event.token = token;
  event.status = std::move(status);
  return event;
}

}  // namespace

Sender::Sender(const ConnectionConfig& config, Controllers controllers,
               std::unique_ptr<PathSelector> selector, bool credit, ConnectionStats* stats,
               Ring<Event>* events)
    : config_(config),
      selector_(std::move(selector)),
      stats_(stats),
      events_(events),
      next_number_(config.first_number),
      ledger_(config.initial_send_psn),
      paths_(config.num_paths),
      congestion_(std::move(controllers), config, paths_),
      credit_(credit, config.credit_initial_bytes),
      monitor_(paths_) {
  newly_acked_.reserve(paths_.size());
  RefreshDelays();
}

OutMessage* Sender::NewMessage(wire::PacketType type) {
  if (free_.empty()) {
    pool_.push_back(std::make_unique<OutMessage>());
    free_.push_back(pool_.back().get());
  }
  OutMessage* m = free_.back();
  free_.pop_back();
  m->type = type;
  return m;
}

void Sender::Send(const MessageInfo& info, Bytes data, uint64_t token) {
  const int64_t cost = static_cast<int64_t>(data.size()) + kEagerOverheadBytes;
  const bool small = static_cast<int64_t>(data.size()) <= config_.eager_max_bytes;
  const bool credit =
      eager_sent_bytes_ - eager_consumed_bytes_ + cost <= config_.eager_buffer_bytes;
  if (small && credit) {
    OutMessage* m = NewMessage(wire::PacketType::kEager);
    m->info = info;
    m->number = next_number_++;
    m->copy.assign(data.begin(), data.end());
    m->data = m->copy;
    eager_sent_bytes_ += cost;
    credit_.OnWanted(WireBytesLeft(*m));
    eager_.push_back(m);
    events_->push_back(SendDone(token, Status::Ok()));
    return;
  }
  withdrawn_.Take(info.tag);
  OutMessage* request = NewMessage(wire::PacketType::kRequest);
  request->info = info;
  request->number = next_number_++;
  small_.push_back(request);

  OutMessage* m = NewMessage(wire::PacketType::kData);
  m->info = info;
  m->token = token;
  m->data = data;
  by_token_[token] = m;
  waiting_.Add(m);
  if (const auto it = grants_.find(info.tag); it != grants_.end()) {
    const Granted granted = it->second;
    grants_.erase(it);
    (void)OnGrant(granted.info, granted.receive_id);  // cannot fail: its message waits
  }
}

void Sender::SendControl(std::string control) {
  OutMessage* m = NewMessage(wire::PacketType::kControl);
  const auto* bytes = reinterpret_cast<const std::byte*>(control.data());
  m->copy.assign(bytes, bytes + control.size());
  m->data = m->copy;
  small_.push_back(m);
}

void Sender::SendGrant(const MessageInfo& info, uint32_t receive_id) {
  OutMessage* m = NewMessage(wire::PacketType::kGrant);
  m->info = info;
  m->number = receive_id;
  small_.push_back(m);
}

Status Sender::OnGrant(const MessageInfo& theirs, uint32_t receive_id) {
  OutMessage* m = waiting_.Front(theirs.tag);
  if (m == nullptr) {
    if (withdrawn_.Take(theirs.tag)) return Status::Ok();
    if (grants_.size() >= kMaxOpenMessages) {
      return Status::Error(StatusCode::kProtocol, "peer granted more than " +
                                                      std::to_string(kMaxOpenMessages) +
                                                      " messages that were not sent");
    }
    grants_.emplace(theirs.tag, Granted{theirs, receive_id});
    return Status::Ok();
  }
  waiting_.Remove(m);
  if (theirs.digest != m->info.digest || theirs.size_bytes != m->info.size_bytes) {
    Event event;
    event.kind = EventKind::kMismatch;
    event.token = m->token;
    event.remote = theirs;
    events_->push_back(std::move(event));
    by_token_.erase(m->token);
    Forget(m);
    return Status::Ok();
  }
  m->number = receive_id;
  credit_.OnWanted(WireBytesLeft(*m));
  bulk_.push_back(m);
  return Status::Ok();
}

void Sender::OnCredit(const wire::Credit& credit) { credit_.OnCredit(credit); }

void Sender::Discard(const MessageTag& tag) {
  if (waiting_.Front(tag) != nullptr) return;  // it is sent after all
  if (grants_.erase(tag) == 0) withdrawn_.Add(tag);
}

void Sender::Cancel(uint64_t token) {
  const auto it = by_token_.find(token);
  if (it == by_token_.end()) return;
  OutMessage* m = it->second;
  by_token_.erase(it);
  if (waiting_.Remove(m)) {
    withdrawn_.Add(m->info.tag);
  } else if (!m->all_sent) {
    credit_.OnWithdrawn(WireBytesLeft(*m));
  }
  m->withdrawn = true;
  m->data = {};
  m->all_sent = true;
  bulk_.EraseIf([m](const OutMessage* other) { return other == m; });
  ReleaseIfDone(m);
}

void Sender::ReleaseIfDone(OutMessage* m) {
  if (!m->all_sent || m->unacked_packets > 0) return;
  if (m->type == wire::PacketType::kData && !m->withdrawn) {
    events_->push_back(SendDone(m->token, Status::Ok()));
    by_token_.erase(m->token);
  }
  Forget(m);
}

void Sender::Forget(OutMessage* m) {
  std::vector<std::byte> copy = std::move(m->copy);  // its memory serves the next eager message
  copy.clear();
  *m = OutMessage();
  m->copy = std::move(copy);
  free_.push_back(m);
}

bool Sender::MayTransmit(Nanos now) {
  if (!congestion_.WindowOpen(inflight_bytes_)) return false;
  if (congestion_.next_send() <= now) return true;
  paced_until_ = std::min(paced_until_, congestion_.next_send());
  return false;
}

std::optional<PathId> Sender::ChoosePath(Nanos now, std::optional<PathId> avoid, bool urgent) {
  const auto path = selector_->Select({paths_, now, avoid, urgent});
  if (path) return path;
  for (const PathState& p : paths_) {
    if (p.WindowOpen() && p.next_send > now) paced_until_ = std::min(paced_until_, p.next_send);
  }
  return std::nullopt;
}

// A small message keeps its path: its packets do not overtake each other, and the last one does not
// wait for the slowest of several paths.
std::optional<PathId> Sender::PathFor(Nanos now, OutMessage* m, size_t room, bool urgent) {
  if (m->path) {
    const PathState& path = paths_[ToInt(*m->path)];
    if (!path.failed() && (urgent || path.Open(now))) return m->path;
  }
  // What arranges messages goes together while the clock stands still (one turn of the engine), so
  // that the device may send it as one packet.
  if (urgent && urgent_sent_ == now && !paths_[ToInt(urgent_path_)].failed()) return urgent_path_;
  const auto path = ChoosePath(now, std::nullopt, urgent);
  if (urgent && path) {
    urgent_sent_ = now;
    urgent_path_ = *path;
  }
  const uint64_t packets = (m->data.size() + room - 1) / room;
  if (packets > 1 && packets <= static_cast<uint64_t>(config_.sticky_packets)) m->path = path;
  return path;
}

PathId Sender::NextPath() {
  if (UsesSinglePath(config_.path_policy)) return PathId{0};
  next_path_ = static_cast<uint16_t>((next_path_ + 1) % paths_.size());
  return static_cast<PathId>(next_path_);
}

int64_t Sender::WireBytesLeft(const OutMessage& m) const {
  const size_t head = HeadBytes(m.type), room = config_.max_datagram_bytes - head;
  const uint64_t left = m.data.size() - m.sent_bytes;
  const uint64_t packets = std::max<uint64_t>((left + room - 1) / room, 1);
  return static_cast<int64_t>(left + packets * head);
}

// Cuts the next packet off `message`, and returns its PSN.
uint64_t Sender::Packetise(OutMessage* m, size_t room) {
  const uint64_t psn = ledger_.Append();
  SentPacket& packet = ledger_.at(psn);
  packet.message = m;
  packet.offset = m->sent_bytes;
  packet.payload_bytes =
      static_cast<uint32_t>(std::min<uint64_t>(room, m->data.size() - m->sent_bytes));
  packet.wire_bytes = static_cast<uint32_t>(HeadBytes(m->type)) + packet.payload_bytes;
  m->sent_bytes += packet.payload_bytes;
  m->all_sent = m->sent_bytes == m->data.size();
  ++m->unacked_packets;
  return psn;
}

std::optional<Datagram> Sender::PollNew(Nanos now, std::span<std::byte> head) {
  if (ledger_.full()) return std::nullopt;
  for (Ring<OutMessage*>* queue : {&small_, &eager_, &bulk_}) {
    if (queue->empty()) continue;
    const bool urgent = queue == &small_;
    if (!urgent && !MayTransmit(now)) return std::nullopt;
    OutMessage* m = queue->front();
    const size_t room = config_.max_datagram_bytes - HeadBytes(m->type);
    const auto next_bytes = static_cast<int64_t>(
        HeadBytes(m->type) + std::min<uint64_t>(room, m->data.size() - m->sent_bytes));
    if (!urgent && !credit_.Allows(now, next_bytes, Rto())) return std::nullopt;
    const auto path = PathFor(now, m, room, urgent);
    if (!path) return std::nullopt;
    const uint64_t psn = Packetise(m, room);
    // An eager message is finished first; granted ones take turns.
    if (m->all_sent || queue == &bulk_) queue->pop_front();
    if (!m->all_sent && queue == &bulk_) queue->push_back(m);
    return Transmit(now, psn, *path, head);
  }
  return std::nullopt;
}

size_t Sender::EncodePacket(const SentPacket& packet, wire::Header header,
                            std::span<std::byte> head, Bytes payload) const {
  const OutMessage& m = *packet.message;
  if (m.withdrawn) return wire::EncodeSkip(header, head);
  switch (m.type) {
    case wire::PacketType::kEager:
      return wire::EncodeEager(
          header, {ToWire(m.info), m.number, static_cast<uint32_t>(packet.offset)}, payload, head);
    case wire::PacketType::kRequest:
      return wire::EncodeRequest(header, {ToWire(m.info), m.number}, head);
    case wire::PacketType::kGrant:
      return wire::EncodeGrant(header, {ToWire(m.info), m.number}, head);
    case wire::PacketType::kData:
      return wire::EncodeData(header, {m.number, packet.offset}, payload, head);
    default:
      return wire::EncodeControl(header, payload, head);
  }
}

Datagram Sender::Transmit(Nanos now, uint64_t psn, PathId to, std::span<std::byte> head) {
  SentPacket& packet = ledger_.at(psn);
  if (inflight_bytes_ == 0) {
    timer_start_ = now;
    tail_delay_ = kMinTailProbeDelay;
  }
  packet.previous_path = packet.path;
  packet.previous_path_seq = packet.path_seq;
  packet.path = to;
  PathState& path = paths_[ToInt(packet.path)];
  packet.path_seq = path.next_seq++;
  path.flights.push_back({psn, packet.path_seq});
  packet.sent = now;
  packet.state = SentState::kInFlight;
  const OutMessage& m = *packet.message;
  if (UsesCredit(m) && (packet.transmissions == 0 || packet.again_wanted)) {
    if (m.withdrawn) {  // a SKIP, which the receiver does not count
      credit_.OnVoid(packet.wire_bytes);
      credit_.OnSettled(packet.wire_bytes);
    } else {
      credit_.OnSent(packet.wire_bytes);
    }
    packet.credited = !m.withdrawn;
    packet.again_wanted = false;
  }
  if (packet.transmissions < std::numeric_limits<uint16_t>::max()) ++packet.transmissions;
  ++path.packets_sent;
  path.inflight_bytes += packet.wire_bytes;
  inflight_bytes_ += packet.wire_bytes;
  NoteDelays(path);
  congestion_.OnSent(now, to, packet.wire_bytes);

  const Bytes payload = m.withdrawn ? Bytes() : m.data.subspan(packet.offset, packet.payload_bytes);
  wire::Header header;
  header.path = ToInt(packet.path);
  header.key = config_.send_key;
  header.psn = static_cast<uint32_t>(psn);
  header.timestamp = static_cast<uint32_t>(ToMicros(now));
  const size_t head_bytes = EncodePacket(packet, header, head, payload);
  ++stats_->packets_sent;
  stats_->bytes_sent += head_bytes + payload.size();
  stats_->payload_bytes_sent += payload.size();
  return {packet.path, head.first(head_bytes), payload, false};
}

// A packet in flight is given up for lost, and its repetition needs new credit.
void Sender::WantAgain(SentPacket* packet) {
  if (!UsesCredit(*packet->message)) return;
  if (packet->credited) credit_.OnSettled(packet->wire_bytes);
  packet->credited = false;
  if (packet->message->withdrawn) return;
  credit_.OnWanted(packet->wire_bytes);
  packet->again_wanted = true;
}

// The one packet that is sent again without being known to be lost, past window and pace: it is the
// last in flight, and nothing else would ever tell what became of it (RFC 8985 section 7.3).
std::optional<Datagram> Sender::PollTailProbe(Nanos now, std::span<std::byte> head) {
  if (!tail_probe_) return std::nullopt;
  const uint64_t psn = *tail_probe_;
  tail_probe_.reset();
  if (psn < ledger_.base() || ledger_.at(psn).state != SentState::kInFlight) return std::nullopt;
  const auto path = ChoosePath(now, ledger_.at(psn).path, true);
  if (!path) return std::nullopt;
  LeaveFlight(ledger_.at(psn));
  WantAgain(&ledger_.at(psn));  // goes past the credit as well, and is made up for
  ++stats_->tail_probes;
  return Transmit(now, psn, *path, head);
}

std::optional<Datagram> Sender::PollLost(Nanos now, std::span<std::byte> head) {
  while (!lost_.empty()) {
    const uint64_t psn = lost_.front();
    if (psn < ledger_.base() || ledger_.at(psn).state != SentState::kLost) {
      lost_.pop_front();
      continue;
    }
    if (!MayTransmit(now)) return std::nullopt;
    const SentPacket& packet = ledger_.at(psn);
    if (packet.again_wanted && !credit_.Allows(now, packet.wire_bytes, Rto())) return std::nullopt;
    const auto path = ChoosePath(now, packet.path, false);
    if (!path) return std::nullopt;
    lost_.pop_front();
    return Transmit(now, psn, *path, head);
  }
  return std::nullopt;
}

std::optional<Datagram> Sender::PollRepetition(Nanos now, std::span<std::byte> head) {
  paced_until_ = kNever;
  credit_.BeginPoll();
  if (auto datagram = PollTailProbe(now, head)) return datagram;
  return PollLost(now, head);
}

std::optional<Datagram> Sender::PollTransmit(Nanos now, std::span<std::byte> head) {
  if (auto datagram = PollRepetition(now, head)) return datagram;
  return PollNew(now, head);
}

void Sender::Fail(const Status& status) {
  for (const auto& [token, message] : by_token_) events_->push_back(SendDone(token, status));
  by_token_.clear();
  small_.clear();
  eager_.clear();
  bulk_.clear();
  waiting_.Clear();
  grants_.clear();
  lost_.clear();
  ledger_ = SentLedger(config_.initial_send_psn);
  for (PathState& path : paths_) {
    path.flights.clear();
    path.inflight_bytes = 0;
  }
  monitor_.Clear();
  tail_probe_.reset();
  credit_ = SenderCredit(false, 0);
  paced_until_ = kNever;
  free_.clear();
  pool_.clear();
  inflight_bytes_ = 0;
}

void Sender::FillStats(ConnectionStats* stats) const {
  stats->srtt_ns = rtt_.srtt().count();
  stats->rttvar_ns = rtt_.rttvar().count();
  stats->inflight_bytes = inflight_bytes_;
  stats->window_bytes = congestion_.window_bytes();
  stats->credit_wanted_bytes = credit_.wanted();
  stats->credit_received_bytes = credit_.granted();
  stats->credit_used_bytes = credit_.used();
  stats->credit_void_bytes = credit_.voided();
  const bool own_window = config_.cc_scope == "path" && paths_.size() > 1;
  stats->paths.reserve(paths_.size());
  for (const PathState& path : paths_) {
    PathStats& p = stats->paths.emplace_back();
    p.state = path.health;
    p.srtt_ns = path.rtt.srtt().count();
    p.min_rtt_ns = path.rtt.min_rtt().count();
    p.inflight_bytes = path.inflight_bytes;
    p.window_bytes = own_window ? path.window_bytes : 0;
    p.packets_sent = path.packets_sent;
    p.packets_lost = path.packets_lost;
    p.packets_marked = path.packets_marked;
    p.failures = path.failures;
    p.probes = path.probes;
  }
}

}  // namespace uccl::core
