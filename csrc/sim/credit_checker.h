// Conservation of credit, read off the wire: what an end sends against what its peer let it send.
// Keeps its own books from the packets; knows nothing of what the connections think.
//
//   eager    a receiver keeps at most eager_buffer_bytes of small messages nobody has asked for.
//            ACKs tell how much of what was sent is free again. Sent and not yet free must fit, and
//            no more can become free than was sent.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/sim/checker.h"
#include "csrc/sim/datagram_tap.h"

namespace uccl::sim {

class CreditChecker final : public DatagramTap {
 public:
  CreditChecker(int64_t eager_buffer_bytes, Checker* checker)
      : eager_buffer_bytes_(eager_buffer_bytes), checker_(checker) {}

  void OnSent(Nanos now, uint32_t end, Bytes head) override;
  void OnArrived(Nanos now, uint32_t end, Bytes head) override;

 private:
  struct Book {
    std::unordered_set<uint32_t> eager_messages;
    int64_t eager_sent = 0, eager_free = 0;
  };
  Book& BookOf(uint32_t end);

  const int64_t eager_buffer_bytes_;
  Checker* const checker_;
  std::vector<Book> books_;  // by end, as a sender
};

}  // namespace uccl::sim
