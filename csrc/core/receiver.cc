// Matching, placement and the contents of ACKs. See receiver.h.
#include "csrc/core/receiver.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace uccl::core {
namespace {

MessageInfo FromWire(const wire::Description& d) {
  return {{d.tag_hi, d.tag_lo}, d.digest, d.size_bytes, d.note};
}

Status Violation(std::string what) { return Status::Error(StatusCode::kProtocol, std::move(what)); }

}  // namespace

Receiver::Receiver(const ConnectionConfig& config, Sender* sender, const CreditSource& credit,
                   ConnectionStats* stats, Ring<Event>* events)
    : config_(config),
      sender_(sender),
      stats_(stats),
      events_(events),
      scheduler_(credit.scheduler),
      window_(config.initial_recv_psn),
      echoes_(config.num_paths),
      next_receive_id_(config.first_number) {
  echo_paths_.reserve(config.num_paths);
  if (scheduler_ == nullptr) return;
  const auto datagram = static_cast<int64_t>(config.max_datagram_bytes);
  flow_.owner = credit.owner;
  flow_.granted = flow_.initial_bytes = config.credit_initial_bytes;
  flow_.datagram_bytes = datagram;
  // Never so little that a credit or a datagram does not fit beside what is unasked for.
  flow_.limit_bytes = std::max(config.window_bytes, config.credit_initial_bytes +
                                                        2 * scheduler_->quantum_bytes() + datagram);
  scheduler_->Add(&flow_);
}

Receiver::~Receiver() {
  if (scheduler_ != nullptr) scheduler_->Remove(&flow_);
}

// ---- credit ----

bool Receiver::OnDemand(const wire::Demand& demand) {
  constexpr uint64_t kMost = uint64_t{1} << 62;
  if (demand.wanted_bytes > kMost || demand.settled_bytes > demand.wanted_bytes) return false;
  if (scheduler_ == nullptr) return true;
  const auto wanted = static_cast<int64_t>(demand.wanted_bytes);
  const auto settled = static_cast<int64_t>(demand.settled_bytes);
  // An equal one is a repetition by a sender that heard nothing: the last credit may have been
  // lost, or it waits for credit that it has not learned of.
  const bool news = wanted > flow_.wanted || settled > flow_.settled;
  flow_.again += std::max<int64_t>(settled - flow_.settled, 0);
  flow_.wanted = std::max(flow_.wanted, wanted);
  flow_.settled = std::max(flow_.settled, settled);
  if (!news || flow_.granted >= flow_.wanted) flow_.credit_due = true;
  scheduler_->Update(&flow_);
  return true;
}

wire::Credit Receiver::TakeCredit() {
  flow_.credit_due = false;
  return {static_cast<uint64_t>(flow_.granted)};
}

// ---- posted receives ----

bool Receiver::Matches(Posted* posted, const MessageInfo& theirs) {
  posted->remote = theirs;
  if (theirs.digest == posted->info.digest && theirs.size_bytes == posted->info.size_bytes)
    return true;
  Event event;
  event.kind = EventKind::kMismatch;
  event.token = posted->token;
  event.remote = theirs;
  events_->push_back(std::move(event));
  Forget(posted);
  return false;
}

bool Receiver::MatchesRequest(Posted* posted, const MessageInfo& theirs) {
  const MessageInfo ours = posted->info;
  const bool granted = posted->granted;
  if (Matches(posted, theirs)) return true;
  if (!granted) sender_->SendGrant(ours, next_receive_id_++);
  return false;
}

Receiver::Early* Receiver::NewEarly(const MessageInfo& info, uint32_t message_id) {
  early_.emplace_back();
  Early* early = &early_.back();
  early->self = std::prev(early_.end());
  early->info = info;
  early->message_id = message_id;
  return early;
}

void Receiver::Grant(Posted* posted) {
  posted->granted = true;
  posted->receive_id = next_receive_id_++;
  by_receive_id_[posted->receive_id] = posted;
  sender_->SendGrant(posted->info, posted->receive_id);
}

