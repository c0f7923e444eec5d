// Queues, acknowledgements, timeouts. See sender.h.
#include "csrc/core/sender.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "csrc/core/recovery/loss_detector.h"

namespace uccl::core {
namespace {

constexpr uint32_t kMaxBackoff = 16;  // doublings; max_rto cuts in long before
constexpr size_t kPacketsPerTimeout =
    2;  // sent again by a timeout; their ACKs reveal the other losses

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

Event SendDone(uint64_t token, Status status) {
  Event event;
  event.kind = EventKind::kSendDone;
  event.token = token;
  event.status = std::move(status);
  return event;
}

}  // namespace

Sender::Sender(const ConnectionConfig& config, std::unique_ptr<CongestionController> controller,
               std::unique_ptr<PathSelector> selector, ConnectionStats* stats, Ring<Event>* events)
    : config_(config),
      controller_(std::move(controller)),
      selector_(std::move(selector)),
      stats_(stats),
      events_(events),
      ledger_(config.initial_send_psn),
      paths_(config.num_paths) {}

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
    OnGrant(granted.info, granted.receive_id);
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

void Sender::OnGrant(const MessageInfo& theirs, uint32_t receive_id) {
  OutMessage* m = waiting_.Front(theirs.tag);
  if (m == nullptr) {
    if (!withdrawn_.Take(theirs.tag)) grants_.emplace(theirs.tag, Granted{theirs, receive_id});
    return;
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
    return;
  }
  m->number = receive_id;
  bulk_.push_back(m);
}

void Sender::Cancel(uint64_t token) {
  const auto it = by_token_.find(token);
  if (it == by_token_.end()) return;
  OutMessage* m = it->second;
  by_token_.erase(it);
  m->withdrawn = true;
  m->data = {};
  m->all_sent = true;
  if (waiting_.Remove(m)) withdrawn_.Add(m->info.tag);
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

bool Sender::MayTransmit() const {
  // With nothing in flight one packet always goes, however small the window.
  return inflight_bytes_ == 0 ||
         inflight_bytes_ < std::min(config_.window_bytes, controller_->window_bytes());
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

std::optional<uint64_t> Sender::NextNewPacket() {
  if (ledger_.full()) return std::nullopt;
  for (Ring<OutMessage*>* queue : {&small_, &eager_, &bulk_}) {
    if (queue->empty()) continue;
    if (queue != &small_ && !MayTransmit()) return std::nullopt;
    OutMessage* m = queue->front();
    const uint64_t psn = Packetise(m, config_.max_datagram_bytes - HeadBytes(m->type));
    // An eager message is finished first; granted ones take turns.
    if (m->all_sent || queue == &bulk_) queue->pop_front();
    if (!m->all_sent && queue == &bulk_) queue->push_back(m);
    return psn;
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

Datagram Sender::Transmit(Nanos now, uint64_t psn, std::span<std::byte> head) {
  SentPacket& packet = ledger_.at(psn);
  const bool again = packet.transmissions > 0;
  packet.previous_path = packet.path;
  packet.previous_path_seq = packet.path_seq;
  packet.path = selector_->Select(paths_, again ? std::optional(packet.path) : std::nullopt);
  PathState& path = paths_[ToInt(packet.path)];
  packet.path_seq = path.next_seq++;
  path.flights.push_back({psn, packet.path_seq});
  packet.sent = now;
  packet.state = SentState::kInFlight;
  ++packet.transmissions;
  ++path.packets_sent;
  if (inflight_bytes_ == 0) timer_start_ = now;
  inflight_bytes_ += packet.wire_bytes;
  controller_->OnSent(now, packet.wire_bytes);

  const OutMessage& m = *packet.message;
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
  return {packet.path, head.first(head_bytes), payload};
}

std::optional<Datagram> Sender::PollTransmit(Nanos now, std::span<std::byte> head) {
  while (!lost_.empty()) {
    const uint64_t psn = lost_.front();
    if (psn < ledger_.base() || ledger_.at(psn).state != SentState::kLost) {
      lost_.pop_front();
      continue;
    }
    if (!MayTransmit()) break;
    lost_.pop_front();
    return Transmit(now, psn, head);
  }
  if (const auto psn = NextNewPacket()) return Transmit(now, *psn, head);
  return std::nullopt;
}

void Sender::OnPacketAcked(SentPacket& packet, Nanos now, int64_t* acked_bytes) {
  if (packet.state == SentState::kInFlight) inflight_bytes_ -= packet.wire_bytes;
  *acked_bytes += packet.wire_bytes;
  if (packet.transmissions == 1) {
    PathState& path = paths_[ToInt(packet.path)];
    if (packet.path_seq < path.highest_acked_seq)
      path.LearnReordering(path.highest_acked_seq - packet.path_seq);
    path.highest_acked_seq = std::max(path.highest_acked_seq, packet.path_seq);
    path.newest_acked_sent = std::max(path.newest_acked_sent, packet.sent);
  }
  // Acknowledged before the last transmission can have arrived: the one before was not lost, only
  // late.
  const bool too_soon =
      rtt_.has_sample() && packet.transmissions > 1 && now - packet.sent < rtt_.min_rtt() / 2;
  if (too_soon) {
    PathState& path = paths_[ToInt(packet.previous_path)];
    if (packet.previous_path_seq < path.highest_acked_seq) {
      path.LearnReordering(path.highest_acked_seq - packet.previous_path_seq);
    }
  }
  if (too_soon || packet.state == SentState::kLost) ++stats_->spurious_retransmits;
  packet.state = SentState::kAcked;
  OutMessage* m = packet.message;
  packet.message = nullptr;
  --m->unacked_packets;
  ReleaseIfDone(m);
}

bool Sender::OnAck(Nanos now, const wire::Ack& ack) {
  const uint64_t next = ExpandSequence(ack.next, ledger_.base());
  if (next > ledger_.next()) {  // acknowledges what was never sent
    ++stats_->malformed;
    return false;
  }
  ++stats_->acks_received;
  eager_consumed_bytes_ =
      std::max(eager_consumed_bytes_,
               std::min(static_cast<int64_t>(ack.eager_consumed_bytes), eager_sent_bytes_));

  AckSample sample;
  sample.now = now;
  for (size_t i = 0; i < ack.num_echoes; ++i) {
    const wire::Echo& echo = ack.echoes[i];
    if (echo.path >= paths_.size()) continue;
    // Modulo 2^32 microseconds; a sample beyond half of that is nonsense from a confused peer.
    const auto micros = static_cast<int32_t>(static_cast<uint32_t>(ToMicros(now)) - echo.timestamp);
    if (micros < 0) continue;
    PathState& path = paths_[echo.path];
    path.newest_acked_sent = std::max(path.newest_acked_sent, now - FromMicros(micros));
    // A longer one says no more, and may come from a datagram that somebody kept and replayed.
    const Nanos rtt = std::min(FromMicros(micros), config_.max_rto);
    path.rtt.Sample(rtt);
    rtt_.Sample(rtt);
    sample.path = static_cast<PathId>(echo.path);
    sample.rtt = rtt;
  }

  const auto acknowledge = [&](uint64_t psn) {
    SentPacket& packet = ledger_.at(psn);
    if (packet.state == SentState::kAcked) return;
    OnPacketAcked(packet, now, &sample.acked_bytes);
  };
  for (uint64_t psn = ledger_.base(); psn < next; ++psn) acknowledge(psn);
  for (size_t i = 0; i < ack.bitmap_bytes; ++i) {
    for (auto bits = static_cast<unsigned>(ack.bitmap[i]); bits != 0; bits &= bits - 1) {
      const uint64_t psn = next + 1 + i * 8 + static_cast<unsigned>(std::countr_zero(bits));
      if (psn >= ledger_.base() && psn < ledger_.next()) acknowledge(psn);
    }
  }
  ledger_.Trim();
  const bool progress = sample.acked_bytes > 0;
  if (progress) {
    backoff_ = 0;
    timer_start_ = now;
    sample.inflight_bytes = inflight_bytes_;
    controller_->OnAck(sample);
  }
  // Also without progress: the echo of a probe tells that what went before it is late.
  newly_lost_.clear();
  DetectLosses(ledger_, paths_, RttEstimator().Rto(config_.min_rto, config_.max_rto), &newly_lost_);
  stats_->retransmits_fast += newly_lost_.size();
  for (uint64_t psn : newly_lost_) MarkLost(now, psn);
  return progress;
}

void Sender::MarkLost(Nanos now, uint64_t psn) {
  SentPacket& packet = ledger_.at(psn);
  packet.state = SentState::kLost;
  inflight_bytes_ -= packet.wire_bytes;
  ++paths_[ToInt(packet.path)].packets_lost;
  lost_.push_back(psn);
  controller_->OnLoss({now, packet.path, packet.wire_bytes, inflight_bytes_});
}

Nanos Sender::Rto() const {
  // The slowest path decides: its packets are not late before its own round trip is over. One of
  // which nothing is known yet counts as well while it has something to answer.
  Nanos rto = rtt_.Rto(config_.min_rto, config_.max_rto);
  for (const PathState& path : paths_) {
    if (path.rtt.has_sample() || !path.flights.empty())
      rto = std::max(rto, path.rtt.Rto(config_.min_rto, config_.max_rto));
  }
  for (uint32_t i = 0; i < backoff_ && rto < config_.max_rto; ++i) rto *= 2;
  return std::min(rto, std::max(config_.min_rto, config_.max_rto));
}

Nanos Sender::NextTimeout() const { return inflight_bytes_ > 0 ? timer_start_ + Rto() : kNever; }

void Sender::OnTimeout(Nanos now) {
  if (now < NextTimeout()) return;
  ++stats_->timeouts;
  backoff_ = std::min(backoff_ + 1, kMaxBackoff);
  timer_start_ = now;
  controller_->OnTimeout(now);
  size_t again = 0;
  for (uint64_t psn = ledger_.base(); psn < ledger_.next() && again < kPacketsPerTimeout; ++psn) {
    if (ledger_.at(psn).state != SentState::kInFlight) continue;
    MarkLost(now, psn);
    ++again;
  }
  stats_->retransmits_timeout += again;
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
  for (PathState& path : paths_) path.flights.clear();
  free_.clear();
  pool_.clear();
  inflight_bytes_ = 0;
}

void Sender::FillStats(ConnectionStats* stats) const {
  stats->srtt_ns = rtt_.srtt().count();
  stats->rttvar_ns = rtt_.rttvar().count();
  stats->inflight_bytes = inflight_bytes_;
  stats->window_bytes = std::min(config_.window_bytes, controller_->window_bytes());
}

}  // namespace uccl::core
