// See credit_checker.h, and docs/wire_format.md for the packets.
#include "csrc/sim/credit_checker.h"

#include <algorithm>
#include <string>

#include "csrc/wire/packet.h"

namespace uccl::sim {
namespace {

// What docs/reliability.md charges for a small message besides its bytes.
constexpr int64_t kEagerOverheadBytes = 128;

wire::PacketType TypeOf(Bytes head) { return static_cast<wire::PacketType>(head[1]); }

}  // namespace

CreditChecker::Book& CreditChecker::BookOf(uint32_t end) {
  if (end >= books_.size()) books_.resize(end + 1);
  return books_[end];
}

void CreditChecker::OnSent(Nanos now, uint32_t end, Bytes head) {
  if (TypeOf(head) != wire::PacketType::kEager) return;
  const wire::Eager eager =
      wire::DecodeEager(head.subspan(wire::kHeaderBytes, wire::kEagerBodyBytes));
  Book& book = BookOf(end);
  // Several packets, and packets sent again, belong to one message.
  if (!book.eager_messages.insert(eager.message_id).second) return;
  book.eager_sent += static_cast<int64_t>(eager.description.size_bytes) + kEagerOverheadBytes;
  checker_->AtMost(now, book.eager_sent - book.eager_free, eager_buffer_bytes_,
                   "credit: small messages that are not known to have been taken");
}

void CreditChecker::OnArrived(Nanos now, uint32_t end, Bytes head) {
  if (TypeOf(head) != wire::PacketType::kAck) return;
  wire::Ack ack;
  checker_->Require(now, wire::DecodeAck(head.subspan(wire::kHeaderBytes), &ack),
                    "credit: an ACK that contradicts itself");
  Book& book = BookOf(end);
  book.eager_free = std::max(book.eager_free, static_cast<int64_t>(ack.eager_consumed_bytes));
  checker_->AtMost(now, book.eager_free, book.eager_sent,
                   "credit: bytes of small messages given back");
}

}  // namespace uccl::sim