void Receiver::PostRecv(const MessageInfo& info, MutableBytes buffer, uint64_t token) {
  auto owned = std::make_unique<Posted>();
  Posted* posted = owned.get();
  posted->info = info;
  posted->buffer = buffer;
  posted->token = token;
  posted_[token] = std::move(owned);

  withdrawn_.Take(info.tag);
  if (Early* early = unexpected_.Front(info.tag)) {
    unexpected_.Remove(early);
    if (early->is_request) {
      if (MatchesRequest(posted, early->info)) {
        posted->requested = true;
        Grant(posted);
      }
      ForgetRequest(early);
      return;
    }
    if (!Matches(posted, early->info)) {
      early->dropped = true;
    } else {
      early->posted = posted;
      posted->early = early;
    }
    if (early->any_received && early->received_bytes == early->info.size_bytes) FinishEager(early);
    return;
  }
  by_tag_.Add(posted);
  // A small message may be on its way eagerly, so that one is granted only when asked for.
  if (static_cast<int64_t>(info.size_bytes) > config_.eager_max_bytes) Grant(posted);
}

void Receiver::ForgetRequest(Early* early) {
  --early_requests_;
  early_.erase(early->self);
}

void Receiver::Discard(const MessageTag& tag) {
  Early* early = unexpected_.Front(tag);
  if (early == nullptr) {
    if (by_tag_.Front(tag) == nullptr) withdrawn_.Add(tag);  // else it is received after all
    return;
  }
  unexpected_.Remove(early);
  if (early->is_request) {
    ForgetRequest(early);
    return;
  }
  early->dropped = true;
  if (early->any_received && early->received_bytes == early->info.size_bytes) FinishEager(early);
}

void Receiver::Cancel(uint64_t token) {
  const auto it = posted_.find(token);
  if (it == posted_.end()) return;
  Posted* posted = it->second.get();
  if (posted->early != nullptr) {
    posted->early->posted = nullptr;
    posted->early->dropped = true;
  } else if (!posted->requested) {
    withdrawn_.Add(posted->info.tag);
  }
  Forget(posted);
}

void Receiver::Forget(Posted* posted) {
  by_tag_.Remove(posted);
  if (posted->granted) by_receive_id_.erase(posted->receive_id);
  posted_.erase(posted->token);
}

void Receiver::FinishPosted(Posted* posted, const Status& status) {
  Event event;
  event.kind = EventKind::kRecvDone;
  event.token = posted->token;
  event.status = status;
  event.remote = posted->remote;
  events_->push_back(std::move(event));
  Forget(posted);
}

// ---- packets ----

void Receiver::NoteArrival(const wire::Header& header, Ecn ecn) {
  ack_due_ = true;
  if (header.path >= echoes_.size()) return;
  newest_path_ = static_cast<PathId>(header.path);
  wire::Echo& echo = echoes_[header.path];
  if (ecn == Ecn::kCongested) ++echo.marked;
  if (echo.packets == 0) {
    echo.path = header.path;
    echo_paths_.push_back(header.path);
    echo.timestamp = header.timestamp;
  } else if (static_cast<int32_t>(header.timestamp - echo.timestamp) > 0) {
    echo.timestamp = header.timestamp;
  }
  if (echo.packets < UINT16_MAX) ++echo.packets;
}

Status Receiver::OnPacket(const wire::Header& header, Bytes body, Bytes payload, Ecn ecn) {
  switch (window_.Check(header.psn)) {
    case ReceiveWindow::Verdict::kOutside:
      ++stats_->out_of_window;
      return Status::Ok();
    case ReceiveWindow::Verdict::kDuplicate:
      ++stats_->duplicates;
      // The ACK was lost: say it again. Without an echo, because this datagram may have been under
      // way for ever.
      ack_due_ = true;
      return Status::Ok();
    case ReceiveWindow::Verdict::kNew:
      break;
  }
  Status status;
  switch (header.type) {
    case wire::PacketType::kEager:
      status = OnEager(wire::DecodeEager(body), payload);
      break;
    case wire::PacketType::kData:
      status = OnData(wire::DecodeData(body), payload);
      break;
    case wire::PacketType::kRequest:
      status = OnRequest(wire::DecodeRequest(body));
      break;
    case wire::PacketType::kGrant: {
      const wire::Grant grant = wire::DecodeGrant(body);
      status = sender_->OnGrant(FromWire(grant.description), grant.receive_id);
      break;
    }
    case wire::PacketType::kControl: {
      Event event;
      event.kind = EventKind::kControl;
      event.control.assign(reinterpret_cast<const char*>(payload.data()), payload.size());
      events_->push_back(std::move(event));
      break;
    }
    case wire::PacketType::kSkip:
    case wire::PacketType::kAck:
    case wire::PacketType::kProbe:
    case wire::PacketType::kCredit:
    case wire::PacketType::kDemand:
      break;
  }
  if (!status.ok()) return status;
  window_.Record(header.psn);
  NoteArrival(header, ecn);
  stats_->payload_bytes_received += payload.size();
  if (scheduler_ != nullptr &&
      (header.type == wire::PacketType::kEager || header.type == wire::PacketType::kData)) {
    flow_.arrived += static_cast<int64_t>(wire::kHeaderBytes + body.size() + payload.size());
    scheduler_->Update(&flow_);
  }
  return Status::Ok();
}

