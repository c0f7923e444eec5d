// The receiver's side of one stream of puts: when their counters may show.
//
// A stream is what one FIFO of one rank sends on one channel to one rank here. Its puts are
// numbered by the sender and arrive and land in any order, perhaps twice; this decides what each
// may do:
//   a write's own count (write_count)  when its data has landed, whatever came before it (partial
//                                      completion: rows of a low-latency dispatch overtake freely)
//   a count                            when every put with a lower number has landed, in the order
//   of
//                                      the numbers
// and every count exactly once.
//
// The window bounds memory: a sender has at most that many puts unacknowledged in a stream
// (setting proxy_fifo_inflight, equal on all processes), so nothing honest lies beyond it.
//
// Acknowledgements are cumulative, "all below n have landed and been counted": one for each quarter
// of the window, and whenever the sender asks.
//
// Pure: no clock, no thread. UCCL-EP (arXiv 2512.19849) describes the problem and both orders.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace uccl::proxy {

struct CounterUpdate {
  uint32_t counter = 0, amount = 0;
  bool operator==(const CounterUpdate&) const = default;
};

class Ordering final {
 public:
  // `window` is at least 1, at most 2^30; `first` is the number of the first put.
  explicit Ordering(uint32_t window, uint32_t first = 0);

  struct Put {
    bool fence = false;    // its count waits for all puts before it
    CounterUpdate update;  // amount 0: none
  };
  enum class Arrival : uint8_t { kFresh, kDuplicate, kBeyondWindow };
  // The description of a put came; its bytes may be anywhere. Only after kFresh may they be placed:
  // a duplicate could overwrite newer data.
  Arrival OnArrival(uint32_t number, const Put& put);
  // All bytes of a put that arrived are in place. Appends what may be counted now. False, with
  // nothing changed, for a number that is not on its way.
  bool OnLanded(uint32_t number, std::vector<CounterUpdate>* updates);

  // The sender waits for an acknowledgement of all below `number`. False when it never sent so
  // much.
  bool OnAckRequest(uint32_t number);
  // The acknowledgement that is due, if one is.
  std::optional<uint32_t> TakeAck();

  // All below have landed and been counted.
  uint32_t next() const { return next_; }

 private:
  enum class State : uint8_t { kAbsent, kArriving, kLanded };
  struct Slot {
    State state = State::kAbsent;
    Put put;
  };

  const uint32_t window_;
  std::deque<Slot> slots_;             // from next_ to the highest number that arrived
  uint32_t next_, acked_, requested_;  // numbers wrap around; differences are what counts
};

}  // namespace uccl::proxy
