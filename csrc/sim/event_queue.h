// What is going to happen, in the order of virtual time; events of one instant happen in the order
// in which they were scheduled, which makes a run a function of its seed.
//
// A heap with four children a node: half as deep as a binary one, and the children share a cache
// line or two. Hundreds of thousands of events are pending in a run with a thousand hosts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/types.h"

namespace uccl::sim {

enum class EventType : uint8_t {
  kArrive,      // a packet reaches the end of its link
  kReceive,     // a host gets round to a packet
  kNicReady,    // a host's NIC can take the next datagram
  kTimer,       // of a connection's end
  kCredit,      // a host may grant the next credit
  kStartFlow,   // of the workload
  kFaultBegin,  // of the fault plan
  kFaultEnd,
  kReroute,  // the switches learn whether a link is down
  kSample,   // of the metrics
};

struct ScheduledEvent {
  Nanos time{};
  uint64_t order = 0;
  EventType type{};
  uint32_t id = 0;  // what it is about: packet, host, end, flow or fault
};

class EventQueue final {
 public:
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  size_t peak_size() const { return peak_; }
  const ScheduledEvent& front() const { return heap_.front(); }

  void Push(Nanos time, EventType type, uint32_t id) {
    const ScheduledEvent event{time, next_order_++, type, id};
    heap_.push_back(event);
    peak_ = std::max(peak_, heap_.size());
    size_t at = heap_.size() - 1;
    while (at > 0) {
      const size_t parent = (at - 1) / kChildren;
      if (!Before(event, heap_[parent])) break;
      heap_[at] = heap_[parent];
      at = parent;
    }
    heap_[at] = event;
  }
  // The queue must not be empty.
  ScheduledEvent Pop() {
    const ScheduledEvent top = heap_.front();
    const ScheduledEvent last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) SiftDown(last);
    return top;
  }

 private:
  static constexpr size_t kChildren = 4;
  static bool Before(const ScheduledEvent& a, const ScheduledEvent& b) {
    return a.time != b.time ? a.time < b.time : a.order < b.order;
  }
  void SiftDown(const ScheduledEvent& event) {
    size_t at = 0;
    for (;;) {
      const size_t first = at * kChildren + 1;
      if (first >= heap_.size()) break;
      size_t best = first;
      const size_t end = std::min(first + kChildren, heap_.size());
      for (size_t child = first + 1; child < end; ++child) {
        if (Before(heap_[child], heap_[best])) best = child;
      }
      if (!Before(heap_[best], event)) break;
      heap_[at] = heap_[best];
      at = best;
    }
    heap_[at] = event;
  }

  std::vector<ScheduledEvent> heap_;
  uint64_t next_order_ = 0;
  size_t peak_ = 0;
};

}  // namespace uccl::sim