Status Receiver::OnEager(const wire::Eager& eager, Bytes payload) {
  const wire::Description& d = eager.description;
  if (d.size_bytes > static_cast<uint64_t>(config_.eager_max_bytes) ||
      eager.offset > d.size_bytes || payload.size() > d.size_bytes - eager.offset) {
    return Violation("eager packet [" + std::to_string(eager.offset) + ", +" +
                     std::to_string(payload.size()) + ") of a message of " +
                     std::to_string(d.size_bytes) + " bytes, limit " +
                     std::to_string(config_.eager_max_bytes));
  }
  Early* early = nullptr;
  if (const auto it = by_message_id_.find(eager.message_id); it != by_message_id_.end()) {
    early = it->second;
    if (early->info.size_bytes != d.size_bytes || !(early->info.tag == FromWire(d).tag) ||
        payload.size() > d.size_bytes - early->received_bytes) {
      return Violation("packets of one eager message disagree");
    }
  } else {
    early = NewEarly(FromWire(d), eager.message_id);
    by_message_id_[eager.message_id] = early;
    if (Posted* posted = by_tag_.Front(early->info.tag)) {
      if (Matches(posted, early->info)) {
        by_tag_.Remove(posted);
        early->posted = posted;
        posted->early = early;
      } else {
        early->dropped = true;
      }
    } else if (withdrawn_.Take(early->info.tag)) {
      early->dropped = true;
    } else {
      const int64_t cost = static_cast<int64_t>(d.size_bytes) + kEagerOverheadBytes;
      buffered_bytes_ += cost;
      early->buffered = true;
      // What the peer may have outstanding is what it knows to be free; more is a violation of the
      // credit.
      if (buffered_bytes_ > config_.eager_buffer_bytes) {
        return Violation("peer sent " + std::to_string(buffered_bytes_) +
                         " eager bytes ahead, limit " + std::to_string(config_.eager_buffer_bytes));
      }
      early->buffer.resize(d.size_bytes);
      unexpected_.Add(early);
      ++stats_->unexpected_messages;
      Announce(early->info);
    }
  }
  if (!early->buffer.empty()) {
    std::copy(payload.begin(), payload.end(), early->buffer.begin() + eager.offset);
  } else if (early->posted != nullptr && !payload.empty()) {
    std::memcpy(early->posted->buffer.data() + eager.offset, payload.data(), payload.size());
  }
  early->received_bytes += payload.size();
  early->any_received = true;
  if (early->received_bytes == early->info.size_bytes) {
    // Whole: no more packets will name it. It stays only if nobody has asked for it yet.
    by_message_id_.erase(early->message_id);
    if (early->posted != nullptr || early->dropped) FinishEager(early);
  }
  return Status::Ok();
}

// A whole eager message whose receive is known (or gone).
void Receiver::FinishEager(Early* early) {
  const int64_t cost = static_cast<int64_t>(early->info.size_bytes) + kEagerOverheadBytes;
  consumed_bytes_ += cost;
  ack_due_ = true;  // the credit may be waited for
  if (Posted* posted = early->posted) {
    if (!early->buffer.empty())
      std::memcpy(posted->buffer.data(), early->buffer.data(), early->buffer.size());
    posted->early = nullptr;
    FinishPosted(posted, Status::Ok());
  }
  // Buffered ones were counted when they came; bound ones never were. The list owns it.
  if (early->buffered) buffered_bytes_ -= cost;
  early_.erase(early->self);
}

