// See credit_checker.h, and docs/wire_format.md for the packets.
#include "csrc/sim/credit_checker.h"

#include <algorithm>
#include <string>

#include "csrc/base/little_endian.h"
#include "csrc/wire/packet.h"

namespace uccl::sim {
namespace {

// What docs/reliability.md charges for a small message besides its bytes.
constexpr int64_t kEagerOverheadBytes = 128;

// Of the header, see docs/wire_format.md.
constexpr size_t kTypeOffset = 1, kPsnOffset = 16;

Bytes BodyOf(Bytes head) { return head.subspan(wire::kHeaderBytes); }
wire::PacketType TypeOf(Bytes head) { return static_cast<wire::PacketType>(head[kTypeOffset]); }

}  // namespace

CreditChecker::Book& CreditChecker::BookOf(uint32_t end) {
  if (end >= books_.size()) books_.resize(end + 1);
  return books_[end];
}

void CreditChecker::OnSent(Nanos now, uint32_t end, Bytes head, size_t bytes) {
  Book& book = BookOf(end);
  switch (const wire::PacketType type = TypeOf(head)) {
    case wire::PacketType::kAck:
      return OnGrantSent(now, book, DecodeAck(now, head).granted_bytes);
    case wire::PacketType::kCredit:
      return OnGrantSent(now, book, wire::DecodeCredit(BodyOf(head)).granted_bytes);
    case wire::PacketType::kProbe:
    case wire::PacketType::kDemand:
      return;
    case wire::PacketType::kEager:
      OnEagerSent(now, &book, head);
      [[fallthrough]];
    default:
      return OnSequencedSent(
          now, &book, head,
          type == wire::PacketType::kEager || type == wire::PacketType::kData ? bytes : 0);
  }
}

void CreditChecker::OnEagerSent(Nanos now, Book* book, Bytes head) {
  const wire::Eager eager = wire::DecodeEager(BodyOf(head).first(wire::kEagerBodyBytes));
  // Several packets, and packets sent again, belong to one message.
  if (!book->eager_messages.insert(eager.message_id).second) return;
  book->eager_sent += static_cast<int64_t>(eager.description.size_bytes) + kEagerOverheadBytes;
  checker_->AtMost(now, book->eager_sent - book->eager_free, limits_.eager_buffer_bytes,
                   "credit: small messages that are not known to have been taken");
}

// `bytes` of those that need credit.
void CreditChecker::OnSequencedSent(Nanos now, Book* book, Bytes head, size_t bytes) {
  if (!limits_.receiver_driven) return;
  const auto psn = LoadLittleEndian<uint32_t>(head.data() + kPsnOffset);
  if (book->sent_any && static_cast<int32_t>(psn - book->newest_psn) <= 0) return;
  book->sent_any = true;
  book->newest_psn = psn;
  book->used += static_cast<int64_t>(bytes);
  checker_->AtMost(now, book->used, limits_.initial_bytes + book->granted, "credit: bytes sent");
}

void CreditChecker::OnGrantSent(Nanos now, const Book& book, uint64_t granted) {
  checker_->AtMost(now, static_cast<int64_t>(granted),
                   limits_.receiver_driven ? limits_.initial_bytes + book.asked : 0,
                   "credit: bytes granted");
}

void CreditChecker::OnArrived(Nanos now, uint32_t end, Bytes head) {
  Book& book = BookOf(end);
  // Sums, of which an older one may come later. Of grants, the part beyond what needs none.
  const auto note_grant = [&](uint64_t granted) {
    book.granted = std::max(book.granted, static_cast<int64_t>(granted) - limits_.initial_bytes);
  };
  switch (TypeOf(head)) {
    case wire::PacketType::kAck: {
      const wire::Ack ack = DecodeAck(now, head);
      note_grant(ack.granted_bytes);
      book.eager_free = std::max(book.eager_free, static_cast<int64_t>(ack.eager_consumed_bytes));
      return checker_->AtMost(now, book.eager_free, book.eager_sent,
                              "credit: bytes of small messages given back");
    }
    case wire::PacketType::kCredit:
      return note_grant(wire::DecodeCredit(BodyOf(head)).granted_bytes);
    case wire::PacketType::kDemand:
      book.asked =
          std::max(book.asked, static_cast<int64_t>(wire::DecodeDemand(BodyOf(head)).wanted_bytes));
      return;
    default:
      return;
  }
}

wire::Ack CreditChecker::DecodeAck(Nanos now, Bytes head) {
  wire::Ack ack;
  checker_->Require(now, wire::DecodeAck(BodyOf(head), &ack),
                    "credit: an ACK that contradicts itself");
  return ack;
}

}  // namespace uccl::sim
