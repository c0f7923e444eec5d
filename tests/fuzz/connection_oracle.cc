// The checks of connection_oracle.h.
#include "tests/fuzz/connection_oracle.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "csrc/core/credit/registry.h"
#include "csrc/core/sender.h"
#include "csrc/core/testing/messages.h"
#include "csrc/wire/crc32c.h"
#include "tests/fuzz/allocation_meter.h"

namespace uccl::fuzz {
namespace {

using core::testing::Describe;

// Rings, tables and histories that do not depend on what the peer sends: the ledger grows to 8192
// records of less than 100 bytes, a withdrawn tag costs less than 100 bytes and 4096 are kept on
// either side, and growing doubles.
constexpr int64_t kFixedBytes = 4 << 20;
constexpr int64_t kBytesPerPath = 64 << 10;
constexpr int64_t kBytesPerMessage = 1 << 10;
// More than what a late timer may make up for.
constexpr size_t kMostCreditsAtOnce = 1000;

}  // namespace

Oracle::Oracle(const core::ConnectionConfig& config, const std::string& scheduler)
    : config_(config), next_psn_(config.initial_send_psn) {
  const Metered metered;
  constexpr core::CreditParams kGigabit{.rate_bytes_per_s = 125'000'000, .quantum_bytes = 9000};
  auto credit = core::MakeReceiverScheduler(scheduler, kGigabit);
  Require(credit.ok(), "the scheduler exists");
  scheduler_ = std::move(credit.value());
  auto made = core::Connection::Make(config, {scheduler_.get(), 0});
  Require(made.ok(), "these settings are possible");
  connection_ = std::move(made.value());
}

void Oracle::Send(Nanos now, uint64_t tag, size_t size, uint64_t digest) {
  const uint64_t token = next_token_++;
  const Message message{tag, Describe(tag, size, digest)};
  sends_made_.push_back(message);
  handed_in_bytes_ += kBytesPerMessage;
  const auto [it, fresh] = operations_.emplace(token, Operation{message, true, UserMemory(size)});
  FillContent(tag, 0, it->second.memory.body());
  {
    const Metered metered;
    connection_->Send(now, message.info, it->second.memory.body(), token);
  }
  TakeEvents();
}

void Oracle::PostRecv(Nanos now, uint64_t tag, size_t size, uint64_t digest) {
  const uint64_t token = next_token_++;
  const Message message{tag, Describe(tag, size, digest)};
  receives_made_.push_back(message);
  handed_in_bytes_ += kBytesPerMessage;
  const auto [it, fresh] = operations_.emplace(token, Operation{message, false, UserMemory(size)});
  {
    const Metered metered;
    connection_->PostRecv(now, message.info, it->second.memory.body(), token);
  }
  TakeEvents();
}

void Oracle::Cancel(Nanos now, bool is_send, size_t n) {
  std::vector<uint64_t> tokens;
  for (const auto& [token, operation] : operations_) {
    if (operation.is_send == is_send) tokens.push_back(token);
  }
  if (tokens.empty()) return;
  const uint64_t token = tokens[n % tokens.size()];
  {
    const Metered metered;
    if (is_send) {
      connection_->CancelSend(now, token);
    } else {
      connection_->CancelRecv(now, token);
    }
  }
  any_cancelled_send_ |= is_send;
  Finished(token, is_send, /*complete=*/false);
  TakeEvents();
}

void Oracle::Discard(bool is_send, uint64_t tag) {
  {
    const Metered metered;
    connection_->Discard(is_send, Describe(tag, 0).tag);
  }
  TakeEvents();
}

void Oracle::SendControl(Nanos now, size_t size) {
  handed_in_bytes_ += kBytesPerMessage;
  const Metered metered;
  connection_->SendControl(now, std::string(size, 'u'));
}

void Oracle::Fail() {
  {
    const Metered metered;
    connection_->Fail(Status::Error(StatusCode::kAborted, "given up"));
  }
  TakeEvents();
}

void Oracle::Deliver(Nanos now, PathId path, Bytes datagram, Ecn ecn) {
  {
    const Metered metered;
    connection_->OnDatagram(now, path, datagram, ecn);
  }
  TakeEvents();
}

void Oracle::OnTimeout(Nanos now) {
  {
    const Metered metered;
    connection_->OnTimeout(now);
  }
  TakeEvents();
}

void Oracle::GiveCredit(Nanos now) {
  if (scheduler_ == nullptr) return;
  size_t given = 0;
  while (scheduler_->Grant(now) != nullptr)
    Require(++given < kMostCreditsAtOnce, "giving credit comes to an end");
}

Nanos Oracle::NextTimeout() const {
  const Nanos credit = scheduler_ == nullptr ? kNever : scheduler_->NextGrant();
  return std::min(connection_->NextTimeout(), credit);
}

size_t Oracle::Poll(Nanos now, size_t most) {
  size_t count = 0;
  while (count < most) {
    std::optional<core::Datagram> datagram;
    {
      const Metered metered;
      datagram = connection_->PollTransmit(now);
    }
    if (!datagram) break;
    ++count;
    Look(*datagram);
  }
  return count;
}

void Oracle::TakeEvents() {
  while (true) {
    std::optional<core::Event> event;
    {
      const Metered metered;
      event = connection_->PollEvent();
    }
    if (!event) return;
    Require(!failure_reported_ || !event->status.ok(), "after kFailed everything is refused");
    switch (event->kind) {
      case core::EventKind::kSendDone:
      case core::EventKind::kRecvDone:
        Require(event->status.ok() || connection_->failed(), "messages fail with their connection");
        Finished(event->token, event->kind == core::EventKind::kSendDone, event->status.ok());
        break;
      case core::EventKind::kMismatch: {
        const auto it = operations_.find(event->token);
        Require(it != operations_.end(), "a mismatch is of an outstanding message");
        const core::MessageInfo& ours = it->second.message.info;
        Require(event->remote.tag == ours.tag && (event->remote.digest != ours.digest ||
                                                  event->remote.size_bytes != ours.size_bytes),
                "a mismatch is of the same tag and something else");
        Finished(event->token, it->second.is_send, /*complete=*/false);
        break;
      }
      case core::EventKind::kArrived:
        Require(core::IsPut(event->remote.tag), "only puts are announced");
        break;
      case core::EventKind::kControl:
        break;
      case core::EventKind::kFailed:
        Require(!failure_reported_, "kFailed is reported once");
        failure_reported_ = true;
        Require(connection_->failed() && !event->status.ok(), "a failure has a cause");
        Require(operations_.empty(), "every outstanding token is reported before kFailed");
        break;
    }
  }
}

void Oracle::Finished(uint64_t token, bool is_send, bool complete) {
  const auto it = operations_.find(token);
  Require(it != operations_.end() && it->second.is_send == is_send,
          "a token is reported once, in its own direction");
  Operation& operation = it->second;
  operation.memory.CheckGuards();
  if (!is_send && complete && !lied_) {
    // A peer that counts bytes twice leaves holes; that harms none but its own message.
    const Bytes body = operation.memory.body();
    const bool whole = IsContent(operation.message.tag, 0, body);
    for (size_t i = 0; i < body.size() && !whole; ++i) {
      Require(body[i] == ContentAt(operation.message.tag, i) ||
                  body[i] == std::byte{UserMemory::kUntouched},
              "what is received is what was sent under the tag");
    }
  }
  operations_.erase(it);  // frees the buffer: the address sanitizer sees any later use
}

void Oracle::Look(const core::Datagram& datagram) {
  Require(!connection_->failed(), "a failed connection is silent");
  Require(datagram.header.size() + datagram.payload.size() <= config_.max_datagram_bytes,
          "datagrams keep to their limit");
  Require(ToInt(datagram.path) < config_.num_paths, "on paths that exist");
  std::vector<std::byte> whole(datagram.header.begin(), datagram.header.end());
  whole.insert(whole.end(), datagram.payload.begin(), datagram.payload.end());
  wire::Header header;
  Bytes body, payload;
  Require(wire::DecodeHeader(whole, &header, &body, &payload) == wire::DecodeError::kNone,
          "what is sent is well formed");
  Require(header.key == config_.send_key, "with the key of its direction");
  Require(header.path == ToInt(datagram.path), "and the path that it takes");
  newest_timestamp_ = header.timestamp;
  if (header.type == wire::PacketType::kAck) {
    wire::Ack ack;
    Require(wire::DecodeAck(body, &ack), "an ACK is well formed");
    return;
  }
  if (header.type == wire::PacketType::kProbe || header.type == wire::PacketType::kCredit ||
      header.type == wire::PacketType::kDemand) {
    return;
  }

  if (static_cast<int32_t>(header.psn - next_psn_) >= 0) {
    Require(header.psn == next_psn_, "PSNs are sent in order, without a gap");
    ++next_psn_;
  }
  if (header.type == wire::PacketType::kSkip) {
    Require(any_cancelled_send_, "only a cancelled send is skipped");
    skipped_.insert(header.psn);
    return;
  }
  Require(!skipped_.contains(header.psn), "what was skipped does not come back");
  const uint32_t content =
      wire::ExtendCrc32c(wire::ExtendCrc32c(static_cast<uint32_t>(header.type), body), payload);
  const auto [it, fresh] = contents_.emplace(header.psn, content);
  Require(it->second == content, "a PSN names one content for ever");
  CheckPayload(header, body, datagram.payload);
}

void Oracle::CheckPayload(const wire::Header& header, Bytes body, Bytes payload) {
  switch (header.type) {
    case wire::PacketType::kEager: {
      const wire::Eager eager = wire::DecodeEager(body);
      Require(IsContent(eager.description.tag_lo, eager.offset, payload),
              "eager bytes are the message's");
      break;
    }
    case wire::PacketType::kRequest: {
      const wire::Description d = wire::DecodeRequest(body).description;
      requests_seen_.push_back({d.tag_lo, Describe(d.tag_lo, d.size_bytes, d.digest)});
      break;
    }
    case wire::PacketType::kGrant: {
      const wire::Grant grant = wire::DecodeGrant(body);
      const wire::Description& d = grant.description;
      grants_seen_.push_back(
          {grant.receive_id, {d.tag_lo, Describe(d.tag_lo, d.size_bytes, d.digest)}});
      break;
    }
    case wire::PacketType::kData: {
      const uint64_t offset = wire::DecodeData(body).offset;
      const auto from = std::ranges::find_if(operations_, [&](auto& entry) {
        auto& [token, operation] = entry;
        const Bytes live = operation.memory.body();
        return operation.is_send && offset <= live.size() &&
               payload.size() <= live.size() - offset && payload.data() == live.data() + offset;
      });
      Require(from != operations_.end(), "data is sent out of a live buffer");
      Require(IsContent(from->second.message.tag, offset, payload), "unchanged");
      break;
    }
    default:
      break;
  }
}

void Oracle::CheckState() {
  const core::ConnectionStats stats = connection_->stats();
  int64_t of_paths = 0;
  for (const core::PathStats& path : stats.paths) {
    Require(path.inflight_bytes >= 0, "nothing leaves a path that was not on it");
    of_paths += path.inflight_bytes;
  }
  Require(stats.inflight_bytes == of_paths, "all in flight is in flight on some path");
  Require(stats.eager_bytes_buffered <= static_cast<uint64_t>(config_.eager_buffer_bytes),
          "the eager buffer keeps to its limit");
  if (!connection_->failed() && connection_->Drained()) {
    Require(stats.inflight_bytes == 0, "what is drained has nothing in flight");
  }
  if (!connection_->failed()) {
    const bool receiving =
        std::ranges::any_of(operations_, [](const auto& entry) { return !entry.second.is_send; });
    Require(!receiving || connection_->WaitingForPeer(), "a posted receive waits for the peer");
  }
  const auto early = static_cast<size_t>(config_.eager_buffer_bytes / core::kEagerOverheadBytes);
  Require(connection_->Unexpected().size() <= core::kMaxOpenMessages + early,
          "what is kept unasked is bounded");
  Require(stats.credit_granted_bytes >= granted_bytes_, "credit is not taken back");
  granted_bytes_ = stats.credit_granted_bytes;
  if (connection_->failed()) {
    Require(scheduler_ == nullptr || scheduler_->NextGrant() == kNever,
            "a failed connection wants no credit");
    Require(failure_reported_, "a failure is reported");
    Require(connection_->NextTimeout() == kNever, "a failed connection waits for nothing");
    Require(operations_.empty(), "and holds no buffer");
  }
  const int64_t account = kFixedBytes + config_.num_paths * kBytesPerPath +
                          2 * config_.eager_buffer_bytes + handed_in_bytes_;
  Require(MeteredBytes() <= account, "memory keeps to its bound");
}

void Oracle::Finish(Nanos now) {
  if (!connection_->failed()) Fail();
  CheckState();
  Require(Poll(now, 1) == 0, "a failed connection is silent");
  for (const auto& [token, operation] : operations_) operation.memory.CheckGuards();
}

}  // namespace uccl::fuzz