Status Receiver::OnRequest(const wire::Request& request) {
  const MessageInfo info = FromWire(request.description);
  if (Posted* posted = by_tag_.Front(info.tag)) {
    if (!MatchesRequest(posted, info)) return Status::Ok();
    by_tag_.Remove(posted);
    posted->requested = true;
    if (!posted->granted) Grant(posted);
    FinishIfWhole(posted);
    return Status::Ok();
  }
  if (withdrawn_.Take(info.tag)) return Status::Ok();
  if (early_requests_ >= kMaxOpenMessages) {
    return Violation("peer announced more than " + std::to_string(kMaxOpenMessages) +
                     " messages that no receive was posted for");
  }
  Early* early = NewEarly(info, request.message_id);
  early->is_request = true;
  ++early_requests_;
  unexpected_.Add(early);
  ++stats_->unexpected_messages;
  Announce(info);
  return Status::Ok();
}

// A put that met no receive: its owner is to post one.
void Receiver::Announce(const MessageInfo& info) {
  if (!IsPut(info.tag)) return;
  Event event;
  event.kind = EventKind::kArrived;
  event.remote = info;
  events_->push_back(std::move(event));
}

Status Receiver::OnData(const wire::Data& data, Bytes payload) {
  const auto it = by_receive_id_.find(data.receive_id);
  if (it == by_receive_id_.end()) return Status::Ok();  // its receive was withdrawn
  Posted* posted = it->second;
  if (data.offset > posted->buffer.size() || payload.size() > posted->buffer.size() - data.offset ||
      payload.size() > posted->buffer.size() - posted->received_bytes) {
    return Violation("data [" + std::to_string(data.offset) + ", +" +
                     std::to_string(payload.size()) + ") does not fit a receive of " +
                     std::to_string(posted->buffer.size()) + " bytes");
  }
  if (!payload.empty())
    std::memcpy(posted->buffer.data() + data.offset, payload.data(), payload.size());
  posted->received_bytes += payload.size();
  posted->any_data = true;
  FinishIfWhole(posted);
  return Status::Ok();
}

void Receiver::FinishIfWhole(Posted* posted) {
  if (posted->requested && posted->any_data && posted->received_bytes == posted->info.size_bytes) {
    FinishPosted(posted, Status::Ok());
  }
}

size_t Receiver::FillAck(wire::Header header, std::span<std::byte> out) {
  wire::Ack ack;
  ack.next = window_.next();
  ack.eager_consumed_bytes = static_cast<uint64_t>(consumed_bytes_);
  ack.granted_bytes = TakeCredit().granted_bytes;
  while (!echo_paths_.empty() && ack.num_echoes < wire::kMaxEchoes) {
    wire::Echo& echo = echoes_[echo_paths_.back()];
    echo_paths_.pop_back();
    ack.echoes[ack.num_echoes++] = echo;
    echo.packets = 0;
  }
  std::array<std::byte, wire::kMaxBitmapBytes> bitmap;
  const size_t fixed =
      wire::kHeaderBytes + wire::kAckFixedBytes + ack.num_echoes * wire::kEchoBytes;
  const size_t room = std::min(bitmap.size(), config_.max_datagram_bytes - fixed);
  ack.bitmap_bytes = static_cast<uint16_t>(window_.FillBitmap(bitmap.data(), room));
  ack.bitmap = bitmap.data();
  ack_due_ = !echo_paths_.empty();
  return wire::EncodeAck(header, ack, out);
}

std::vector<MessageInfo> Receiver::Unexpected() const {
  std::vector<MessageInfo> all;
  for (const Early& early : early_) {
    if (early.posted == nullptr && !early.dropped) all.push_back(early.info);
  }
  return all;
}

void Receiver::Fail(const Status& status) {
  while (!posted_.empty()) FinishPosted(posted_.begin()->second.get(), status);
  by_tag_.Clear();
  by_receive_id_.clear();
  early_.clear();
  early_requests_ = 0;
  by_message_id_.clear();
  unexpected_.Clear();
  buffered_bytes_ = 0;
  ack_due_ = false;
  if (scheduler_ != nullptr) scheduler_->Remove(&flow_);
  flow_.credit_due = false;
}

void Receiver::FillStats(ConnectionStats* stats) const {
  stats->eager_bytes_buffered = static_cast<uint64_t>(buffered_bytes_);
  stats->credit_granted_bytes = flow_.granted;
  stats->credit_outstanding_bytes = flow_.Outstanding();
}

}  // namespace uccl::core
