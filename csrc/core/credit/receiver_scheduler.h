// Receiver-driven credit: a receiver knows what all its senders want, and tells each when it may
// send, so that together they fill its link and no queue. One scheduler serves all the connections
// that end at one link; it is driven by whoever owns them (an engine, a simulated host), on one
// thread, with the time as an argument. Units: bytes of kEager and kData packets with our headers.
//
// Quantities of a flow only grow, so that packets about them may be lost, repeated or overtaken:
//   wanted    by the sender, each transmission of a packet counting anew
//   granted   by the scheduler, starting at what may be sent unasked
//   settled   of what was sent: given up for lost by the sender
//   arrived   here, each packet once
// What was granted and neither arrived nor was settled is outstanding: under way, or credit that
// the sender has not used.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "csrc/base/types.h"

namespace uccl::core {

// One sender as its receiver sees it. Owned by the receiving half of the connection.
struct CreditFlow {
  uint64_t owner = 0;          // names the connection to whoever drives the scheduler
  int64_t initial_bytes = 0;   // granted ahead of any wish; equal on both ends
  int64_t limit_bytes = 0;     // most that may be outstanding
  int64_t datagram_bytes = 1;  // of full packets
  int64_t wanted = 0, granted = 0, settled = 0, arrived = 0;
  int64_t again = 0;        // of wanted - granted: repeats lost packets
  bool credit_due = false;  // the sender is to be told `granted`
  int64_t Outstanding() const { return granted - settled - arrived; }

  // Used or about to be: granted and wanted, and neither arrived nor settled.
  int64_t UnderWay() const {
    return std::max<int64_t>(std::min(granted, wanted) - settled - arrived, 0);
  }

  // Of the scheduler: what it counts as under way, the list that it is in, and its neighbours.
  int64_t counted = 0;
  uint8_t list = 0;
  CreditFlow* next = nullptr;
  CreditFlow* previous = nullptr;
};

struct CreditParams {
  int64_t rate_bytes_per_s = 0;  // of the link that the flows share; above 0
  int64_t quantum_bytes = 0;     // of one credit; above 0
  // What the link and the way to it hold, about the bandwidth-delay product: more than this under
  // way is a queue, and credits slow down until it has drained. 0: unknown, they never do.
  int64_t pipe_bytes = 0;
};

class ReceiverScheduler {
 public:
  virtual ~ReceiverScheduler() = default;
  // A flow must be removed before it ends. Removing one that was not added does nothing.
  virtual void Add(CreditFlow* flow) = 0;
  virtual void Remove(CreditFlow* flow) = 0;
  // `wanted`, `settled` or `arrived` of the flow changed.
  virtual void Update(CreditFlow* flow) = 0;
  // Grants the next credit, if its time has come and somebody can use it, and returns whose it is.
  // To be called until it returns null.
  virtual CreditFlow* Grant(Nanos now) = 0;
  // When the next credit is due; kNever while nobody can use one. May lie in the past.
  virtual Nanos NextGrant() const = 0;
  virtual int64_t quantum_bytes() const = 0;
  // State in readable form, for traces.
  virtual std::string Snapshot() const = 0;
};

}  // namespace uccl::core
