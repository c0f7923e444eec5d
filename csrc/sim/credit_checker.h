// Conservation of credit, read off the wire: what an end sends against what its peer let it send.
// Keeps its own books from the packets; knows nothing of what the connections think.
//
//   eager    a receiver keeps at most eager_buffer_bytes of small messages nobody has asked for.
//            ACKs tell how much of what was sent is free again. Sent and not yet free must fit, and
//            no more can become free than was sent.
//   credit     with a receiver scheduler: what is sent for the first time must be covered by what
//            credits and ACKs had granted on arrival, and no receiver grants more than requests
//            asked for when they arrived, besides what may be sent unasked. (What is sent again
//            cannot be told from a tail-loss probe on the wire; CheckCredit sees to it.)
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/sim/checker.h"
#include "csrc/sim/datagram_tap.h"
#include "csrc/wire/packet.h"

namespace uccl::sim {

class CreditChecker final : public DatagramTap {
 public:
  struct Limits {
    int64_t eager_buffer_bytes = 0;
    bool receiver_driven = false;
    int64_t initial_bytes = 0;  // with it: what may be sent unasked
  };
  CreditChecker(const Limits& limits, Checker* checker) : limits_(limits), checker_(checker) {}

  void OnSent(Nanos now, uint32_t end, Bytes head, size_t bytes) override;
  void OnArrived(Nanos now, uint32_t end, Bytes head) override;

 private:
  struct Book {
    std::unordered_set<uint32_t> eager_messages;
    int64_t eager_sent = 0, eager_free = 0;
    // As a sender: the newest sequence number, and bytes sent under new ones.
    bool sent_any = false;
    uint32_t newest_psn = 0;
    int64_t used = 0, granted = 0;
    int64_t asked = 0;  // as a receiver: by requests that came
  };
  Book& BookOf(uint32_t end);
  wire::Ack DecodeAck(Nanos now, Bytes head);
  void OnEagerSent(Nanos now, Book* book, Bytes head);
  void OnSequencedSent(Nanos now, Book* book, Bytes head, size_t bytes);
  void OnGrantSent(Nanos now, const Book& book, uint64_t granted);

  const Limits limits_;
  Checker* const checker_;
  std::vector<Book> books_;  // by end
};

}  // namespace uccl::sim
